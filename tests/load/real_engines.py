"""Two real llama.cpp engines with the demo model, a thread each, as an overload is measured on them."""

import asyncio
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from demo import NAME, demo_model_path
from load.fronts import read_metrics, sum_of
from load.overload import Kind
from load.programs import Program, running
from tidegate.home import write_private

SLOTS, CONTEXT_TOKENS = 4, 512
START_S = 60.0
INTERACTIVE, BATCH = Kind("interactive", 16, stream=True), Kind("batch", 64)
TOPICS = ("rivers", "old ships", "bread", "the moon", "trains", "a garden", "winter", "music", "maps", "bees")


REQUESTS = 200
IDLE_LOOKS = 10


def requests() -> dict[str, list[bytes]]:
    """Of each kind many, no prompt beginning like another: what an engine remembers of one does not help the next."""
    topics = [f"{number}: {TOPICS[number % len(TOPICS)]}" for number in range(REQUESTS)]
    return {
        "interactive": [INTERACTIVE.request(f"{topic}. What is there to say of it?", model=NAME) for topic in topics],
        "batch": [BATCH.request(f"{topic}. Write a long story about it.", model=NAME) for topic in topics],
    }


@contextmanager
def llamacpp_engines(folder: Path, count: int = 2) -> Iterator[tuple[list[Program], Path]]:
    """So many engines, and the file with the key that they want."""
    key_file = folder / "key"
    write_private(key_file, secrets.token_hex(16).encode())
    with ExitStack() as stack:
        yield [stack.enter_context(_engine(folder, number, key_file)) for number in range(count)], key_file


@contextmanager
def _engine(folder: Path, number: int, key_file: Path) -> Iterator[Program]:
    ready_file = folder / f"ready-{number}"
    flags = {
        "model": demo_model_path(),
        "name": NAME,
        "slots": SLOTS,
        "context-tokens": CONTEXT_TOKENS,
        "threads": 1,
        "key-file": key_file,
        "ready-file": ready_file,
    }
    argv = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    program = Program(["-m", "tidegate.engines.llamacpp_server", *argv], 0, folder, f"llamacpp-{number}")
    try:
        program.port = _port(ready_file, program)
        with running(program, "/health"):
            yield program
    except BaseException:
        program.stop()
        raise


def _port(ready_file: Path, program: Program) -> int:
    deadline = time.monotonic() + START_S
    while not ready_file.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the engine did not start\n{program.log.read_text()[-2000:]}")
        time.sleep(0.05)
    url: Mapping[str, str] = json.loads(ready_file.read_text())
    return int(url["url"].rpartition(":")[2])


async def idle(engines: Sequence[Program], key: str) -> None:
    """Wait until the engines have had nothing to do for a while."""
    still = 0
    deadline = time.monotonic() + START_S
    while still < IDLE_LOOKS:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the engines were still busy after {START_S:g} s")
        await asyncio.sleep(0.25)
        texts = [await asyncio.to_thread(read_metrics, engine.port, key) for engine in engines]
        busy = sum(sum_of(text, "llamacpp:requests_processing") for text in texts)
        still = 0 if busy else still + 1
