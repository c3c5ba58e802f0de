"""A request, and the reading of the ordinary kind at a glance.

llhttp parses what a client may send. Most of what clients do send is plain, and the same few header lines again and
again, often a whole head byte for byte: those are checked and split once, and then known. What is not plain in every byte is left to llhttp whole, so a
request means what llhttp says it means, and the glance only ever says the same, sooner.
"""

import re
from typing import Final

_REQUEST_LINE: Final = re.compile(rb"(GET|POST) (/[\x21-\x7e]*) HTTP/1\.1")
_HEADER_LINE: Final = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)[ \t]*"
)
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_UNUSUAL: Final = frozenset((b"transfer-encoding", b"connection", b"expect", b"upgrade", b"te", b"trailer"))
MAX_KNOWN_LINES: Final = 2048
MAX_KNOWN_LINE_BYTES: Final = 512
MAX_KNOWN_HEADS: Final = 1024
MAX_KNOWN_HEAD_BYTES: Final = 2048


class Request:
    """A whole request. Header names are lower case; fields that came twice are joined by a comma.

    `headers` may be shared with other requests of the same head: nobody writes to it.
    """

    __slots__ = ("body", "headers", "http10", "keep_alive", "line", "method", "path")

    def __init__(self, line: "RequestLine", headers: dict[bytes, bytes], body: bytes) -> None:
        self.line = line
        self.method = line.method
        self.path = line.path
        self.headers = headers
        self.body = body
        self.http10 = False
        self.keep_alive = True

    @property
    def target(self) -> bytes:
        """The path and the query, as they were sent."""
        return self.line.target

    @property
    def query(self) -> bytes:
        """What follows the question mark."""
        return self.line.target.partition(b"?")[2]


class RequestLine:
    """Method and target of a request."""

    __slots__ = ("method", "path", "target")

    def __init__(self, method: bytes, target: bytes) -> None:
        self.method = method
        self.target = target
        self.path = target.partition(b"?")[0].decode("latin-1")
        """Undecoded: `%` and dot segments are the router's to judge."""


class Glance:
    """Knows the lines of ordinary requests."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, bytes]] = {}
        self._known_first: dict[bytes, RequestLine] = {}
        self._known_heads: dict[bytes, tuple[RequestLine, dict[bytes, bytes], int]] = {}

    def read(self, data: bytes, *, max_headers: int, max_body_bytes: int) -> Request | None:
        """The request that `data` is, if it is exactly one, whole and ordinary; None leaves it to llhttp.

        Ordinary: HTTP/1.1, GET or POST, printable ASCII, each header once, nothing said about the connection, and a
        body of a stated length or none.
        """
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        text = data[:end]
        head = self._known_heads.get(text) or self._learn_head(text)
        if head is None:
            return None
        first, headers, length = head
        if len(data) - end - 4 != length or length > max_body_bytes or len(headers) > max_headers:
            return None
        return Request(first, headers, data[end + 4 :])

    def _learn_head(self, text: bytes) -> tuple[RequestLine, dict[bytes, bytes], int] | None:
        lines = text.split(b"\r\n")
        first = self._known_first.get(lines[0]) or self._learn_first(lines[0])
        del lines[0]
        known = self._known
        headers: dict[bytes, bytes] = {}
        for line in lines:
            field = known.get(line) or self._learn(line)
            if field is None:
                return None
            headers[field[0]] = field[1]
        if first is None or len(headers) != len(lines) or b"host" not in headers:
            return None
        head = (first, headers, int(headers.get(b"content-length", 0)))
        if len(text) <= MAX_KNOWN_HEAD_BYTES:
            if len(self._known_heads) >= MAX_KNOWN_HEADS:
                self._known_heads.clear()
            self._known_heads[text] = head
        return head

    def _learn_first(self, line: bytes) -> RequestLine | None:
        match = _REQUEST_LINE.fullmatch(line)
        if match is None:
            return None
        first = RequestLine(match[1], match[2])
        if len(line) <= MAX_KNOWN_LINE_BYTES:
            if len(self._known_first) >= MAX_KNOWN_LINES:
                self._known_first.clear()
            self._known_first[line] = first
        return first

    def _learn(self, line: bytes) -> tuple[bytes, bytes] | None:
        match = _HEADER_LINE.fullmatch(line)
        if match is None:
            return None
        name, value = match[1].lower(), match[2]
        if name in _UNUSUAL or (name == b"content-length" and not _LENGTH.fullmatch(value)):
            return None
        if len(line) <= MAX_KNOWN_LINE_BYTES:
            if len(self._known) >= MAX_KNOWN_LINES:
                self._known.clear()
            self._known[line] = (name, value)
        return name, value
