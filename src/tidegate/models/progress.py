"""How a long step tells where it is: a bar on a terminal, plain lines elsewhere, nothing where nobody watches.

Everything goes to stderr, so that the output of `tidegate models path` stays a path alone.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

MIB = 1024 * 1024
LINE_EVERY_S = 5.0
"""Without a terminal: one line in so many seconds."""

Step = Callable[[int], None]
"""Called with the number of bytes done so far."""


class Progress(Protocol):
    """Where a long step says what it does."""

    def say(self, sentence: str) -> None: ...

    def step(self, what: str, total_bytes: int | None) -> AbstractContextManager[Step]:
        """A step of `total_bytes`; what it yields is called with the bytes done so far."""


class Silent:
    """Says nothing."""

    def say(self, sentence: str) -> None: ...

    @contextmanager
    def step(self, what: str, total_bytes: int | None) -> Iterator[Step]:  # noqa: ARG002 - the protocol's names
        yield lambda _: None


class Lines:
    """Plain lines."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = out, clock

    def say(self, sentence: str) -> None:
        print(sentence, file=self._out, flush=True)

    @contextmanager
    def step(self, what: str, total_bytes: int | None) -> Iterator[Step]:
        begun = last = self._clock()
        done = 0

        def update(now_bytes: int) -> None:
            nonlocal last, done
            done = now_bytes
            if self._clock() - last >= LINE_EVERY_S:
                last = self._clock()
                share = f" ({100 * done // total_bytes} %)" if total_bytes else ""
                self.say(f"{what}: {done / MIB:,.0f} MiB{share}")

        self.say(what + (f", {total_bytes / MIB:,.0f} MiB" if total_bytes else ""))
        yield update
        self.say(f"{what}: done in {self._clock() - begun:.1f} s")


class Bar:
    """A bar on a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def say(self, sentence: str) -> None:
        print(sentence, file=self._out, flush=True)

    @contextmanager
    def step(self, what: str, total_bytes: int | None) -> Iterator[Step]:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=Console(file=self._out)) as bar:
            task = bar.add_task(what, total=total_bytes)
            yield lambda done: bar.update(task, completed=done)


def for_terminal(out: TextIO | None = None) -> Progress:
    """A bar if `out` (stderr by default) is a terminal, lines otherwise."""
    out = out or sys.stderr
    return Bar(out) if out.isatty() else Lines(out)
