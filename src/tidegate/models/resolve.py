"""From what was asked for (`auto`, `demo`, a name, `ORG/NAME`, a path) to files on this machine that are whole."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tidegate.errors import DownloadError, ModelError
from tidegate.gguf import read_header
from tidegate.home import Home
from tidegate.models import catalogue, demo, library, pull, turn_end
from tidegate.models.catalogue import CATALOGUE, DEMO, ERNIE, CatalogueModel, wanted_quantisations
from tidegate.models.hubs import REPOSITORY_ID, Hub, NoRepositoryError
from tidegate.models.library import SAFETENSORS, Stored
from tidegate.models.progress import Progress
from tidegate.models.pull import CONVERTED_BY_DEFAULT, Wish, slug
from tidegate.models.sentences import Language, Reason, which_answers
from tidegate.models.shape import read_shape

Format = Literal["gguf", "safetensors"]


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine, checked and whole."""

    name: str
    """Serving name."""
    aliases: tuple[str, ...]
    path: Path
    """The GGUF file, or the safetensors folder."""
    format: Format
    quantisation: str
    digest: str
    """SHA-256 over weights, quantisation and template: the version."""
    context_tokens: int | None
    """Positions the model was trained on."""
    languages: tuple[str, ...] = ()
    """What it is known to speak; empty for not known."""
    sentence: str = ""
    """Which model answers and why, for the terminal."""


