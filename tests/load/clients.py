"""Clients by the hundred in one loop: they ask, count what comes, and note when."""

import asyncio
import contextlib
import json
import resource
import socket
import time
from dataclasses import dataclass, field

import httptools

CHAT = "/v1/chat/completions"


def chat_request(*, stream: bool, marks: str = "", model: str = "fake", key: str = "") -> bytes:
    """A chat request; `marks` are the fake engine's `[[name:value]]`."""
    content = f"{marks}{'你好 hello ' * 20}"
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": content}], "stream": stream},
        ensure_ascii=False,
        separators=(",", ":"),  # as the openai package sends it
    ).encode()
    lines = [
        f"POST {CHAT} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@dataclass
class Log:
    """What all clients of a load saw."""

    answers: int = 0
    events: int = 0
    bad: int = 0
    """Answers that were no 200, had an error in them, or never ended."""
    gaps_s: list[float] = field(default_factory=list)
    """Between an event and the next one of the same stream."""
    first_s: list[float] = field(default_factory=list)
    """From a request to the first of its answer."""


class Asker(asyncio.Protocol):
    """One connection: asks, and asks again when the answer is whole, until `left` is used up."""

    def __init__(self, request: bytes, log: Log, *, times: float = float("inf")) -> None:
        self.request, self.log, self.left = request, log, times
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # it is TCP
        self.parser = httptools.HttpResponseParser(self)
        self.ask()

    def ask(self) -> None:
        self.left -= 1
        self.waiting, self.failed = True, False
        self.last_s = self.asked_s = time.monotonic()
        self.begun = False
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        events = data.count(b"data: ")
        if events:
            self.log.events += events
            if self.begun:
                self.log.gaps_s.append(now - self.last_s)
            self.last_s = now
        if not self.begun:
            self.begun = True
            self.log.first_s.append(now - self.asked_s)
        self.failed = self.failed or b'"error"' in data
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.waiting = False
        self.log.answers += 1
        self.log.bad += self.failed or self.parser.get_status_code() != 200
        if self.left > 0:
            self.ask()
        elif not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.log.bad += self.waiting
        if not self.ended.done():
            self.ended.set_result(None)

    def stop(self) -> None:
        self.waiting = False
        self.transport.abort()


class Idler(asyncio.Protocol):
    """One connection that asked once, and then says nothing."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # it is TCP
        self.transport.write(HEALTH)

    def data_received(self, data: bytes) -> None:
        if not self.ready.done():
            self.ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.ready.done():
            self.ready.set_result(None)


async def askers(port: int, count: int, request: bytes, log: Log, *, over_s: float = 0.0, times: float = float("inf")):
    """So many connections, begun evenly over a time."""
    loop = asyncio.get_running_loop()
    made = []
    for number in range(count):
        _, asker = await loop.create_connection(lambda: Asker(request, log, times=times), "127.0.0.1", port)
        made.append(asker)
        if over_s and number < count - 1:
            await asyncio.sleep(over_s / count)
    return made


async def idlers(port: int, count: int) -> list[Idler]:
    """So many kept-alive connections without a request."""
    loop = asyncio.get_running_loop()
    made: list[Idler] = []
    for start in range(0, count, 250):
        some = await asyncio.gather(
            *(loop.create_connection(Idler, "127.0.0.1", port) for _ in range(min(250, count - start)))
        )
        made += [idler for _, idler in some]
        await asyncio.gather(*(idler.ready for _, idler in some))
    return made


def slow_readers(port: int, count: int, request: bytes) -> list[socket.socket]:
    """So many clients that ask for a long stream and read nothing of it."""
    made = []
    for _ in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536
        )  # else the kernel itself holds megabytes on loopback
        sock.connect(("127.0.0.1", port))
        sock.sendall(request)
        made.append(sock)
    return made


def raise_open_files(needed: int) -> str:
    """Let this process have so many sockets; why it cannot, if it cannot."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        return f"needs {needed} open files in a process, and {hard} are allowed (ulimit -Hn)"
    if soft != resource.RLIM_INFINITY and soft < needed:
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return ""


def quantile(values: list[float], share: float) -> float:
    """The value that so large a share is not above; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
