"""`tidegate bundle`: an engine's wheels and models in one file, for a machine without a network."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidegate import bundle
from tidegate.cli.engines import folder_and_settings, found_kind, kind_of
from tidegate.engines import wheelhouse
from tidegate.engines.install import Wish
from tidegate.engines.vllm_releases import DEFAULT, Release
from tidegate.errors import ModelError, OperatorError
from tidegate.models import bundled, catalogue, library
from tidegate.models.library import Stored
from tidegate.models.progress import for_terminal

app = typer.Typer(add_completion=False)
GIB = 1024**3


@app.command(name="bundle")
def make(  # noqa: PLR0917 - typer reads flags, which have no position
    out: Annotated[Path, typer.Option("--out", help="The file to write.")],
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Of `tidegate models list`; repeatable. All, if none.")
    ] = None,
    no_models: Annotated[bool, typer.Option("--no-models", help="Wheels alone.")] = False,
    no_engine: Annotated[bool, typer.Option("--no-engine", help="Models alone.")] = False,
    version: Annotated[str, typer.Option("--version", help="Of vLLM.")] = DEFAULT,
    cpu: Annotated[bool, typer.Option("--cpu", help="vLLM for the processor, even where there is a GPU.")] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="vLLM for NVIDIA GPUs, even where none is found.")] = False,
    pip_arg: Annotated[list[str] | None, typer.Option("--pip-arg", help="Handed to pip; repeatable.")] = None,
    python: Annotated[Path | None, typer.Option(help="Python that the wheels are for.")] = None,
) -> None:
    """Pack vLLM's wheels and models into one file; --from of `engines install`, `models pull` and `up` take it."""
    home, settings = folder_and_settings()
    out = out.absolute()
    if not out.parent.is_dir():
        raise OperatorError(f"there is no folder {out.parent}", hint="make it, or name another --out")
    models = [] if no_models else _chosen(home.models, model or [])
    if no_engine and not models:
        raise OperatorError("there is nothing to pack", hint="pull a model first (`tidegate models pull`)")
    sources = [source for one in models for source in bundled.sources(one)]
    engine, progress = None, for_terminal()
    with ExitStack() as stack:
        if not no_engine:
            release = Release(version, kind_of(cpu=cpu, cuda=cuda) or found_kind())
            args = (*settings.engines.pip_args, *(pip_arg or ()))
            wish = Wish(release, args, python=str(python or settings.engines.python or sys.executable))
            log = home.logs / f"bundle-{release.name}.log"
            sources = [*stack.enter_context(wheelhouse.fetched(out.parent, wish, log=log, say=progress.say)), *sources]
            engine = wheelhouse.describe(release)
        size = sum(one.file.stat().st_size for one in sources)
        with progress.step(f"packing {len(sources)} files", size) as step:
            manifests = (msgspec.json.encode(one.manifest) for one in models)
            bundle.write(out, sources, engine=engine, models=manifests, tell=step)
    what = [f"vLLM {engine.version} ({engine.kind}) for Python {engine.python}"] if engine else []
    what += [f"{one.name} ({one.variant})" for one in models]
    print(f"{out}: {', '.join(what)}, {out.stat().st_size / GIB:.2f} GiB")


def _chosen(models: Path, names: list[str]) -> list[Stored]:
    here = library.stored(models)
    chosen: list[Stored] = [] if names else here
    for name in names:
        known = catalogue.find(name)
        wanted = {name, name.replace("/", "--").casefold(), known.name if known else name}
        found = [one for one in here if one.name in wanted]
        if not found:
            there = ", ".join(dict.fromkeys(one.name for one in here)) or "none"
            raise ModelError(f"there is no model {name!r} on this machine", hint=f"there are: {there}")
        chosen += found
    return chosen


def take_models(file: Path, models: Path, name: str = "") -> list[Stored]:
    """Bring the models of a bundle into the data folder, or the one of that name. Raises OperatorError."""
    contents = bundle.read(file)
    found = [one for one in bundled.manifests(contents) if name in {"", one.name}]
    if not found:
        there = ", ".join(one.name for one in bundled.manifests(contents)) or "none"
        raise ModelError(f"there is no model{f' {name!r}' if name else ''} in {file}", hint=f"there are: {there}")
    models.mkdir(mode=0o700, parents=True, exist_ok=True)
    return [bundled.take(models, file, contents, one, for_terminal()) for one in found]