@dataclass(frozen=True)
class Resolver:
    """Finds or gets models. Nothing is asked of a hub before it is needed."""

    home: Home
    hubs: Sequence[Hub]
    progress: Progress
    language: Language = "en"

    def resolve(self, request: str, *, quantisation: str = "auto", form: Format = "gguf") -> LocalModel:
        """The model that `request` names. Raises ModelError, DownloadError."""
        models = self.home.models
        if request == "auto":
            return self._auto(quantisation, form)
        if path := _as_path(request):
            return self._at(path, quantisation, form)
        if known := catalogue.find(request):
            return self._of_catalogue(known, quantisation, form)
        if (local := self._stored(request, quantisation, form)) is not None:
            return local
        hand_made = next((path for path in library.by_hand(models) if request in {path.name, path.stem}), None)
        if hand_made and form == "gguf":
            return self._at(hand_made, quantisation, form)
        if REPOSITORY_ID.fullmatch(request):
            return self._from_hub(request, quantisation, form)
        raise self._unknown(request)

    def _auto(self, quantisation: str, form: Format) -> LocalModel:
        """A model of the data folder, ERNIE first; else ERNIE from a hub; else the demo model."""
        if (here := self._best_here(quantisation, form)) is not None:
            return here
        try:
            found = self._get(Wish.of_catalogue(ERNIE), quantisation, form)
        except DownloadError as error:
            if form == SAFETENSORS:
                raise
            return self._demo("no hub", where=str(error))
        return self._local(found, "fetched", where=found.manifest.source.kind)

    def _best_here(self, quantisation: str, form: Format) -> LocalModel | None:
        wanted = (SAFETENSORS,) if form == SAFETENSORS else wanted_quantisations(quantisation)
        here = [model for model in library.stored(self.home.models) if model.variant in wanted]
        order = {ERNIE.name: 0, DEMO.name: 2}
        here.sort(key=lambda model: (order.get(model.name, 1), wanted.index(model.variant), -model.manifest.created_s))
        ernie_weights = library.find(self.home.models, ERNIE.name, SAFETENSORS)
        hand_made = library.by_hand(self.home.models) if form == "gguf" and quantisation == "auto" else []
        if here and here[0].name == ERNIE.name:
            return self._local(here[0], "here")
        if ernie_weights and form == "gguf":
            library.check(ernie_weights)
            how = CONVERTED_BY_DEFAULT if quantisation == "auto" else quantisation
            return self._local(pull.convert_stored(self.home.models, ernie_weights, how, self.progress), "here")
        if hand_made and (not here or here[0].name == DEMO.name):
            return self._at(hand_made[0], quantisation, form, reason="here")
        return self._local(here[0], "here") if here else None

    def _of_catalogue(self, known: CatalogueModel, quantisation: str, form: Format) -> LocalModel:
        if known.wheel is not None:
            if form == SAFETENSORS:
                raise ModelError(f"{known.title} comes as GGUF only", hint=f"a model with safetensors is {ERNIE.name}")
            return self._demo("asked")
        if (here := self._stored(known.name, quantisation, form)) is not None:
            return here
        return self._local(self._get(Wish.of_catalogue(known), quantisation, form), "asked")

    def _from_hub(self, repository: str, quantisation: str, form: Format) -> LocalModel:
        wish = Wish.of_repository(repository)
        if (here := self._stored(wish.name, quantisation, form)) is not None:
            return here
        try:
            return self._local(self._get(wish, quantisation, form), "asked")
        except NoRepositoryError as error:
            raise ModelError(str(error), hint=self._what_can_be_given()) from None

    def _get(self, wish: Wish, quantisation: str, form: Format) -> Stored:
        if form == SAFETENSORS:
            return pull.pull_safetensors(self.home.models, wish, hubs=self.hubs, progress=self.progress)
        return pull.pull_gguf(self.home.models, wish, quantisation, hubs=self.hubs, progress=self.progress)

    def _stored(self, name: str, quantisation: str, form: Format) -> LocalModel | None:
        """A finished model of that folder name; its weights converted where there is no fitting GGUF."""
        models = self.home.models
        variants = (SAFETENSORS,) if form == SAFETENSORS else wanted_quantisations(quantisation)
        found = [library.find(models, name, variant) for variant in (*variants, SAFETENSORS)]
        first = next((model for model in found if model is not None), None)
        if first is not None and form == "gguf" and first.variant == SAFETENSORS:
            library.check(first)
            how = CONVERTED_BY_DEFAULT if quantisation == "auto" else quantisation
            first = pull.convert_stored(models, first, how, self.progress)
        return self._local(first, "asked") if first else None

    def _demo(self, reason: Reason, *, where: str = "") -> LocalModel:
        models = self.home.models
        assert DEMO.wheel is not None  # noqa: S101 - data, held by a test
        with library.locked(models, DEMO.name, self.progress):
            found = library.find(models, DEMO.name, DEMO.wheel.quantisation)
            if found is None:
                try:
                    found = demo.pull(models, DEMO, self.progress)
                except DownloadError as error:
                    told = f"{error}; and before that: {where}" if where else str(error)
                    raise DownloadError(
                        told, hint=f"{error.hint}; or give a file of your own with --model PATH"
                    ) from None
        return self._local(found, reason, where=where)

    def _local(self, stored: Stored, reason: Reason, *, where: str = "") -> LocalModel:
        header = library.check(stored)
        known = catalogue.find(stored.name)
        languages = known.languages if known else ()
        title = known.title if known else stored.name
        name, aliases = (known.name, known.aliases) if known else _serving_name(stored)
        return LocalModel(
            name=name,
            aliases=aliases,
            path=stored.path,
            format="gguf" if header else "safetensors",
            quantisation=header.quantisation if header else "BF16",
            digest=stored.manifest.digest,
            context_tokens=header.context_tokens if header else read_shape(stored.folder).context_tokens,
            languages=languages,
            sentence=which_answers(
                f"{title} ({stored.variant})", reason, self.language, where=where, english_only=languages == ("en",)
            ),
        )

    def _at(self, path: Path, quantisation: str, form: Format, *, reason: Reason = "asked") -> LocalModel:
        """A file or folder that lies anywhere."""
        models = self.home.models
        if path.is_dir() and list(path.glob("*.safetensors")):
            how = CONVERTED_BY_DEFAULT if quantisation == "auto" else quantisation
            if form == "gguf":
                stored = pull.convert_folder(models, path, how, self.progress)
                return _named_after(path, self._local(stored, reason), self.language, reason)
            return _named_after(path, self._folder(path), self.language, reason)
        if path.is_dir() and len(files := sorted(path.glob("*.gguf"))) == 1:
            path = files[0]
        if path.is_dir() or path.suffix.lower() != ".gguf":
            raise ModelError(
                f"{path} is neither a GGUF file nor a folder with safetensors",
                hint="give a file that ends in .gguf, or a folder with config.json, *.safetensors and a tokenizer",
            )
        if form == SAFETENSORS:
            raise ModelError(
                f"{path} is a GGUF file, and safetensors are needed", hint="give a folder with safetensors"
            )
        header = read_header(path)
        if turn_end.is_missing(header):
            stored = pull.mend(models, path, self.progress)
            return _named_after(path, self._local(stored, reason), self.language, reason)
        local = LocalModel(
            name="",
            aliases=(),
            path=path,
            format="gguf",
            quantisation=header.quantisation,
            digest=library.digest_of_gguf(library.checksum(models, path), header),
            context_tokens=header.context_tokens,
        )
        return _named_after(path, local, self.language, reason)

    def _folder(self, path: Path) -> LocalModel:
        shape = read_shape(path)
        files = sorted(file for file in path.iterdir() if file.suffix in pull.KEPT_SUFFIXES)
        records = [library.FileRecord(file.name, 0, 0, library.checksum(self.home.models, file)) for file in files]
        digest = library.digest_of_folder(records)
        return LocalModel("", (), path, "safetensors", "BF16", digest, shape.context_tokens)

    def _unknown(self, request: str) -> ModelError:
        return ModelError(f"there is no model {request!r}", hint=self._what_can_be_given())

    def _what_can_be_given(self) -> str:
        here = dict.fromkeys(model.name for model in library.stored(self.home.models))
        files = [path.name for path in library.by_hand(self.home.models)]
        names = dict.fromkeys(["auto", "demo", *(model.name for model in CATALOGUE), *here, *files])
        return f"give one of {', '.join(names)}; ORG/NAME of a hub; or the path of a .gguf file or a safetensors folder"


