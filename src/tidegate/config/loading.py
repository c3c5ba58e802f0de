"""From flags, environment and file to checked settings; where each value came from is kept for messages.

The layers are merged here, as plain tables, and checked once. Types are strict: `"8"` in the file is no number. In a
variable, which can only hold text, it is.
"""

import importlib.util
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidegate.config import addresses, class_checks, complaints, fields
from tidegate.config.sections import PoolSettings, Settings
from tidegate.errors import SettingError

FILE_NAME = "tidegate.toml"
PREFIX = "TIDEGATE_"
SHORT_NAMES = {"TIDEGATE_HOME": ("store", "home")}
NO_SETTINGS = frozenset({"TIDEGATE_CONFIG", "TIDEGATE_HUB"})
MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 32
"""Tables and lists in each other; the deepest setting has five."""


@dataclass(frozen=True)
class Explained:
    """Settings, and where they came from."""

    settings: Settings
    file: Path | None
    origins: Mapping[str, str]
    """Of every value that was given, by dotted name (`model.1.name`): a file, `$VARIABLE`, or `the command line`."""
    unread: tuple[str, ...] = ()
    """Variables named TIDEGATE_… that are no setting."""


def find_file(explicit: Path | None, home: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The settings file: the one given, else $TIDEGATE_CONFIG, else ./tidegate.toml, else the data folder's."""
    name = "--config"
    if explicit is None and environ.get("TIDEGATE_CONFIG"):
        explicit, name = Path(environ["TIDEGATE_CONFIG"]), "$TIDEGATE_CONFIG"
    if explicit is not None:
        if not explicit.is_file():
            exists = "is not a regular file" if explicit.exists() else "does not exist"
            what = "is a folder, not a file" if explicit.is_dir() else exists
            raise SettingError(name, f"{explicit} {what}", hint="`tidegate init` writes a settings file")
        return explicit
    return next((path for path in (Path(FILE_NAME), home / FILE_NAME) if path.is_file()), None)


def load(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """The settings from flags (nested like the file), the environment, and `file`.

    Raises SettingError that names the setting, the place it came from, and what is wrong with it.
    """
    return explain(file, flags, environ).settings


def explain(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Explained:
    """As `load`, with the origin of every value."""
    merged = _Merged()
    if file is not None:
        merged.add(_relative_to(file.absolute().parent, _read(file)), str(file))
    unread = []
    for name, path in sorted(_variables(environ), key=lambda item: len(item[1])):
        if path:
            merged.add(_nested(path, _from_text(name, path, environ[name])), f"${name}")
        else:
            unread.append(name)
    merged.add(flags or {}, complaints.COMMAND_LINE)
    try:
        settings = Settings.model_validate_json(json.dumps(merged.values, default=str), strict=True)
    except ValidationError as error:
        raise complaints.setting_error(error, Settings, merged.origins) from None
    for position, pool in enumerate(settings.pool):
        _check_options(position, pool, merged.origins)
    check(settings)
    return Explained(settings, file, merged.origins, tuple(unread))


class _Merged:
    """Tables laid over each other, later ones on top; a list replaces a list."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def add(self, layer: Mapping[str, Any], origin: str) -> None:
        self._add(self.values, layer, origin, "")

    def _add(self, into: dict[str, Any], layer: Mapping[str, Any], origin: str, path: str) -> None:
        for key, value in layer.items():
            name = f"{path}{key}"
            if isinstance(value, Mapping):
                if not isinstance(into.get(key), dict):
                    self._forget(name)
                    into[key] = {}
                self._add(into[key], value, origin, f"{name}.")
                continue
            self._forget(name)
            into[key] = value
            for leaf in _leaves(value, name):
                self.origins[leaf] = origin

    def _forget(self, name: str) -> None:
        for known in [known for known in self.origins if known == name or known.startswith(f"{name}.")]:
            del self.origins[known]


def _leaves(value: Any, name: str) -> Iterator[str]:
    """Names of the values below; a list of plain values is one value."""
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for position, item in enumerate(value, 1):
            yield from _leaves(item, f"{name}.{position}")
    elif isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}")
    else:
        yield name


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise SettingError(str(file), "is larger than 1 MiB", hint="is it a settings file at all?")
        values = tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except OSError as error:
        raise SettingError(str(file), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingError(str(file), f"is not UTF-8 in line {line}", hint="save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        hint = 'text stands in quotes, as in listen = "127.0.0.1:8000"; tidegate.example.toml shows every setting'
        raise SettingError(str(file), f"is not TOML: {error}", hint=hint) from None
    except RecursionError:
        values = None
    if values is None or _too_deep(values):
        raise SettingError(str(file), "is nested too deeply", hint="is it a settings file at all?")
    return values


def _too_deep(values: Any) -> bool:
    level = [values]
    for _ in range(MAX_DEPTH):
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
    return bool(level)


def _relative_to(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Paths of the file count from the folder it is in, not from where the program happens to be started."""
    for path, field in fields.paths(Settings, values):
        if fields.is_path(field):
            *parents, last = path
            table: Any = values
            for part in parents:
                table = table[part]
            if isinstance(table[last], str) and table[last]:
                table[last] = str(folder / Path(table[last]).expanduser())
    return values


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Variables that are meant as settings, with the setting's path: empty where there is none of that name.

    A name without `__` is only taken where it is a section: container platforms make TIDEGATE_PORT and the like by
    themselves for a service named tidegate. Empty variables count as not set, as they do for TIDEGATE_HOME.
    """
    sections = fields.known(Settings)
    for name in environ:
        if not name.startswith(PREFIX) or name in NO_SETTINGS or not environ[name]:
            continue
        path = SHORT_NAMES.get(name) or tuple(name.removeprefix(PREFIX).lower().split("__"))
        if name in SHORT_NAMES and "__".join((PREFIX + path[0], *path[1:])).upper() in environ:
            continue
        yield name, path if len(path) > 1 or path[0] in sections else ()


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return dict(value)


def _from_text(name: str, path: tuple[str, ...], text: str) -> Any:
    """What a variable's text means for the setting at `path`."""
    field = fields.at(Settings, path)
    if field is None or fields.is_text(field):
        return text
    if fields.is_bool(field):
        word = text.strip().lower()
        return True if word in {"true", "1", "yes", "on"} else False if word in {"false", "0", "no", "off"} else text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if not fields.is_compound(field):
            return text  # no number, which is said with all other wrong types
    setting = ".".join(path)
    raise SettingError(
        setting, f"is not JSON in ${name}", hint='lists are written as JSON in a variable, as in ["a", "b"]'
    )


def _check_options(position: int, pool: PoolSettings, origins: Mapping[str, str]) -> None:
    model = PoolSettings.OPTIONS[pool.engine]
    try:
        model.model_validate_json(json.dumps(pool.options, default=str), strict=True)
    except ValidationError as error:
        where = ("pool", position, "options")
        unknown = {str(one["loc"][0]) for one in error.errors() if one["type"] == "extra_forbidden"}
        others = tuple(
            f'engine = "{name}"'
            for name, kind in PoolSettings.OPTIONS.items()
            if name != pool.engine and unknown & set(kind.model_fields)
        )
        raise complaints.setting_error(error, model, origins, where, others) from None


def check(settings: Settings) -> None:
    """What no single setting can know: names that must exist, ports that must differ. Raises SettingError."""
    seen: dict[str, str] = {}
    for name, address in settings.listeners().items():
        for other, taken in seen.items():
            if addresses.clash(address, taken):
                what = f"{address} is taken by {other}.listen"
                raise SettingError(f"{name}.listen", what, hint="give each of them a port of its own")
        seen[name] = address
    if (settings.gateway.tls_cert_file is None) != (settings.gateway.tls_key_file is None):
        given, missing = ("cert", "key") if settings.gateway.tls_cert_file else ("key", "cert")
        raise SettingError(f"gateway.tls_{missing}_file", f"is missing beside gateway.tls_{given}_file")
    _check_names(settings)
    class_checks.check(settings)


def _check_names(settings: Settings) -> None:
    _check_gpus(settings.pool)
    names: dict[str, int] = {}
    for position, model in enumerate(settings.model, 1):
        for name in (model.name, *model.aliases):
            owner = names.setdefault(name.lower(), position)
            if owner != position:
                setting = "name" if name == model.name else "aliases"
                raise SettingError(f"model.{position}.{setting}", f"{name!r} is already a name of model {owner}")
    models = {model.name for model in settings.model}
    pools: set[str] = set()
    for position, pool in enumerate(settings.pool, 1):
        if pool.name in pools:
            raise SettingError(f"pool.{position}.name", f"there are two pools named {pool.name!r}")
        pools.add(pool.name)
        if models and pool.model not in models:
            hint = complaints.nearest(pool.model, models) or f"it can be {', '.join(sorted(models))}"
            raise SettingError(f"pool.{position}.model", f"there is no [[model]] named {pool.model!r}", hint=hint)
        _check_fleet(f"pool.{position}", pool)
        if pool.engine == "external" and not pool.urls and pool.fleet != "dns":
            hint = 'as in urls = ["http://127.0.0.1:8100"]'
            raise SettingError(f"pool.{position}.urls", 'are missing; engine = "external" needs them', hint=hint)
        if pool.engine != "external" and pool.urls:
            raise SettingError(f"pool.{position}.urls", 'are for engine = "external" only')


def _check_gpus(pools: Sequence[PoolSettings]) -> None:
    """One replica on each GPU, and each GPU in one pool."""
    owners: dict[int, str] = {}
    for position, pool in enumerate(pools, 1):
        setting = f"pool.{position}.gpus"
        if pool.gpus and (pool.engine != "vllm" or pool.fleet != "local"):
            raise SettingError(setting, 'are for engine = "vllm" on this machine')
        if pool.gpus and pool.replicas > len(pool.gpus):
            hint = "one replica takes one GPU: name more of them, or set fewer replicas"
            raise SettingError(setting, f"are {len(pool.gpus)}, for {pool.replicas} replicas", hint=hint)
        for number in pool.gpus:
            if number in owners:
                raise SettingError(setting, f"GPU {number} is already one of pool {owners[number]!r}")
            owners[number] = pool.name


def _check_fleet(path: str, pool: PoolSettings) -> None:
    """Where its replicas are, and how many."""
    external = pool.engine == "external"
    if pool.fleet == "dns" and not external:
        raise SettingError(f"{path}.fleet", '"dns" is for engine = "external": nothing is started there')
    if pool.fleet == "ray" and external:
        raise SettingError(f"{path}.fleet", '"ray" is for engines that are started; external ones run already')
    if pool.fleet == "dns" and (not pool.dns.name or pool.urls):
        setting, what = ("urls", "are not for") if pool.urls else ("dns.name", "is missing with")
        hint = 'as in dns = { name = "vllm.default.svc:8000" }'
        raise SettingError(f"{path}.{setting}", f'{what} fleet = "dns"', hint=hint)
    if pool.fleet == "ray" and importlib.util.find_spec("ray") is None:
        hint = "pip install 'tidegate[ray]', here and on every node of the cluster"
        raise SettingError(f"{path}.fleet", '"ray" needs the package ray, which is not installed', hint=hint)
    least, most = pool.replicas_min, pool.replicas_max
    if (least is None) != (most is None):
        given, missing = ("max", "min") if least is None else ("min", "max")
        raise SettingError(f"{path}.replicas_{missing}", f"is missing beside {path}.replicas_{given}")
    if least is not None and most is not None:
        if external:
            raise SettingError(f"{path}.replicas_min", "external engines are not ours to start")
        if least > most:
            raise SettingError(f"{path}.replicas_min", f"{least} is more than replicas_max, {most}")
