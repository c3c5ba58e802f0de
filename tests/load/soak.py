"""A long load on the whole of Tidegate while its engines are killed: what is lost, and what grows."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx
import msgspec

from load.programs import environment, open_files, rss_mib
from tidegate.control.state import AdminAddress
from tidegate.control.status import ReplicaStatusView, Status
from tidegate.types import ReplicaState

SETTINGS = """\
[gateway]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[chat]
enabled = false
"""
TOKENS, GAP_MS, SLOTS, ENGINES = 40, 20, 8, 3
FAKE = f"""\
[[pool]]
name = "p"
model = "fake"
engine = "fake"
replicas = {ENGINES}
[pool.options]
tokens = {TOKENS}
gap_ms = {GAP_MS}
slots = {SLOTS}
"""
LLAMACPP = """\
[[model]]
name = "fake"
source = "demo"
[[pool]]
name = "p"
model = "fake"
engine = "llamacpp"
replicas = 2
"""
LOAD = 0.7
WELL_S = 60.0
"""A replica that lives shorter than this time and again is given up by control, as it should be."""


@dataclass
class Sample:
    """What the gateway held at one moment."""

    at_s: float
    rss_mib: float
    open_files: int


@dataclass
class Result:
    """What came of it."""

    whole: int = 0
    lost: list[str] = field(default_factory=list)
    kills: int = 0
    samples: list[Sample] = field(default_factory=list)

    def growth(self) -> tuple[float, float]:
        """MiB and open files more in the last quarter than in the second one (medians)."""
        size = max(1, len(self.samples) // 4)
        early, late = self.samples[size : 2 * size] or self.samples[:1], self.samples[-size:]
        return (
            median(one.rss_mib for one in late) - median(one.rss_mib for one in early),
            median(one.open_files for one in late) - median(one.open_files for one in early),
        )


def _whole(replica: ReplicaStatusView) -> bool:
    """Whether it can also go on with what another began: that is found out in the first seconds of its life."""
    return replica.state is ReplicaState.READY and replica.continues


class Soak:
    """One `tidegate up` in a folder of its own, its clients, and whoever kills its engines."""

    def __init__(self, folder: Path, *, llamacpp: bool = False, seed: int = 1) -> None:
        self.folder, self.llamacpp = folder, llamacpp
        self.rng = random.Random(seed)
        self.result = Result()
        self.clients = max(1, round(LOAD * (SLOTS * ENGINES if not llamacpp else 4)))
        self._short_lives: dict[str, int] = {}

    async def run(self, seconds: float, *, kill_every_s: float = 20.0) -> Result:
        """Load for so long; then everything is ended."""
        home = self.folder / "home"
        home.mkdir(parents=True, mode=0o700, exist_ok=True)
        (home / "tidegate.toml").write_text(SETTINGS + (LLAMACPP if self.llamacpp else FAKE))
        with (self.folder / "up.txt").open("wb") as output:
            up = subprocess.Popen(
                [sys.executable, "-m", "tidegate", "up"],
                env=environment(self.folder), cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            async with asyncio.timeout(120), httpx.AsyncClient(trust_env=False, timeout=10) as admin:
                status = await self._all_ready(admin, up)
            await self._load(status, seconds, kill_every_s)
        finally:
            up.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                up.wait(30)
            if up.poll() is None:
                up.kill()
                up.wait()
        return self.result

    async def _status(self, admin: httpx.AsyncClient) -> Status | None:
        try:
            address = msgspec.json.decode((self.folder / "home" / "run" / "admin.json").read_bytes(), type=AdminAddress)
            answer = await admin.get(
                f"{address.url}/admin/v1/status", headers={"authorization": f"Bearer {address.token}"}
            )
        except (OSError, httpx.HTTPError, msgspec.DecodeError):
            return None
        return msgspec.json.decode(answer.content, type=Status)

    async def _all_ready(self, admin: httpx.AsyncClient, up: subprocess.Popen[bytes]) -> Status:
        while True:
            status = await self._status(admin)
            if status and status.replicas and all(_whole(replica) for replica in status.replicas):
                return status
            if up.poll() is not None:
                raise RuntimeError((self.folder / "up.txt").read_text()[-2000:])
            await asyncio.sleep(0.1)

    async def _load(self, status: Status, seconds: float, kill_every_s: float) -> None:
        front = next(process for process in status.processes if process.name.startswith("gateway"))
        ends = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        base = f"{front.url.rstrip('/')}/v1/"
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=120, limits=limits) as client:
            watch = asyncio.ensure_future(self._watch(front.pid or 0, ends))
            kill = asyncio.ensure_future(self._kill(ends, kill_every_s))
            await asyncio.gather(*(self._ask_on(client, ends) for _ in range(self.clients)))
            await asyncio.gather(watch, kill)

    async def _ask_on(self, client: httpx.AsyncClient, ends: float) -> None:
        await asyncio.sleep(self.rng.random())
        while time.monotonic() < ends:
            stream = self.rng.random() < 0.7
            try:
                fault = await (self._stream if stream else self._json)(client)
            except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
                fault = repr(error)
            if fault:
                kind = "stream" if stream else "json"
                self.result.lost.append(f"{time.strftime('%H:%M:%S')} {kind}: {fault}")
            else:
                self.result.whole += 1

    def _body(self, *, stream: bool) -> dict[str, object]:
        say = f"Count, please ({self.rng.random()})."
        body: dict[str, object] = {"model": "fake", "messages": [{"role": "user", "content": say}], "stream": stream}
        return body | ({"max_tokens": 40, "temperature": 0} if self.llamacpp else {})

    def _wrong(self, text: str) -> str:
        if self.llamacpp:
            return "" if text else "no text"
        expected = "".join(f"词{number} " for number in range(TOKENS))
        return "" if text == expected else f"a text with a gap: {text!r}"

    async def _json(self, client: httpx.AsyncClient) -> str:
        answer = await client.post("chat/completions", json=self._body(stream=False))
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text[:200]}"
        return self._wrong(answer.json()["choices"][0]["message"]["content"])

    async def _stream(self, client: httpx.AsyncClient) -> str:
        text, done = "", False
        async with client.stream("POST", "chat/completions", json=self._body(stream=True)) as answer:
            if answer.status_code != 200:
                return f"{answer.status_code} {(await answer.aread())[:200]!r}"
            async for line in answer.aiter_lines():
                data = line.removeprefix("data: ")
                if not data or data == line:
                    continue
                if data == "[DONE]":
                    done = True
                    continue
                event = msgspec.json.decode(data)
                if "error" in event:
                    return f"error event: {event['error'].get('message')}"
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
        return self._wrong(text) if done else "no [DONE]"

    async def _watch(self, pid: int, ends: float) -> None:
        while time.monotonic() < ends:
            self.result.samples.append(Sample(time.monotonic(), rss_mib(pid), open_files(pid)))
            await asyncio.sleep(2)

    async def _kill(self, ends: float, every_s: float) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=10) as admin:
            while True:
                await asyncio.sleep(self.rng.uniform(0.5, 1.5) * every_s)
                if time.monotonic() > ends - 3:
                    return
                status = await self._status(admin)
                ready = [r for r in (status.replicas if status else ()) if _whole(r) and r.pid]
                ready = [r for r in ready if self._short_lives.get(r.id, 0) < 3 or (r.ready_s or 0) > WELL_S]
                if len(ready) < 2:
                    continue  # with nobody left who could go on, streams break, as they have to
                for victim in self.rng.sample(ready, 2 if len(ready) > 2 and self.rng.random() < 0.2 else 1):
                    short = (victim.ready_s or 0) < WELL_S
                    self._short_lives[victim.id] = self._short_lives.get(victim.id, 0) + 1 if short else 1
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim.pid or 0, signal.SIGKILL)
                        self.result.kills += 1
