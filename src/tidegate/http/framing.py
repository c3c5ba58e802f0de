"""How a response's body is delimited, as pure state machines: bytes in, payload out.

Source: RFC 9112, sections 6 and 7. Chunk extensions and trailers are read and dropped.
"""

from typing import Final

from tidegate.errors import UpstreamClosedError

MAX_SIZE_LINE_BYTES: Final = 256
MAX_TRAILER_BYTES: Final = 16 * 1024
WHOLE_EVENT: Final = b"\n\n\r\n"
"""How a chunk ends whose payload ends a server-sent event."""


def _size_lines(most: int) -> list[bytes]:
    """By the length of a whole chunk: the line it begins with; what no chunk begins with where there is none."""
    lines = [b"-"] * most
    for size in range(1, most):
        line = b"%x\r\n" % size
        if len(line) + size + 2 < most:
            lines[len(line) + size + 2] = line
    return lines


KNOWN_CHUNK_BYTES: Final = 4096
"""Chunks shorter than this can be known by their length."""
SIZE_LINES: Final = _size_lines(KNOWN_CHUNK_BYTES)
"""How a chunk of so many bytes begins, framing counted: to compare is less work than to parse."""
_LENGTHS: Final = {b"%x" % size: size for size in range(KNOWN_CHUNK_BYTES)}
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


class LengthBody:
    """A body of a known number of bytes."""

    __slots__ = ("_left", "done")

    between_chunks = False

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Payload, and what follows the body."""
        payload, rest = data[: self._left], data[self._left :]
        self._left -= len(payload)
        self.done = not self._left
        return payload, rest

    def end(self) -> bool:
        """The connection ended: whether the body is whole."""
        return self.done


class UntilCloseBody:
    """A body that ends with the connection."""

    __slots__ = ("done",)

    between_chunks = False

    def __init__(self) -> None:
        self.done = False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Payload, and nothing after it."""
        return data, b""

    def end(self) -> bool:
        """The connection ended: so does the body."""
        self.done = True
        return True


class ChunkedBody:
    """A body in chunks."""

    __slots__ = ("_left", "_line", "_state", "_trailer_bytes", "between_chunks", "done")

    SIZE, DATA, DATA_END, TRAILER = range(4)

    def __init__(self) -> None:
        self._state = self.SIZE
        self._left = 0
        self._line = b""
        self._trailer_bytes = 0
        self.done = False
        self.between_chunks = True
        """Whether the next byte begins a chunk."""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Payload of all chunks in `data`, and what follows the body. Raises UpstreamClosedError on bad framing."""
        payload: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.done:
            if self._state == self.SIZE and not self._line:  # most chunks come whole
                line_end = data.find(b"\r\n", at, at + 6)
                length = _LENGTHS.get(data[at:line_end]) if line_end > 0 else None
                if length is not None:
                    begins, ends = line_end + 2, line_end + 2 + length
                    if data.startswith(b"\r\n", ends):
                        if length:
                            payload.append(data[begins:ends])
                        else:
                            self.done = True
                        at = ends + 2
                        continue
            if self._state == self.DATA:
                piece = data[at : at + self._left]
                payload.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = self.DATA_END
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                at = size
                self._check_line()
                break
            self._line += data[at : end + 1]
            at = end + 1
            self._check_line()
            line, self._line = self._line, b""
            if not line.endswith(b"\r\n"):
                raise UpstreamClosedError("a bare line feed in chunked framing")
            self._take_line(line[:-2])
        self.between_chunks = self._state == self.SIZE and not self._line
        return payload[0] if len(payload) == 1 else b"".join(payload), data[at:]

    def _check_line(self) -> None:
        if len(self._line) > MAX_SIZE_LINE_BYTES and self._state != self.TRAILER:
            raise UpstreamClosedError("a chunk's size line is too long")
        if len(self._line) > MAX_TRAILER_BYTES:
            raise UpstreamClosedError("a trailer is too long")

    def _take_line(self, line: bytes) -> None:
        if self._state == self.SIZE:
            digits = line.partition(b";")[0].rstrip(b" \t")
            if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
                raise UpstreamClosedError(f"{line[:32]!r} is not the size of a chunk")
            self._left = int(digits, 16)
            self._state = self.DATA if self._left else self.TRAILER
        elif self._state == self.DATA_END:
            if line:
                raise UpstreamClosedError("a chunk is longer than its size")
            self._state = self.SIZE
        elif line:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                raise UpstreamClosedError("the trailers are too long")
        else:
            self.done = True

    def end(self) -> bool:
        """The connection ended: whether the body is whole."""
        return self.done


Body = LengthBody | UntilCloseBody | ChunkedBody
