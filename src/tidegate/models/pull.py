"""Bringing a model into the data folder: from a hub as GGUF or safetensors, or by conversion of the latter."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import DownloadError, ModelError
from tidegate.gguf import read_header
from tidegate.models import library, turn_end
from tidegate.models.catalogue import CatalogueModel, HubName, wanted_quantisations
from tidegate.models.download import Wanted, check_free_space, fetch, part_bytes, sha256_of
from tidegate.models.hubs import Hub, HubFile, NoRepositoryError, Repository, client, first_to_answer
from tidegate.models.library import SAFETENSORS, FileRecord, Source, Stored
from tidegate.models.progress import Progress
from tidegate.models.shape import QUANTISATIONS

CONVERTED_BY_DEFAULT = "Q8_0"
SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
KEPT_SUFFIXES = (".safetensors", ".json", ".model", ".jinja")
"""Files of a repository that an engine reads; no code, no pictures."""


@dataclass(frozen=True)
class Wish:
    """A model to be had from hubs."""

    name: str
    """Its folder below `models/`."""
    title: str
    gguf: Mapping[HubName, str]
    safetensors: Mapping[HubName, str]
    licence: str = ""

    @classmethod
    def of_catalogue(cls, model: CatalogueModel) -> "Wish":
        return cls(model.name, model.title, dict(model.gguf), dict(model.safetensors), model.licence)

    @classmethod
    def of_repository(cls, repository: str) -> "Wish":
        everywhere: dict[HubName, str] = {"huggingface": repository, "modelscope": repository}
        return cls(repository.replace("/", "--").casefold(), repository, everywhere, everywhere)


def pull_gguf(models: Path, wish: Wish, quantisation: str, *, hubs: Sequence[Hub], progress: Progress) -> Stored:
    """A GGUF of `wish`: downloaded where a hub has one, else converted from the original weights.

    Raises DownloadError or ModelError.
    """
    try:
        repository = first_to_answer(hubs, wish.gguf)
        file = choose_gguf(repository, quantisation)
    except NoRepositoryError:
        file = None
    if file is not None:
        return _download_gguf(models, wish, repository, file, progress)
    wanted = CONVERTED_BY_DEFAULT if quantisation == "auto" else quantisation
    if wanted not in QUANTISATIONS:
        raise ModelError(
            f"no hub has {wish.title} as {wanted}", hint=f"weights are converted to {', '.join(QUANTISATIONS)}"
        )
    weights = library.find(models, wish.name, SAFETENSORS)
    weights = weights or pull_safetensors(models, wish, hubs=hubs, progress=progress)
    return convert_stored(models, weights, wanted, progress)


def choose_gguf(repository: Repository, quantisation: str) -> HubFile | None:
    """The best file of the repository for that quantisation, by the file names' endings; None for none."""
    files = [
        file
        for file in repository.matching(".gguf")
        if "mmproj" not in file.path.lower() and not SHARD.search(file.path)
    ]
    for wanted in wanted_quantisations(quantisation):
        ending = re.compile(rf"(^|[-_./]){wanted}\.gguf$", re.IGNORECASE)
        if found := next((file for file in files if ending.search(file.path)), None):
            return found
    return files[0] if quantisation == "auto" and len(files) == 1 else None


def _download_gguf(models: Path, wish: Wish, repository: Repository, file: HubFile, progress: Progress) -> Stored:
    ending = re.search(r"(BF16|F16|F32|I?Q\d\w*)\.gguf$", file.path, re.IGNORECASE)
    variant = ending[1].upper() if ending else "GGUF"
    with library.locked(models, wish.name, progress):
        present = library.find(models, wish.name, variant)
        if present and file.sha256 and present.manifest.source.digest == file.sha256 and _whole(present, progress):
            progress.say(f"{wish.title} ({variant}) is here and current")
            return present
        staging = library.staging_of(models, wish.name, variant)
        (announced,) = _fetch_files(repository, [file], staging, progress)
        main = Path(file.path).name
        target = staging / main
        if target != staging / file.path:
            (staging / file.path).replace(target)
        sha256 = sha256_of(target) if turn_end.declare(target, target) else announced.sha256
        return library.install_gguf(
            models,
            staging,
            main,
            sha256,
            name=wish.name,
            variant=variant,
            source=Source(repository.hub.name, repository.id, repository.revision, announced.sha256),
            licence=repository.licence or wish.licence,
        )


def pull_safetensors(models: Path, wish: Wish, *, hubs: Sequence[Hub], progress: Progress) -> Stored:
    """The original weights, with configuration and tokenizer. Raises DownloadError."""
    repository = first_to_answer(hubs, wish.safetensors)
    files = wanted_files(repository)
    with library.locked(models, wish.name, progress):
        present = library.find(models, wish.name, SAFETENSORS)
        if present and is_current(present, repository) and _whole(present, progress):
            progress.say(f"{wish.title} ({SAFETENSORS}) is here and current")
            return present
        staging = library.staging_of(models, wish.name, SAFETENSORS)
        records = _fetch_files(repository, files, staging, progress)
        manifest = library.new_manifest(
            wish.name,
            SAFETENSORS,
            "",
            records,
            digest=library.digest_of_folder(records),
            source=Source(repository.hub.name, repository.id, repository.revision),
            licence=repository.licence or wish.licence,
        )
        return library.install(models, staging, manifest)


