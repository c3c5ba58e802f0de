"""An engine of bytes: it does exactly what its script says with each request, down to where TCP cuts."""

import asyncio
import contextlib
import json
import socket
import struct
from dataclasses import dataclass

from tidegate.types import DialectName, ReplicaState, ReplicaView


@dataclass
class Asked:
    """A request as the engine got it."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


class Wire:
    """One connection to the engine."""

    def __init__(self, reader, writer, engine) -> None:
        self.reader, self.writer, self.engine = reader, writer, engine
        self.gone = False

    async def request(self) -> Asked | None:
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].decode("latin-1").split("\r\n")
            headers = {}
            for line in lines:
                name, _, value = line.partition(": ")
                assert name not in headers
                headers[name] = value
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone = True
            return None
        method, path, version = first.split(" ")
        assert (method, version) == ("POST", "HTTP/1.1")
        return Asked(path, headers, body)

    async def send(self, *pieces: bytes) -> None:
        """Each piece in a packet of its own."""
        for piece in pieces:
            if piece:
                self.writer.write(piece)
            for _ in range(3):
                await asyncio.sleep(0)

    async def until_gone(self) -> None:
        """Wait until the gateway has closed."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(4096):
                pass
        self.gone = True
        self.engine.left += 1

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class ByteEngine:
    """`script(wire, asked)` answers each request."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.wires: list[Wire] = []
        self.left = 0
        self.script = None
        self._server = None
        self.port = 0

    async def start(self, script=None, port: int = 0) -> "ByteEngine":
        self.script = script or self.script or answers(b'{"ok":true}')
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port or self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader, writer) -> None:
        wire = Wire(reader, writer, self)
        self.wires.append(wire)
        try:
            while (asked := await wire.request()) is not None:
                self.asked.append(asked)
                await self.script(wire, asked)
                if writer.transport.is_closing():
                    break
        except ConnectionError:
            pass
        finally:
            wire.gone = True
            writer.close()

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
            for wire in self.wires:
                wire.writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    def view(self, name: str = "pool-0", **options) -> ReplicaView:
        options = {"dialect": DialectName.VLLM, "state": ReplicaState.READY, "model": "m", **options}
        return ReplicaView(id=name, pool="pool", url=f"http://127.0.0.1:{self.port}", **options)


def json_head(length: int, status: str = "200 OK", *lines: str) -> bytes:
    more = "".join(f"{line}\r\n" for line in lines)
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n".encode()


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(text: str, **more) -> bytes:
    """A chat stream's event, with its text as it is."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **more}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def answers(body: bytes, status: str = "200 OK", *lines: str):
    """A script that gives the same JSON answer to everything."""

    async def script(wire, asked):
        await wire.send(json_head(len(body), status, *lines) + body)

    return script


def streams(*events: bytes):
    """A script that streams these events, each in a chunk and packet of its own."""

    async def script(wire, asked):
        await wire.send(STREAM_HEAD, *map(chunk, events), LAST_CHUNK)

    return script