def _as_path(request: str) -> Path | None:
    """`request` as a path, where it is meant as one. Raises ModelError where it is, and nothing is there."""
    path = Path(request).expanduser()
    if path.exists() and (
        "/" in request or path.suffix.lower() == ".gguf" or (path.is_dir() and any(path.glob("*.safetensors")))
    ):
        return path.absolute()
    if request.startswith(("/", "./", "../", "~")) or (
        path.suffix.lower() in {".gguf", ".safetensors"} and "/" in request
    ):
        raise ModelError(
            f"{path.absolute()} does not exist", hint="give the path of a .gguf file or of a folder with safetensors"
        )
    return None


def _serving_name(stored: Stored) -> tuple[str, tuple[str, ...]]:
    """A model from a hub is served under its repository's last part, and known by the whole id too."""
    where = stored.manifest.source.where
    if REPOSITORY_ID.fullmatch(where):
        return slug(where.rpartition("/")[2]), (where,)
    return slug(Path(where).stem if where else stored.name), ()


def _named_after(path: Path, local: LocalModel, language: Language, reason: Reason) -> LocalModel:
    """A model of a path takes its names from the catalogue where the path's name is in it, else from the path."""
    stem = path.stem if path.suffix.lower() == ".gguf" else path.name
    bare = stem.removesuffix(local.quantisation).rstrip("-_.")
    known = catalogue.find(bare) or catalogue.find(stem)
    languages = known.languages if known else ()
    return replace(
        local,
        name=known.name if known else slug(stem),
        aliases=known.aliases if known else (),
        languages=languages,
        sentence=which_answers(f"{stem} ({local.quantisation})", reason, language, english_only=languages == ("en",)),
    )
