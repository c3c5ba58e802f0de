"""Which engine of ours serves: the one that `--engine` names, or, where no pool is set, what fits this machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tidegate import gpus as known
from tidegate import nvml
from tidegate.config import EnginesSettings, PoolSettings, Settings
from tidegate.control.state import Records
from tidegate.engines import environments
from tidegate.errors import SettingError
from tidegate.fleet.local import is_alive
from tidegate.gpus import Gpu
from tidegate.home import Home
from tidegate.models import catalogue
from tidegate.types import DialectName

OURS: Final = ("vllm", "llamacpp")
LEAST_BYTES: Final = 3 * 1024**3
"""Free memory of a GPU that the reference model and a useful KV cache fit into."""


@dataclass(frozen=True)
class Own:
    """An engine of ours for every model."""

    engine: Literal["vllm", "llamacpp"]
    replicas: int | None = None
    """None for as many as the settings say."""


def asked(engines: Sequence[str]) -> Own | None:
    """What `--engine` names of ours; None where it names URLs, or nothing. Raises SettingError."""
    named = [one for one in engines if one in OURS]
    if not named:
        return None
    if len(engines) > 1:
        raise SettingError("--engine", "names one engine of ours, or URLs of engines that run already")
    return Own("vllm" if named[0] == "vllm" else "llamacpp")


def fitting(
    settings: Settings, model: str | None, home: Home, read_gpus: Callable[[], Sequence[Gpu]] = lambda: nvml.read().gpus
) -> Own | None:
    """VLLM where no pool is set, it is installed, and a GPU is free; None leaves everything as it is."""
    if settings.pool or environments.find(home.engines) is None:
        return None
    sources = [model] if model is not None else [one.source for one in settings.model]
    if any(map(_only_gguf, sources)):
        return None
    count = len(known.free(read_gpus(), LEAST_BYTES)) + _left_running(home)
    return Own("vllm", count) if count else None


def _left_running(home: Home) -> int:
    """Engines on GPUs that an earlier control left: they are to be adopted, and their GPUs are not free for others."""
    return sum(record.dialect is DialectName.VLLM and is_alive(record.id) for record in Records.load(home).all())


def pools(own: Own, base: Settings, model: str | None) -> list[dict[str, Any]]:
    """The pools that `own` means, with the options and the number of replicas that the settings have for such pools."""
    held = next((pool for pool in base.pool if pool.engine == own.engine), None)
    replicas = own.replicas or (held.replicas if held is not None else 1)
    common = {"engine": own.engine, "replicas": replicas, "options": held.options if held is not None else {}}
    names = ["auto"] if model is not None or not base.model else [one.name for one in base.model]
    return [{"name": _pool_name(number, base.pool), "model": name, **common} for number, name in enumerate(names)]


def prepare(own: Own, settings: Settings, home: Home, bundle: Path | None) -> None:
    """Install vLLM where it was asked for by name and is neither here nor named by the settings. Raises OperatorError."""
    named = any(pool.options.get("python") or pool.options.get("command") for pool in _of(settings, own.engine))
    if own.engine == "vllm" and not named and environments.find(home.engines) is None:
        _install(home, settings.engines, bundle)


def unpack(bundle: Path, settings: Settings, home: Home) -> None:
    """Bring in what a bundle holds and is not here yet: models, and the engine. Raises OperatorError."""
    from tidegate import bundle as bundles
    from tidegate.cli.bundle import take_models

    contents = bundles.read(bundle)
    if contents.models:
        take_models(bundle, home.models)
    held = contents.engine
    if held is not None and environments.find(home.engines, held.version) is None:
        _install(home, settings.engines, bundle)


def _install(home: Home, settings: EnginesSettings, bundle: Path | None) -> None:
    from tidegate.cli.engines import install_vllm

    install_vllm(home, settings, bundle=bundle)


def _of(settings: Settings, engine: str) -> list[PoolSettings]:
    return [pool for pool in settings.pool if pool.engine == engine]


def _only_gguf(source: str) -> bool:
    found = catalogue.find(source)
    return source.lower().endswith(".gguf") or (found is not None and found.wheel is not None)


def _pool_name(number: int, held: Sequence[PoolSettings]) -> str:
    """`default`, then the names that the settings give, so that a replica keeps its name."""
    names = [pool.name for pool in held]
    return names[number] if number < len(names) else "default" if not number else f"default-{number}"
