"""From settings and resolved models to what has to run: models as clients know them, and one spec for each replica.

Pure. A spec's digest covers everything a process is started with; control adopts a process whose digest is the same,
and replaces one whose digest is not.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import msgspec

from tidegate import __version__
from tidegate.config import ModelSettings, PoolSettings, RayNeeds, Section, Settings
from tidegate.engines.base import ModelFiles
from tidegate.fleet import dns
from tidegate.types import ModelView

DEFAULT_POOL = "default"

Form = Literal["gguf", "safetensors"]
FORMS: Final[Mapping[str, Form]] = {"llamacpp": "gguf", "vllm": "safetensors"}
"""What the engines that load models load."""


class Need(NamedTuple):
    """Files that have to be here: a model, as one kind of engine loads it."""

    model: str
    form: Form = "gguf"


@dataclass(frozen=True)
class ReplicaSpec:
    """One replica that has to run."""

    id: str
    pool: str
    model: str
    engine: str
    """`llamacpp`, `vllm`, `external` or `fake`."""
    options: Section
    files: ModelFiles | None = None
    url: str = ""
    """Of an engine that is not ours to start."""
    fleet: str = "local"
    """`local`, `ray` or `dns`: where it is."""
    needs: RayNeeds | None = None
    """What it takes of a cluster."""
    gpus: tuple[int, ...] = ()
    """The one it gets, by number; empty for any."""
    number: int = 0
    starting: int = field(default=1, compare=False)
    """Replicas of this machine that start in this moment, itself included: none of them has its memory yet."""
    siblings: int = field(default=1, compare=False)
    """Replicas of its pool, which share the machine's cores; another number of them is no reason to start it anew."""
    digest: str = field(default="", compare=False)

    @property
    def loaded(self) -> ModelFiles:
        """The files that its engine loads. Raises LookupError for an engine that loads none, or before they are found."""
        if self.files is None:
            raise LookupError(f"{self.id} has no files of a model")
        return self.files


@dataclass(frozen=True)
class Plan:
    """What has to run."""

    models: tuple[ModelView, ...] = ()
    replicas: tuple[ReplicaSpec, ...] = ()


def with_defaults(settings: Settings) -> Settings:
    """Settings whose pools and models are all named: without any, one pool of the best model to be had."""
    models, pools = list(settings.model), list(settings.pool)
    named = {model.name for model in models}
    for pool in pools:  # a pool may name a model of the catalogue, or a fake one, without a [[model]] of its own
        if pool.model not in named:
            named.add(pool.model)
            models.append(ModelSettings(name=pool.model, source=pool.model))
    if not models:
        models.append(ModelSettings(name="auto"))
    served = {pool.model for pool in pools}
    for position, model in enumerate(model for model in models if model.name not in served):
        free = not position and not any(pool.name == DEFAULT_POOL for pool in pools)
        pools.append(PoolSettings(name=DEFAULT_POOL if free else _pool_name(model.name, pools), model=model.name))
    return settings.model_copy(update={"model": tuple(models), "pool": tuple(pools)})


def scaled(settings: Settings, replicas: Mapping[str, int]) -> Settings:
    """Settings whose pools have as many replicas as is said here; what is said of others counts for nothing."""
    pools = tuple(
        pool.model_copy(update={"replicas": replicas[pool.name]}) if pool.name in replicas else pool
        for pool in settings.pool
    )
    return settings.model_copy(update={"pool": pools})


def sources(settings: Settings) -> dict[Need, ModelSettings]:
    """The models whose files have to be here: those of pools that load them."""
    needs = {Need(pool.model, FORMS[pool.engine]) for pool in settings.pool if pool.engine in FORMS}
    return {
        need: model
        for model in settings.model
        for need in (Need(model.name), Need(model.name, "safetensors"))
        if need in needs
    }


def make_plan(
    settings: Settings,
    files: Mapping[Need, ModelFiles],
    served: Mapping[str, str] | None = None,
    addresses: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Plan:
    """The plan for settings with defaults, the files of each model in `sources`, and what external models call themselves.

    A model named `auto` takes the name of what was found for it. `addresses` are the URLs found by pools' names.
    """
    taken = {name.lower() for model in settings.model for name in (model.name, *model.aliases)}
    known = {
        need.model: found for need, found in sorted(files.items(), key=lambda item: item[0], reverse=True)
    }  # names as GGUF has them first
    models = tuple(_model_view(model, known.get(model.name), taken, served or {}) for model in settings.model)
    names = {model.name: view.name for model, view in zip(settings.model, models, strict=True)}
    replicas: list[ReplicaSpec] = []
    for pool in settings.pool:
        found = pool.fleet == "dns"
        urls = addresses.get(pool.name, ()) if found else tuple(url.rstrip("/") for url in pool.urls)
        count = len(urls) if pool.engine == "external" else pool.replicas
        form = FORMS.get(pool.engine)
        for number in range(count):
            spec = ReplicaSpec(
                id=f"{pool.name}-{dns.label(urls[number]) if found else number}",
                pool=pool.name,
                model=names[pool.model],
                engine=pool.engine,
                options=pool.engine_options(),
                files=files.get(Need(pool.model, form)) if form is not None else None,
                url=urls[number] if pool.engine == "external" else "",
                fleet=pool.fleet,
                gpus=(pool.gpus[number % len(pool.gpus)],) if pool.gpus else (),
                needs=pool.ray if pool.fleet == "ray" else None,
                number=number,
                siblings=count,
            )
            replicas.append(_with_digest(spec))
    return Plan(models, tuple(replicas))


def _model_view(
    model: ModelSettings, files: ModelFiles | None, taken: set[str], served: Mapping[str, str]
) -> ModelView:
    name = model.name
    found = files.name if files is not None else served.get(name, "")
    if name == "auto" and found:
        name = found
    also = [found, *(files.aliases if files is not None else ())]
    aliases = dict.fromkeys([*model.aliases, *(alias for alias in also if alias and alias.lower() not in taken)])
    aliases.pop(name, None)
    return ModelView(
        name=name,
        aliases=tuple(aliases),
        defaults=model.defaults.sampling(),
        context_tokens=files.context_tokens if files is not None else None,
    )


def _pool_name(model: str, pools: list[PoolSettings]) -> str:
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in model.lower())
    base = letters.rsplit("/", 1)[-1].strip("-")[:24] or "pool"
    names = {pool.name for pool in pools}
    return next(
        name for number in range(len(names) + 1) if (name := f"{base}-{number}" if number else base) not in names
    )


def _with_digest(spec: ReplicaSpec) -> ReplicaSpec:
    what: dict[str, object] = {
        "engine": spec.engine,
        "model": spec.model,
        "options": spec.options.model_dump(mode="json"),
        "path": str(spec.files.path) if spec.files else "",
        "version": spec.files.digest if spec.files else "",
        "url": spec.url,
    }
    if spec.needs is not None:
        what["ray"] = spec.needs.model_dump(mode="json")
    if spec.gpus:
        what["gpus"] = spec.gpus
    return replace(spec, digest=digest(what))


def digest(what: Mapping[str, object]) -> str:
    """The digest of what a process is started with; another version of the code, or another Python, is another process."""
    whole = {**what, "code": __version__, "python": sys.executable}
    return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()[:16]
