"""What can be taken away without losing a model: partial downloads, and conversions of weights that have changed."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.models import library
from tidegate.models.in_use import users_of
from tidegate.models.library import OLD, SAFETENSORS, STAGING, Stored


@dataclass(frozen=True)
class Pruned:
    """Something that was taken away."""

    path: Path
    freed_bytes: int
    why: str


def prune(models: Path) -> list[Pruned]:
    """Take away what nobody needs. What another process is writing, or an engine has open, stays."""
    return [*_partial(models), *_superseded(models)]


def _partial(models: Path) -> Iterator[Pruned]:
    for prefix, why in ((STAGING, "a download or conversion that did not end"), (OLD, "an older version")):
        for folder in sorted(models.glob(f"{prefix}*")):
            name = folder.name.removeprefix(prefix).partition("@")[0]
            with library.try_locked(models, name) as mine:
                if mine:
                    freed = size_of(folder)
                    shutil.rmtree(folder)
                    yield Pruned(folder, freed, why)


def _superseded(models: Path) -> Iterator[Pruned]:
    stored = library.stored(models)
    for model in stored:
        if (why := _why_superseded(model, stored)) and not users_of(model.path):
            yield Pruned(model.folder, library.remove(models, model), why)


def _why_superseded(model: Stored, stored: list[Stored]) -> str:
    """Why a conversion is of no more use; empty where it is."""
    source = model.manifest.source
    if source.kind != "converted":
        return ""
    if Path(source.where).is_absolute():
        newer = any(
            (other.manifest.source.where, other.variant) == (source.where, model.variant)
            and other.manifest.created_s > model.manifest.created_s
            for other in stored
        )
        gone = not Path(source.where).exists()
        return f"{source.where} has changed since" if newer else f"{source.where} is gone" if gone else ""
    weights = next((other for other in stored if (other.name, other.variant) == (model.name, SAFETENSORS)), None)
    changed = weights is not None and weights.manifest.digest != source.digest
    return "its weights have changed since" if changed else ""


def size_of(folder: Path) -> int:
    """Bytes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
