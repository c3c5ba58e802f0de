"""What Ray runs on a node for each replica: an actor that starts the replica's process there and tells how it is.

It travels to the node by value, so that a node without Tidegate can say so: nothing but the standard library and Ray is
imported. On the data path it has no part.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

MODULE = "tidegate.cli.on_node"
TICK_S = 5.0
MARGIN_S = 5.0
"""For the process that looks after the engine, past the engine's own grace."""


class ReplicaActor:
    """One replica on this node. `words` is asked again and again; what was said can be heard by the next one too."""

    def __init__(self, job: str, orphan_after_s: float) -> None:
        import ray

        self._node = ray.util.get_node_ip_address()
        self._said: list[str] = []
        self._heard = time.monotonic()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != "TIDEGATE_CHILD"},
        )
        what = json.loads(job) | {"host": self._node}
        threading.Thread(target=self._listen, args=(json.dumps(what),), daemon=True).start()
        if orphan_after_s:
            threading.Thread(target=self._watch, args=(orphan_after_s,), daemon=True).start()

    async def words(self, known: int, wait_s: float) -> tuple[str, list[str]]:
        """The address of its node, and what was said after the first `known` words; waits for a new one for a while."""
        self._heard = time.monotonic()
        self._loop = asyncio.get_running_loop()
        deadline = self._heard + wait_s
        while len(self._said) <= known and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return self._node, self._said[known:]

    async def stop(self, grace_s: float) -> None:
        """End the replica; returns when nothing of it is left."""
        self._signal(signal.SIGTERM if grace_s else signal.SIGKILL)
        await asyncio.to_thread(self._wait, grace_s + MARGIN_S)
        self._end()

    def _listen(self, job: str) -> None:
        """A thread's work: give the process its job, and keep what it says until it ends."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018 - pipes
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(job.encode() + b"\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            self._say(line.decode())
        status = self._process.wait()
        self._end()
        if not any(word["type"] == "ended" for word in self._words()):
            cause = f"the process that looked after it on {self._node} ended with status {status}"
            if not self._said and not _installed():
                cause = f"node {self._node} has no Tidegate in {sys.executable}"
            word: dict[str, Any] = {"type": "ended", "cause": cause, "status": status}
            self._say(json.dumps(word))

    def _say(self, line: str) -> None:
        self._said.append(line)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed.set)

    def _words(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._said]

    def _watch(self, orphan_after_s: float) -> None:
        """A thread's work: whoever is not asked for long has no control any more, and frees its place."""
        while self._process.poll() is None:
            time.sleep(TICK_S)
            if time.monotonic() - self._heard > orphan_after_s:
                self._signal(signal.SIGTERM)
                self._process.wait()
                os._exit(0)

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _end(self) -> None:
        """SIGKILL to the process and to its engine, which is in a session of its own."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for word in self._words():
            if word["type"] == "started":
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(word["pid"], signal.SIGKILL)


def _installed() -> bool:
    import importlib.util

    return importlib.util.find_spec("tidegate") is not None
