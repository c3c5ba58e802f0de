"""A client that sees bytes as they come, for what an HTTP library would smooth over."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

import pytest


@dataclass
class Got:
    """What came on a connection, until it ended or fell silent."""

    data: bytes = b""
    reads: list[bytes] = field(default_factory=list)
    end: str = "open"
    """`open`, `closed` (FIN) or `reset` (RST)."""

    @property
    def body(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1])

    @property
    def text(self) -> str:
        """The content of every whole event."""
        return "".join(
            choice["delta"].get("content") or ""
            for line in self.data.split(b"\n")
            if line.startswith(b"data: {") and line.endswith(b"}")
            for choice in json.loads(line[6:]).get("choices", ())
        )


class Raw:
    """One connection to an engine."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(self, body: object, path: str = "/v1/chat/completions") -> None:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        self.writer.write(head.encode() + data)

    async def read(self, silence_s: float = 0.3, until: bytes | None = None) -> Got:
        """Everything until `until`, the connection's end, or a silence."""
        got = Got()
        deadline = asyncio.get_running_loop().time() + 20
        try:
            while until is None or until not in got.data:
                silent = asyncio.get_running_loop().time() + silence_s
                async with asyncio.timeout_at(deadline if until else silent):
                    data = await self.reader.read(65_536)
                if not data:
                    got.end = "closed"
                    break
                got.data += data
                got.reads.append(data)
        except TimeoutError:
            assert until is None, got.data
        except ConnectionResetError:
            got.end = "reset"
        return got


@pytest.fixture
def ask():
    """Ask an engine for a stream (or JSON), and tell what came."""

    async def asking(url: str, content: str, *, until: bytes | None = None, **fields: object) -> Got:
        async with Raw(url) as raw:
            raw.send({"messages": [{"role": "user", "content": content}], "stream": True, **fields})
            return await raw.read(until=until)

    return asking


@pytest.fixture
def connect():
    """A connection to an engine's URL."""
    return Raw
