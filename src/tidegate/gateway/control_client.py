"""HTTP to control on another host: a greeting whose answer does not end, and reports.

Whatever comes back is held to the strict parser of `tidegate.http` and to sizes and times of its own, so that something
else that listens there, or nothing at all, costs a message and no more.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from socket import gaierror
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec

from tidegate import __version__
from tidegate.channel import LINK_PATH, MAX_FRAME_BYTES, PROTOCOL, REPORT_PATH, RemoteHello, RemoteReport, Word
from tidegate.config.addresses import is_same_host
from tidegate.errors import EngineError, OperatorError, SettingError
from tidegate.http.client import Connection, Endpoint, ResponseHead
from tidegate.http.fetch import fetch
from tidegate.http.tls import client_context
from tidegate.types import FleetSnapshot

CONNECT_S: Final = 5.0
ANSWER_S: Final = 10.0
"""Longest wait for the head of an answer, and for a whole line: control says something every 2 s."""
REPORT_S: Final = 5.0
MAX_LINE_BYTES: Final = MAX_FRAME_BYTES
MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_TOKEN_BYTES: Final = 4096
MAX_SAID_CHARS: Final = 300
URL_HINT: Final = "the URL of control's admin port, as in https://control.example:8001"
PORT_HINT: Final = "is that the admin port (8001 by default) of a Tidegate of the same version?"


class AwayError(OperatorError):
    """Control cannot be talked to, or what answers is not control."""


@dataclass(frozen=True)
class ControlUrl:
    """Where control's admin port is."""

    text: str
    host: str
    port: int
    authority: str
    """`HOST[:PORT]`, as a Host header has it."""
    prefix: str
    """Of every path; empty, but where a proxy serves it below one."""
    tls: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises SettingError."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise SettingError("--control", f"{text!r} is no URL: {error}", hint=URL_HINT) from None
        extra = parts.query or parts.fragment or parts.username is not None
        if parts.scheme not in {"http", "https"} or not parts.hostname or extra or port == 0:
            raise SettingError("--control", f"{text!r} is not http(s)://HOST:PORT", hint=URL_HINT)
        if not text.isascii() or not text.isprintable() or " " in text:
            raise SettingError("--control", f"{text!r} has a character that no URL has", hint=URL_HINT)
        tls = parts.scheme == "https"
        return cls(
            text.rstrip("/"),
            parts.hostname,
            port or (443 if tls else 80),
            parts.netloc,
            parts.path.rstrip("/"),
            tls,
        )


def read_token(path: Path) -> str:
    """The token in a file: alone, or as in control's run/admin.json. Raises SettingError."""
    setting = "--token-file"
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TOKEN_BYTES)
    except OSError as error:
        raise SettingError(setting, f"{path} cannot be read: {error.strerror}") from None
    token = raw.decode("latin-1").strip()
    if token.startswith("{"):
        try:
            token = msgspec.json.decode(raw, type=_TokenFile).token
        except msgspec.DecodeError as error:
            raise SettingError(setting, f"{path} is JSON, and no admin.json: {error}") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        hint = "it is the content of gateway.token in the data folder of control"
        raise SettingError(setting, f"{path} does not hold a token", hint=hint)
    return token


def trust(ca: Path | None) -> ssl.SSLContext:
    """Whom to believe: the system's authorities, or those in a PEM file. Raises SettingError."""
    return client_context("--control-ca", ca)


