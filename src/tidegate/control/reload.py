"""What changed between two settings, and what it takes to apply each change. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from tidegate.config import Settings


class Effect(StrEnum):
    """What applying a change takes."""

    LIVE = "live"
    """Nothing stops."""
    REPLICAS = "replicas"
    """Replicas are started, stopped or replaced."""
    RESTART = "restart"
    """`tidegate up` has to be started again."""


class Change(msgspec.Struct, frozen=True):
    """One setting that differs; None where it is not set."""

    setting: str
    old: Any
    new: Any
    effect: Effect


class ReloadAnswer(msgspec.Struct, frozen=True):
    """What a reload found, and whether it was applied."""

    changes: tuple[Change, ...]
    applied: bool


RESTART = {
    "gateway.listen",
    "gateway.allow_anonymous",
    "gateway.tls_cert_file",
    "gateway.tls_key_file",
    "admin",
    "chat",
    "store",
    "ray",
    "log.format",
    "log.max_bytes",
    "log.backups",
}
"""Settings, or whole sections, that are read once; every other one is applied at once."""


NAMED_LISTS = {"model", "pool", "class", "tenant"}


def differences(old: Settings, new: Settings) -> tuple[Change, ...]:
    """Every setting that differs, in the order of the settings file. Models, pools, classes and tenants are matched by name."""
    before, after = _flat(old), _flat(new)
    return tuple(
        Change(name, before.get(name), after.get(name), effect_of(name))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    )


def pools_resized(changes: Iterable[Change]) -> tuple[str, ...]:
    """The pools whose number of replicas the settings change."""
    parts = (change.setting.split(".") for change in changes)
    return tuple(part[1] for part in parts if part[0] == "pool" and part[2:] == ["replicas"])


def effect_of(setting: str) -> Effect:
    """What a change of this setting takes."""
    section, _, key = setting.partition(".")
    if section in RESTART or setting in RESTART:
        return Effect.RESTART
    if (
        section == "pool"
        or setting == "engines.stage_to"
        or (section == "model" and key.rpartition(".")[2] in {"source", "quantisation"})
    ):
        return Effect.REPLICAS
    return Effect.LIVE


def applicable(running: Settings, new: Settings) -> Settings:
    """The new settings as far as they can be applied now; what needs a restart stays as it runs."""
    update: dict[str, Any] = {name: getattr(new, name) for name in ("model", "pool", "klass", "rule", "tenant")}
    for section in ("gateway", "admin", "chat", "store", "log", "limits", "report"):
        held, wanted = getattr(running, section), getattr(new, section)
        fixed = {
            name: getattr(held, name)
            for name in type(held).model_fields
            if effect_of(f"{section}.{name}") is Effect.RESTART
        }
        update[section] = wanted.model_copy(update=fixed)
    return running.model_copy(update=update)


def _flat(settings: Settings) -> dict[str, Any]:
    return dict(_walk("", settings.model_dump(mode="json", by_alias=True)))


def _walk(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and not path.endswith(".options"):
        for name, inner in value.items():
            yield from _walk(f"{path}.{name}" if path else str(name), inner)
    elif path == "rule":  # rules have no names, and their order matters
        for position, entry in enumerate(value, 1):
            yield from _walk(f"{path}.{position}", entry)
    elif path in NAMED_LISTS:
        for entry in value:
            yield from _walk(f"{path}.{entry['name']}", {k: v for k, v in entry.items() if k != "name"})
    elif value is not None:
        yield path, value
