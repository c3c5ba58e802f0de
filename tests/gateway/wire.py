"""A client of bytes: it sends exactly what it is told, and reads answers with a parser of its own."""

import asyncio
import contextlib
import re
import socket
import struct
from dataclasses import dataclass, field
from typing import Self


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    pieces: list[bytes] = field(default_factory=list)
    """The payload of each chunk, for chunked answers."""
    whole: bool = True


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int, *, receive_bytes: int = 0, tls=None, host: str = "127.0.0.1") -> "Client":
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options = {"ssl": tls, "server_hostname": "localhost"} if tls else {}
        return cls(*await asyncio.open_connection(sock=sock, limit=2**16, **options))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def request(self, method: str, path: str, body: bytes = b"", headers: tuple[str, ...] = ()) -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def ask(self, method: str, path: str, body: bytes = b"", headers: tuple[str, ...] = ()) -> Answer:
        self.request(method, path, body, headers)
        return await self.answer(head_only=method == "HEAD")

    async def head(self) -> Answer:
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        matched = re.fullmatch(r"HTTP/1\.1 (\d{3}) .*", first)
        assert matched, first
        return Answer(int(matched[1]), headers, b"")

    async def chunk(self) -> bytes:
        """The payload of the next chunk; empty for the last."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        payload = await self.reader.readexactly(size)
        assert await self.reader.readexactly(2) == b"\r\n"
        return payload

    async def answer(self, *, head_only: bool = False) -> Answer:
        """One whole answer. `whole` is false if the connection ended before it did."""
        answer = await self.head()
        if answer.status in {100, 204, 304} or head_only:
            return answer
        try:
            if answer.headers.get("transfer-encoding") == "chunked":
                while piece := await self.chunk():
                    answer.pieces.append(piece)
            elif "content-length" in answer.headers:
                answer.pieces.append(await self.reader.readexactly(int(answer.headers["content-length"])))
            else:
                answer.pieces.append(await self.reader.read(-1))
        except (ConnectionError, asyncio.IncompleteReadError):
            answer.whole = False
        answer.body = b"".join(answer.pieces)
        return answer

    async def ended(self) -> bool:
        """Whether the server has closed, with nothing more sent."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read(1) == b""
        return True

    def half_close(self) -> None:
        self.writer.write_eof()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError, EOFError):
            await self.writer.wait_closed()

    def reset(self) -> None:
        """End with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def until(condition, what: str = "the condition", deadline_s: float = 5.0) -> None:
    """Wait until `condition()` holds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    while not condition():
        assert loop.time() < end, f"{what} did not come to hold"
        await asyncio.sleep(0.001)


def listening_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    sock.listen(512)
    sock.setblocking(False)
    return sock
