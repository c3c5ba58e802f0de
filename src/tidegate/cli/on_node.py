"""`python -m tidegate.cli.on_node`: one replica on a node of a cluster, started by whoever placed it there.

It reads a `Job`, one line of JSON, from its input; starts the engine; says on its output how it is, one line of JSON each
time; and ends the engine when it is told to (SIGTERM) or when its input ends, which is when its starter is gone.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tidegate import __version__, logs
from tidegate.cli.parts import make_engine
from tidegate.cli.vllm_parts import VllmParts
from tidegate.config import LlamaCppOptions, PoolSettings, Section, VllmOptions
from tidegate.control.plan import ReplicaSpec
from tidegate.engines.base import Engine
from tidegate.errors import EngineStartError, OperatorError
from tidegate.fleet import local
from tidegate.fleet.local import LocalChild
from tidegate.fleet.placement import Ended, Job, Ready, Said, Started
from tidegate.home import Home, find_home

GRACE_S = 10.0
"""For an engine that is told to end; whoever tells it waits no longer."""


def main() -> int:
    """Run the job of this process's input."""
    logs.configure_child()
    line = sys.stdin.buffer.readline()
    try:
        job = msgspec.json.decode(line, type=Job)
    except msgspec.DecodeError:
        say(Ended(f"this node has Tidegate {__version__}, which does not understand what it was asked", mend=True))
        return 2
    if job.version != __version__:
        what = f"this node has Tidegate {__version__}, and the control that placed {job.replica} has {job.version}"
        say(Ended(what, hint="install the same version on every node", mend=True))
        return 2
    try:
        home = find_home()
        home.create()
        engine = engine_for(job, home)
    except OperatorError as error:
        say(Ended(str(error), hint=error.hint, mend=True))
        return 2
    return asyncio.run(run(job, engine, home))


def say(what: Said) -> None:
    """One line of output; whoever listened may be gone."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
        sys.stdout.buffer.flush()


def engine_for(job: Job, home: Home) -> Engine:
    """The engine of a job. Raises OperatorError where this node cannot run it."""
    files = job.files.here() if job.files is not None else None
    if files is not None and not files.path.exists():
        raise OperatorError(
            f"node {os.uname().nodename} has no {files.path}",
            hint="a model must have the same path on every node: a shared file system, or a copy on each",
        )
    spec = ReplicaSpec(job.replica, job.replica, job.model, job.engine, options=options_of(job), files=files)
    return make_engine(spec, spawn, home, VllmParts(home), host=job.host, name=file_name(job))


def options_of(job: Job) -> Section:
    """The engine's options; what the machine would decide is decided by the share of it that was given."""
    options = PoolSettings.OPTIONS[job.engine].model_validate(job.options)
    if isinstance(options, LlamaCppOptions | VllmOptions) and options.threads is None:
        return options.model_copy(update={"threads": max(job.cores, 1)})
    return options


def file_name(job: Job) -> str:
    """Of its log and other files: nodes may share a data folder."""
    return f"{job.replica}.{job.life}"


async def spawn(argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> LocalChild:
    """Start the engine's process, and say so, so that whoever is left can end it."""
    child = await local.spawn(argv, env={**os.environ, **env}, log=log)
    say(Started(child.id.pid))
    return child


async def run(job: Job, engine: Engine, home: Home) -> int:
    """From the start of the engine to its end."""
    leaving = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
    loop.add_reader(sys.stdin.fileno(), lambda: _input_ended(leaving))
    living = loop.create_task(live(engine))
    asked = loop.create_task(leaving.wait())
    await asyncio.wait({living, asked}, return_when=asyncio.FIRST_COMPLETED)
    told = not living.done()
    living.cancel()
    asked.cancel()
    result = (await asyncio.gather(living, return_exceptions=True))[0]
    await engine.stop(GRACE_S)
    if told or not isinstance(result, Ended):
        result = Ended("it was ended")
    say(result)
    if told:
        with contextlib.suppress(OSError):
            (home.logs / f"{file_name(job)}.log").unlink()
    return 0


def _input_ended(leaving: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        leaving.set()


async def live(engine: Engine) -> Ended:
    """Start the engine, say that it is ready, wait for its end."""
    try:
        await engine.start()
        facts = await engine.ready()
    except OperatorError as error:
        return Ended(str(error), hint=error.hint, mend=True)
    except (EngineStartError, OSError) as error:
        tail = error.log_tail if isinstance(error, EngineStartError) else ()
        cause = (error.cause if isinstance(error, EngineStartError) else "") or str(error)
        return Ended(cause, tuple(tail))
    say(Ready(engine.url, engine.api_key, engine.dialect, facts))
    assert engine.child is not None  # noqa: S101 - it was started by `spawn`
    status = await engine.child.wait()
    return Ended("the engine ended", status=status)


if __name__ == "__main__":
    sys.exit(main())
