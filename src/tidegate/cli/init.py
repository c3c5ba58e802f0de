"""`tidegate init`: a short settings file from what is found on this machine."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx
import typer

from tidegate.config import FILE_NAME, Settings, split_address
from tidegate.control import ports
from tidegate.control.doctor import folder, gpu, machine
from tidegate.control.doctor.findings import size
from tidegate.errors import OperatorError
from tidegate.home import Home, find_home
from tidegate.models import catalogue, library

app = typer.Typer(add_completion=False)

ENGINE_PORTS = (8000, 8080, 11434)
"""Where vLLM, llama.cpp's server and Ollama listen by default."""
PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class RunningEngine:
    """An engine of somebody else's that answers on this machine."""

    url: str
    model: str


@dataclass(frozen=True)
class Found:
    """What the file is made from."""

    machine: str
    """In words."""
    listen: dict[str, str]
    """Free addresses of gateway, admin and chat."""
    models: tuple[tuple[str, str], ...] = ()
    """Name and source of each model that is here, the one to serve first."""
    engine: RunningEngine | None = None
    gpu: bool = False


@app.command()
def init(
    out: Annotated[Path, typer.Option("--out", help='File to write; "-" prints instead.')] = Path(FILE_NAME),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a short settings file from what is found here. A file that exists is not touched."""
    if str(out) == "-":
        print(render(look(find_home())), end="")
        return
    if out.exists() and not force:
        raise _exists(out)
    text = render(look(find_home()))
    try:
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _exists(out) from None
    except OSError as error:
        raise OperatorError(f"{out} cannot be written: {error.strerror}") from None
    print(f"{out} is written. `tidegate check-config` explains it, `tidegate up` starts with it.")


def look(home: Home) -> Found:
    """Look at processor, memory, GPU, ports, models, and engines that run on this machine."""
    facts, gpus = machine.gather(), gpu.gather().usable
    engines = running_engines(ENGINE_PORTS) if not folder.gather(home).ours else iter(())
    graphics = ", ".join(card.name for card in gpus) or "no GPU"
    cores = f"{facts.cores} core{'' if facts.cores == 1 else 's'}"
    return Found(
        machine=f"{cores}, {size(facts.memory_bytes)} of memory, {graphics}",
        listen=free_addresses(),
        models=_models(home.models),
        engine=next(engines, None),
        gpu=bool(gpus),
    )


def render(found: Found) -> str:
    """The text of the file. Pure."""
    return "\n".join(_lines(found)) + "\n"


def free_addresses() -> dict[str, str]:
    """The default address of each listener, or the next port up that is free."""
    settings, chosen = Settings(), dict[str, str]()
    usual = {name: split_address(getattr(settings, name).listen) for name in ("gateway", "admin", "chat")}
    taken: set[int] = set()
    for name, (host, first) in usual.items():
        reserved = taken | {port for _, port in usual.values() if port != first}
        port = next(port for port in range(first, 65_536) if port not in reserved and _is_free(f"{host}:{port}"))
        taken.add(port)
        chosen[name] = f"{host}:{port}"
    return chosen


def running_engines(at: Iterable[int]) -> Iterator[RunningEngine]:
    """Engines that answer with the name of a model on ports of this machine."""
    with httpx.Client(timeout=PROBE_TIMEOUT_S, trust_env=False) as http:
        for port in at:
            url = f"http://127.0.0.1:{port}"
            try:
                answer = http.get(f"{url}/v1/models")
                model = str(answer.json()["data"][0]["id"])
            except (httpx.HTTPError, ValueError, LookupError, TypeError):
                continue  # nobody there, or something else
            if answer.status_code == 200 and model and model.isprintable():
                yield RunningEngine(url, model)


def _lines(found: Found) -> Iterator[str]:
    yield f"# Settings of Tidegate, written by `tidegate init` for this machine: {found.machine}."
    yield "# `tidegate check-config` explains this file; `tidegate check-config --example` shows every setting."
    yield "# `tidegate up` starts with it, `tidegate reload` applies what you change."
    yield ""
    yield "[gateway]"
    yield '# The OpenAI API. For other machines too: ":8000", and a key (`tidegate up --lan` makes one).'
    yield f"listen = {_quoted(found.listen['gateway'])}"
    yield ""
    yield "[admin]"
    yield f"listen = {_quoted(found.listen['admin'])}"
    yield ""
    yield "[chat]"
    yield f"listen = {_quoted(found.listen['chat'])}"
    yield ""
    if found.engine is not None:
        yield f"# An engine answers at {found.engine.url}."
        yield "[[model]]"
        yield f"name = {_quoted(found.engine.model)}"
        yield ""
        yield "[[pool]]"
        yield 'name = "default"'
        yield f"model = {_quoted(found.engine.model)}"
        yield 'engine = "external"'
        yield f"urls = [{_quoted(found.engine.url)}]"
    elif found.models:
        (name, source), *others = found.models
        if others:
            yield f"# Also here: {', '.join(other for other, _ in others)}."
        yield "[[model]]"
        yield f"name = {_quoted(name)}"
        yield f"source = {_quoted(source)}"
    else:
        yield f"# Without a [[model]], `tidegate up` serves {catalogue.ERNIE.title} if a hub can be reached, else a demo model."
        yield "# [[model]]"
        yield f"# name = {_quoted(catalogue.ERNIE.name)}"
        yield f"# source = {_quoted(catalogue.ERNIE.name)}"
    if found.gpu:
        yield ""
        yield f"# There is a GPU: {gpu.INSTALL_VLLM}."


def _models(models: Path) -> tuple[tuple[str, str], ...]:
    names = dict.fromkeys(model.name for model in library.stored(models))
    found = [(name, name) for name in names]
    found += [(path.stem, str(path)) for path in library.by_hand(models) if path.stem not in names]
    return tuple(sorted(found, key=lambda model: model[0] != catalogue.ERNIE.name))


def _is_free(address: str) -> bool:
    try:
        ports.bind(address, "listen").close()
    except OperatorError:
        return False
    return True


def _exists(path: Path) -> OperatorError:
    return OperatorError(
        f"{path} exists already", hint="--force replaces it, --out writes another file, --out - prints"
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