class ControlClient:
    """Talks to one control. `token` is asked for at each connection: it may have been renewed."""

    def __init__(self, url: ControlUrl, token: Callable[[], str], tls: ssl.SSLContext | None) -> None:
        self.url, self._token = url, token
        self._endpoint = _Endpoint(url, tls if url.tls else None)

    async def look(self, remote: RemoteHello) -> tuple[FleetSnapshot, bool]:
        """Control's snapshot of this moment, and whether it is on this machine. Raises OperatorError."""
        async with self.listen(msgspec.structs.replace(remote, look=True)) as words:
            first = await words.first()
            return first.snapshot or FleetSnapshot(number=0), words.same_host

    @contextlib.asynccontextmanager
    async def listen(self, remote: RemoteHello) -> AsyncIterator["Words"]:
        """Greet, and hear what control says. Raises OperatorError."""
        request = self._request(LINK_PATH, remote)
        connection = await self._endpoint.connect()
        words = Words(self.url, connection)
        try:
            connection.send(request, words)
            await words.begin()
            yield words
        finally:
            connection.abort()

    async def report(self, told: RemoteReport) -> None:
        """Returns once control has it. Raises OperatorError."""
        request = self._request(REPORT_PATH, told)
        try:
            async with asyncio.timeout(REPORT_S):
                status, body = await fetch(self._endpoint, request, max_bytes=MAX_ANSWER_BYTES)
        except TimeoutError:
            raise AwayError(f"{self.url.text} does not answer a report within {REPORT_S:g} s") from None
        except EngineError as error:
            raise AwayError(str(error)) from None
        if status != 200:
            raise _refusal(self.url, status, body)

    def close(self) -> None:
        self._endpoint.close()

    def _request(self, path: str, message: object) -> bytes:
        body = msgspec.json.encode(message)
        head = (
            f"POST {self.url.prefix}{path} HTTP/1.1\r\nhost: {self.url.authority}\r\n"
            f"authorization: Bearer {self._token()}\r\nuser-agent: tidegate/{__version__}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1") + body


class Words:
    """A `Reply`: what control says, line by line. What nobody has taken yet is bounded: its socket waits."""

    def __init__(self, url: ControlUrl, connection: Connection) -> None:
        self._url, self._connection = url, connection
        self._status: int | None = None
        self._buffer = bytearray()
        self._searched = 0
        self._over: str | None = None
        """Why nothing more comes."""
        self._news = asyncio.Event()
        ends = (connection.transport.get_extra_info(end) or ("",) for end in ("peername", "sockname"))
        self.same_host = is_same_host(*(str(end[0]) for end in ends))

    async def begin(self) -> None:
        """Wait for the head. Raises AwayError for anything but a link."""
        try:
            async with asyncio.timeout(ANSWER_S):
                while self._status is None and self._over is None:
                    await self._wait()
                while self._status not in {None, 200} and self._over is None and len(self._buffer) < MAX_ANSWER_BYTES:
                    self._connection.resume()
                    await self._wait()
        except TimeoutError:
            raise AwayError(f"{self._url.text} takes a connection, and says nothing for {ANSWER_S:g} s") from None
        if self._status is None:
            raise AwayError(f"{self._url.text} does not answer as control does: {self._over}", hint=PORT_HINT)
        if self._status != 200:
            raise _refusal(self._url, self._status, bytes(self._buffer[:MAX_ANSWER_BYTES]))

    async def first(self) -> Word:
        """The first word, which says who speaks. Raises AwayError."""
        line = await self._line()
        try:
            who = msgspec.json.decode(line, type=_Who)
        except msgspec.DecodeError:
            who = _Who()
        if not who.protocol:
            raise AwayError(f"what answers at {self._url.text} is not control", hint=PORT_HINT)
        if who.protocol != PROTOCOL:
            raise AwayError(
                f"control is Tidegate {who.version[:40]}, this gateway {__version__}, "
                "and they do not understand each other",
                hint="install the same version on both hosts",
            )
        return self._decode(line)

    async def next(self) -> Word:
        """The next word. Raises AwayError."""
        return self._decode(await self._line())

    def _decode(self, line: bytes) -> Word:
        try:
            return msgspec.json.decode(line, type=Word)
        except msgspec.ValidationError as error:
            raise AwayError(
                f"control says what this gateway, Tidegate {__version__}, cannot read: {str(error)[:MAX_SAID_CHARS]}",
                hint="install the same version on both hosts",
            ) from None
        except msgspec.DecodeError as error:
            raise AwayError(f"{self._url.text} sent what is no JSON: {str(error)[:MAX_SAID_CHARS]}") from None

    async def _line(self) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_S):
                while (end := self._buffer.find(b"\n", self._searched)) < 0:
                    self._searched = len(self._buffer)
                    if self._searched > MAX_LINE_BYTES:
                        raise AwayError(f"{self._url.text} sent a line of more than {MAX_LINE_BYTES} bytes")
                    if self._over is not None:
                        raise AwayError(f"{self._url.text} ended what it had to say: {self._over}")
                    self._connection.resume()
                    await self._wait()
        except TimeoutError:
            raise AwayError(f"{self._url.text} has said nothing whole for {ANSWER_S:g} s") from None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    # Reply

    def on_head(self, head: ResponseHead) -> None:
        self._status = head.status
        self._news.set()

    def on_body(self, payload: bytes) -> None:
        self._buffer += payload
        if b"\n" in payload or len(self._buffer) > MAX_LINE_BYTES:
            self._connection.pause()
        self._news.set()

    def on_end(self) -> None:
        self._over = "the answer has ended"
        self._news.set()

    def on_error(self, error: EngineError) -> None:
        self._over = str(error)[:MAX_SAID_CHARS]
        self._news.set()


