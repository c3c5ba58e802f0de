"""The programs under load, each a process of its own: what they cost and hold is read from /proc."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 20.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def environment(folder: Path) -> dict[str, str]:
    """No setting but a data folder of its own."""
    return {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")} | {
        "TIDEGATE_HOME": str(folder / "home")
    }


def create_key(folder: Path, key: str) -> None:
    """From now on this key is needed."""
    argv = [sys.executable, "-m", "tidegate", "keys", "create", "--name", "load", "--stdin"]
    subprocess.run(argv, input=key.encode(), env=environment(folder), check=True, capture_output=True)


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def open_files(pid: int) -> int:
    """Open files of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


class Program:
    """A process that listens on a port."""

    def __init__(
        self, argv: list[str], port: int, folder: Path, name: str, *, executable: str = sys.executable
    ) -> None:
        self.port, self.log = port, folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [executable, *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(folder),
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait_until_it_answers(self, path: str) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2):
                    return
            except OSError as error:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError(f"{path}: {error}\n{self.log.read_text()[-2000:]}") from error
                time.sleep(0.05)

    @property
    def rss_mib(self) -> float:
        """Resident memory."""
        return rss_mib(self.pid)

    @property
    def open_files(self) -> int:
        return open_files(self.pid)

    @property
    def cpu_s(self) -> float:
        """Seconds on a CPU since its start, of all its threads (nanoseconds, from the scheduler)."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(8)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def quiet(program: Program) -> None:
    """Wait until it has next to nothing to do, as when every slow reader's buffers are full."""
    for _ in range(60):
        before = program.cpu_s
        await asyncio.sleep(0.5)
        if program.cpu_s - before < 0.05:
            return
    raise RuntimeError("it did not come to rest in 30 s")


@contextmanager
def running(program: Program, path: str) -> Iterator[Program]:
    """A program from the moment it answers on `path`."""
    try:
        program.wait_until_it_answers(path)
        yield program
    finally:
        program.stop()


def fake_engine(folder: Path, *flags: str):
    """`tidegate fake-engine` with these flags."""
    port = free_port()
    return running(
        Program(["-m", "tidegate", "fake-engine", "--port", str(port), *flags], port, folder, "engine"), "/v1/models"
    )


def canned_engine(folder: Path, *, tokens: int, gap_ms: float):
    """An engine with canned answers, which leaves the machine to whoever is measured."""
    port = free_port()
    script = str(Path(__file__).with_name("canned_engine.py"))
    return running(Program([script, str(port), str(tokens), str(gap_ms)], port, folder, "engine"), "/v1/models")


def gateway(folder: Path, *engines: Program, settings: str = ""):
    """`tidegate gateway` in front of these engines."""
    port = free_port()
    argv = ["-m", "tidegate", "gateway", "--listen", f"127.0.0.1:{port}"]
    if settings:
        (folder / "tidegate.toml").write_text(settings)
        argv += ["--config", str(folder / "tidegate.toml")]
    for engine in engines:
        argv += ["--engine", f"http://127.0.0.1:{engine.port}"]
    return running(Program(argv, port, folder, "gateway"), "/ready")


def bare_proxy(folder: Path, engine: Program):
    """The bare proxy in front of an engine."""
    port = free_port()
    script = str(Path(__file__).with_name("bare_proxy.py"))
    return running(Program([script, str(port), str(engine.port)], port, folder, "bare"), "/v1/models")