def _whole(present: Stored, progress: Progress) -> bool:
    """Whether what is here can stay; what cannot is got anew."""
    try:
        library.check(present)
    except ModelError as error:
        progress.say(str(error))
        return False
    return True


def wanted_files(repository: Repository) -> list[HubFile]:
    """The files of a safetensors repository that an engine reads. Raises DownloadError where there are no weights."""
    files = [file for file in repository.matching(*KEPT_SUFFIXES) if "/" not in file.path]
    if not any(file.path.endswith(".safetensors") for file in files):
        has = ", ".join(file.path for file in repository.matching(".gguf")[:20])
        raise DownloadError(
            f"{repository.id} on {repository.hub.name} has neither a fitting GGUF file nor safetensors",
            hint=f"choose a quantisation that it has: {has}" if has else "give another repository",
        )
    return files


def is_current(model: Stored, repository: Repository) -> bool:
    """Whether the hub still has what was downloaded, by checksums: the same on either hub."""
    if model.manifest.main:
        return any(file.sha256 == model.manifest.source.digest for file in repository.matching(".gguf"))
    here = {file.path: file for file in model.manifest.files}
    there = {file.path: file for file in wanted_files(repository)}
    return here.keys() == there.keys() and all(
        here[path].size_bytes == file.size_bytes and file.sha256 in {"", here[path].sha256}
        for path, file in there.items()
    )


def _fetch_files(
    repository: Repository, files: Sequence[HubFile], staging: Path, progress: Progress
) -> list[FileRecord]:
    staging.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = [
        Wanted(repository.url(file), staging / file.path, file.size_bytes, file.sha256, file.git_sha1) for file in files
    ]
    missing = sum(item.size_bytes - part_bytes(item) for item in wanted if not item.target.exists())
    check_free_space(staging, missing, repository.id)
    with client(repository.hub) as http:
        return [
            library.record(staging, file.path, fetch(http, item, progress))
            for file, item in zip(files, wanted, strict=True)
        ]


def convert_stored(models: Path, weights: Stored, quantisation: str, progress: Progress) -> Stored:
    """A GGUF made from safetensors of the data folder; the one made before where there is one."""
    source = Source(
        "converted", weights.manifest.source.where, weights.manifest.source.revision, weights.manifest.digest
    )
    return _convert(
        models,
        weights.folder,
        weights.name,
        quantisation,
        source=source,
        licence=weights.manifest.licence,
        progress=progress,
    )


def convert_folder(models: Path, folder: Path, quantisation: str, progress: Progress) -> Stored:
    """A GGUF made from a safetensors folder that lies anywhere; its name carries the weights' digest."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in KEPT_SUFFIXES)
    digest = library.digest_of_folder([FileRecord(path.name, 0, 0, library.checksum(models, path)) for path in files])
    return _convert(
        models,
        folder,
        f"{slug(folder.name)}-{digest[:8]}",
        quantisation,
        source=Source("converted", str(folder.resolve()), "", digest),
        licence="",
        progress=progress,
    )


def _convert(
    models: Path, folder: Path, name: str, quantisation: str, *, source: Source, licence: str, progress: Progress
) -> Stored:
    from tidegate.models.convert import convert  # numpy and gguf take a quarter of a second to load

    with library.locked(models, name, progress):
        present = library.find(models, name, quantisation)
        if present and present.manifest.source.digest == source.digest and _whole(present, progress):
            return present
        staging = library.staging_of(models, name, quantisation)
        staging.mkdir(mode=0o700, parents=True, exist_ok=True)
        main = f"{name}-{quantisation}.gguf"
        convert(folder, staging / main, quantisation, progress, name=name)
        return library.install_gguf(
            models,
            staging,
            main,
            sha256_of(staging / main),
            name=name,
            variant=quantisation,
            source=source,
            licence=licence,
        )


def mend(models: Path, path: Path, progress: Progress) -> Stored:
    """A copy in the data folder of somebody's own GGUF, in which the end of a turn is named; made once."""
    sha256 = library.checksum(models, path)
    name, variant = f"{slug(path.stem)}-{sha256[:8]}", read_header(path).quantisation
    with library.locked(models, name, progress):
        present = library.find(models, name, variant)
        if present and _whole(present, progress):
            return present
        staging = library.staging_of(models, name, variant)
        staging.mkdir(mode=0o700, parents=True, exist_ok=True)
        turn_end.declare(path, staging / path.name)
        return library.install_gguf(
            models,
            staging,
            path.name,
            sha256_of(staging / path.name),
            name=name,
            variant=variant,
            source=Source("converted", str(path.resolve()), "", sha256),
            licence="",
        )


def slug(name: str) -> str:
    """A file's or folder's name as a serving name."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.casefold()).strip("-.") or "model"
