"""`tidegate check-config`: what the settings are, where each came from, what will run, and what to think about."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.config import Explained, Settings, explain, find_file
from tidegate.config.advice import advice
from tidegate.control.concerns import concerns
from tidegate.control.doctor import faults_settings
from tidegate.control.plan import with_defaults
from tidegate.errors import SettingError
from tidegate.home import find_home

app = typer.Typer(add_completion=False)


@app.command()
def check_config(
    file: Annotated[
        Path | None, typer.Argument(help="Settings file; without it, the one that `up` would take.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    example: Annotated[bool, typer.Option("--example", help="Print every setting with its default instead.")] = False,
) -> None:
    """Explain the settings, or what is wrong with them (exit code 2)."""
    if example:
        from tidegate.config.example import render_example

        sys.stdout.write(render_example())
        return
    try:
        explained = explain(find_file(file, find_home().path))
        faults_settings.refuse(explained.settings.pool)
    except SettingError as error:
        if not as_json:
            raise
        print(json.dumps({"error": {"setting": error.setting, "message": str(error), "hint": error.hint}}, indent=2))
        raise typer.Exit(error.exit_code) from None
    report = describe(explained)
    print(json.dumps(report, indent=2, ensure_ascii=False) if as_json else "\n".join(render(report)))


def describe(explained: Explained) -> dict[str, Any]:
    """Everything there is to tell, for programs and for `render`."""
    settings = with_defaults(explained.settings)
    home = find_home(explained.settings.store.home)
    return {
        "file": str(explained.file) if explained.file else None,
        "home": str(home.path),
        "given": [
            {
                "name": name,
                "value": _value(explained.settings, name),
                "default": _value(Settings(), name),
                "from": origin,
            }
            for name, origin in sorted(explained.origins.items())
        ],
        "listen": settings.listeners(),
        "models": [
            {"name": model.name, "aliases": list(model.aliases), "source": model.source} for model in settings.model
        ],
        "pools": [
            {
                "name": pool.name,
                "model": pool.model,
                "engine": pool.engine,
                "replicas": len(pool.urls) if pool.engine == "external" else pool.replicas,
                "urls": list(pool.urls),
            }
            for pool in settings.pool
        ],
        "advice": [
            *advice(explained),
            *concerns(explained.settings),
            *(f"{name}: {remark.text}; {remark.advice}" for name, remark in faults_settings.remarks(settings.pool)),
            *_unusable_files(explained.settings),
            *_shadowed(explained.settings),
        ],
        "settings": _dump(explained.settings),
    }


def render(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    lines = [f"Settings: {report['file'] or 'no file, so the defaults'}; data folder {report['home']}"]
    for given in report["given"]:
        default = "" if given["default"] is None else f", default {_show(given['default'])}"
        same = " (the default)" if given["value"] == given["default"] else default
        lines.append(f"  {given['name']} = {_show(given['value'])}   from {given['from']}{same}")
    lines += ["", "What will run:"]
    lines += [f"  {name:<8} {address}" for name, address in report["listen"].items()]
    for model in report["models"]:
        also = f", also called {', '.join(model['aliases'])}" if model["aliases"] else ""
        name = "the best model to be had" if model["name"] == "auto" else model["name"]
        source = "" if model["name"] == "auto" else f" from {model['source']}"
        lines.append(f"  model    {name}{source}{also}")
    for pool in report["pools"]:
        what = ", ".join(pool["urls"]) if pool["urls"] else f"{pool['replicas']} x {pool['engine']}"
        lines.append(f"  pool     {pool['name']}: {what}, for {'it' if pool['model'] == 'auto' else pool['model']}")
    if report["advice"]:
        lines += ["", "To think about:", *(f"  {sentence}" for sentence in report["advice"])]
    return lines


def _value(settings: Settings, name: str) -> Any:
    """The value of the setting called `name`, as JSON; None where it has no value of its own."""
    found: Any = _dump(settings)
    for part in name.split("."):
        if isinstance(found, list):
            found = found[int(part) - 1] if int(part) <= len(found) else None
        else:
            found = found.get(part) if isinstance(found, dict) else None
    return found


def _dump(settings: Settings) -> dict[str, Any]:
    """Settings as JSON, without the password that a URL may hold."""
    dumped = settings.model_dump(mode="json", by_alias=True)
    if settings.store.url is not None:
        dumped["store"]["url"] = re.sub(r"(?<=://)([^:/@]*):[^/@]*@", r"\1:***@", settings.store.url)
    return dumped


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _unusable_files(settings: Settings) -> list[str]:
    """Files that are named and not there, or are no certificate."""
    named: dict[str, Path | None] = {
        "gateway.tls_cert_file": settings.gateway.tls_cert_file,
        "gateway.tls_key_file": settings.gateway.tls_key_file,
        "store.password_file": settings.store.password_file,
    }
    for position, pool in enumerate(settings.pool, 1):
        named[f"pool.{position}.options.api_key_file"] = getattr(pool.engine_options(), "api_key_file", None)
    missing = [name for name, path in named.items() if path is not None and not path.is_file()]
    told = [f"{name}: {named[name]} is not there" for name in missing]
    certificate, key = named["gateway.tls_cert_file"], named["gateway.tls_key_file"]
    if certificate is not None and key is not None and not any(name.startswith("gateway.tls") for name in missing):
        from tidegate.http.tls import server_context

        try:
            server_context(certificate, key)
        except SettingError as error:
            told.append(str(error))
    return told


def _shadowed(settings: Settings) -> list[str]:
    """Names of the catalogue that mean another model here."""
    from tidegate.models import catalogue

    found = []
    for position, model in enumerate(settings.model, 1):
        for name in (model.name, *model.aliases):
            known = catalogue.find(name)
            source = catalogue.find(model.source)
            if known is not None and model.source != "auto" and known is not source:
                found.append(f"model.{position}: {name!r} is a name of {known.title}, but its source is {model.source}")
    return found
