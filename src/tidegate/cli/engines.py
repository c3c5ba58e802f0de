"""`tidegate engines`: install, list, remove."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import typer

from tidegate.cli.engines_plan import add_plan
from tidegate.config import EnginesSettings, Settings, find_file, load
from tidegate.engines import environments
from tidegate.engines.vllm_releases import DEFAULT, VERSION, Kind, Release
from tidegate.errors import OperatorError, SettingError
from tidegate.home import Home, find_home

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Install, list, remove and plan engines.")
add_plan(app)

GIB = 1024**3
Engine = Annotated[Literal["vllm"], typer.Argument(help="vllm; llama.cpp comes with Tidegate.")]
Version = Annotated[str, typer.Option("--version", help=f"Which release; {DEFAULT} is the one tried here.")]


@app.command()
def install(  # noqa: PLR0917 - typer reads flags, which have no position
    engine: Engine,
    release: Version = "",
    cpu: Annotated[bool, typer.Option("--cpu", help="For the processor, even where there is a GPU.")] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="For NVIDIA GPUs, even where none is found.")] = False,
    bundle: Annotated[
        Path | None, typer.Option("--from", help="A file of `tidegate bundle`: no network needed.")
    ] = None,
    pip_arg: Annotated[list[str] | None, typer.Option("--pip-arg", help="Handed to pip; repeatable.")] = None,
    python: Annotated[Path | None, typer.Option(help="Python to make its environment with.")] = None,
    unpinned: Annotated[bool, typer.Option("--unpinned", help="Let pip choose the versions of what it needs.")] = False,
) -> None:
    """Put an engine into an environment of its own below the data folder."""
    del engine
    home, settings = folder_and_settings()
    found = install_vllm(
        home,
        settings.engines,
        version=release,
        kind=kind_of(cpu=cpu, cuda=cuda),
        bundle=bundle,
        pip_args=tuple(pip_arg or ()),
        python=python,
        pinned=not unpinned,
    )
    print(found.folder)


def install_vllm(
    home: Home,
    settings: EnginesSettings,
    *,
    version: str = "",
    kind: Kind | None = None,
    bundle: Path | None = None,
    pip_args: tuple[str, ...] = (),
    python: Path | None = None,
    pinned: bool = True,
) -> environments.Environment:
    """An environment with vLLM, for what is found on this machine where no `kind` is given. Raises OperatorError."""
    from tidegate import bundle as bundles
    from tidegate.engines import wheelhouse
    from tidegate.engines.install import Wish, install

    def put(release: Release, wheels: Path | None) -> environments.Environment:
        wish = Wish(
            release,
            pip_args=(*settings.pip_args, *pip_args),
            python=str(python or settings.python or sys.executable),
            wheels=wheels,
            pinned=pinned and wheels is None,
        )
        return install(home.engines, wish, log=home.logs / f"install-{release.name}.log", say=_tell)

    if bundle is not None:
        with wheelhouse.unpacked(bundle, bundles.read(bundle), home.engines, _tell) as (release, wheels):
            if version not in {"", release.version} or kind not in {None, release.kind}:
                raise OperatorError(
                    f"{bundle} holds vLLM {release.version} ({release.kind}), and another one is asked for"
                )
            return put(release, wheels)
    if version and not VERSION.fullmatch(version):
        raise OperatorError(f"--version: {version!r} is no version", hint=f"as in --version {DEFAULT}")
    if kind is None:
        kind = found_kind()
        hardware = "the GPU of this machine" if kind == "cuda" else "the processor: no usable NVIDIA GPU was found"
        _tell(f"vLLM for {hardware}")
    return put(Release(version or DEFAULT, kind), None)


def found_kind() -> Kind:
    """What this machine's vLLM has to be built for. Raises OperatorError where the driver does not answer."""
    from tidegate.control.doctor import gpu

    return "cuda" if gpu.gather().usable else "cpu"


@app.command("list")
def list_engines() -> None:
    """Show the engines of this machine."""
    home = folder_and_settings()[0]
    try:
        print(f"{'llama.cpp':<12}{'xllamacpp ' + version('xllamacpp'):<20}{'part of Tidegate':<18}")
    except PackageNotFoundError:
        print(f"{'llama.cpp':<12}{'not installed':<20}")
    here = environments.installed(home.engines)
    for one in here:
        made = one.made
        print(f"{'vllm':<12}{made.version:<20}{made.kind:<6}{made.size_bytes / GIB:>6.1f} GiB   {one.folder}")
    for folder in environments.unfinished(home.engines):
        print(f"{'':<12}{folder.name:<20}half an installation: install it again, or remove it")
    if not here:
        print(f"{'vllm':<12}{'not installed':<20}tidegate engines install vllm")


@app.command()
def remove(
    engine: Engine,
    release: Annotated[str, typer.Option("--version", help="Only this one.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Even if a process is using it.")] = False,
) -> None:
    """Take an engine away."""
    from tidegate.models.in_use import users_of

    del engine
    home = folder_and_settings()[0]
    whole = {one.folder.name: one.folder for one in environments.installed(home.engines)}
    folders = [*whole.values(), *environments.unfinished(home.engines)]
    chosen = [folder for folder in folders if not release or folder.name == f"vllm-{release}"]
    if not chosen:
        there = ", ".join(folder.name for folder in folders) or "none"
        raise OperatorError(f"there is no vllm{f' {release}' if release else ''} here", hint=f"there are: {there}")
    for folder in chosen:
        if not force and (users := users_of(folder)):
            raise OperatorError(
                f"{folder.name} is in use by process {', '.join(map(str, users))}",
                hint="stop that engine first, or add --force",
            )
        print(f"{folder.name}: removed, {environments.remove(folder) / GIB:.1f} GiB freed")


def folder_and_settings() -> tuple[Home, Settings]:
    """For commands that have no flag for the settings file. Raises SettingError."""
    settings = load(find_file(None, find_home().path))
    return find_home(settings.store.home), settings


def kind_of(*, cpu: bool, cuda: bool) -> Kind | None:
    """What the flags say; None for what is found. Raises SettingError."""
    if cpu and cuda:
        raise SettingError("--cpu", "and --cuda exclude each other")
    return "cpu" if cpu else "cuda" if cuda else None


def _tell(text: str) -> None:
    """Beside the path that goes to stdout."""
    print(text, file=sys.stderr, flush=True)