class _TokenFile(msgspec.Struct):
    token: str


class _Who(msgspec.Struct):
    protocol: int = 0
    version: str = ""


class _Endpoint(Endpoint):
    """Control's, which may speak TLS."""

    def __init__(self, url: ControlUrl, tls: ssl.SSLContext | None) -> None:
        super().__init__(f"http://{url.authority}", connect_timeout_s=CONNECT_S)
        self._where, self._tls = url, tls
        self.url, self.host, self.port = url.text, url.host, url.port

    async def connect(self) -> Connection:
        """A new connection. Raises AwayError."""
        where, loop = self._where, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), where.host, where.port, ssl=self._tls
                )
        except ssl.SSLCertVerificationError as error:
            raise AwayError(
                f"the certificate of {where.text} is not trusted: {error.verify_message}",
                hint="--control-ca names the file (PEM) of the authority that signed it",
            ) from None
        except ssl.SSLError as error:
            raise AwayError(f"{where.text} does not speak TLS: {error.reason}", hint="is it http://?") from None
        except gaierror as error:
            raise AwayError(f"{where.text}: there is no host {where.host!r}: {error.strerror}") from None
        except TimeoutError:
            raise AwayError(f"{where.text} cannot be reached: no answer within {CONNECT_S:g} s") from None
        except OSError as error:
            raise AwayError(
                f"{where.text} cannot be reached: {error.strerror or error}",
                hint="does `tidegate up` run there, and is admin.listen an address that this host can connect to?",
            ) from None
        if connection.lost:
            raise AwayError(f"{where.text} closed the connection as soon as it was made")
        return connection


def _refusal(url: ControlUrl, status: int, body: bytes) -> AwayError:
    """What an answer that is no link means."""
    said = _said(body)
    if status == 401:
        return AwayError(
            f"{url.text} does not know the token",
            hint="it is the content of gateway.token in the data folder of control; copy it into the token file",
        )
    if said and status in {400, 403, 503}:
        return AwayError(f"{url.text} refuses: {said}")
    if said and status == 404 and "greet" in said:
        return AwayError(f"{url.text} has forgotten this gateway")
    return AwayError(f"{url.text} does not answer as control does: status {status}", hint=PORT_HINT)


def _said(body: bytes) -> str:
    """The message of an OpenAI error body; empty for anything else."""
    try:
        message = msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.DecodeError:
        return ""
    return "".join(char if char.isprintable() else " " for char in message[:MAX_SAID_CHARS])


class _Message(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Message
