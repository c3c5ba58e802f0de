"""Models in bundles: packed as they lie in the data folder, and put into another one."""

import shutil
from pathlib import Path

import msgspec

from tidegate import bundle
from tidegate.bundle import Contents, Source
from tidegate.errors import ModelError, OperatorError
from tidegate.models import library
from tidegate.models.download import check_free_space
from tidegate.models.library import Manifest, Stored
from tidegate.models.progress import Progress

PREFIX = "models"


def sources(model: Stored) -> list[Source]:
    """The files of a model, whole. Raises ModelError where it is not."""
    library.check(model)
    folder = f"{PREFIX}/{model.name}/{model.variant}"
    return [Source(model.folder / file.path, f"{folder}/{file.path}") for file in model.manifest.files]


def manifests(contents: Contents) -> list[Manifest]:
    """The models in a bundle. Raises OperatorError."""
    try:
        return [msgspec.json.decode(raw, type=Manifest) for raw in contents.models]
    except msgspec.DecodeError:
        raise OperatorError("the bundle's models are described as another version of Tidegate does it") from None


def take(models: Path, file: Path, contents: Contents, manifest: Manifest, progress: Progress) -> Stored:
    """Bring one model of a bundle into the data folder; the one that is there where it is the same. Raises OperatorError."""
    _check_name(manifest.name)
    _check_name(manifest.variant)
    title = f"{manifest.name} ({manifest.variant})"
    with library.locked(models, manifest.name, progress):
        present = library.find(models, manifest.name, manifest.variant)
        if present is not None and present.manifest.digest == manifest.digest and _whole(present):
            progress.say(f"{title} is here and current")
            return present
        size = sum(one.size_bytes for one in manifest.files)
        check_free_space(models, size, title)
        staging = library.staging_of(models, manifest.name, manifest.variant)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700, parents=True)
        prefix = f"{PREFIX}/{manifest.name}/{manifest.variant}/"
        with progress.step(f"unpacking {title}", size) as step:
            bundle.extract(file, contents, prefix, staging, step)
        records = []
        for one in manifest.files:
            if not (staging / one.path).is_file():
                raise ModelError(f"{file} lacks {one.path} of {title}", hint="make the bundle anew")
            records.append(library.record(staging, one.path, one.sha256))
        return library.install(models, staging, msgspec.structs.replace(manifest, files=tuple(records)))


def _whole(model: Stored) -> bool:
    try:
        library.check(model)
    except ModelError:
        return False
    return True


def _check_name(name: str) -> None:
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise OperatorError(f"the bundle names a model {name!r}, which is no name")
