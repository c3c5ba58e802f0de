"""Requests by the letter of RFC 9112, read from all of a client's bytes at once: slow, stateless, and plain to check."""

import re
from dataclasses import dataclass, field

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
FIRST = re.compile(rb"(" + TOKEN + rb") +([\x21-\x7e\x80-\xff]+) +HTTP/(\d)\.(\d)")
"""Words may be apart by more than one space (section 3, "MAY instead parse on whitespace-delimited word boundaries")."""
LINE = re.compile(
    rb"(" + TOKEN + rb"):[ \t]*((?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?)[ \t]*"
)
SIZE = re.compile(rb"(0*[0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
ONCE = (b"host", b"content-length", b"content-type", b"authorization", b"transfer-encoding", b"expect")


class RefusedError(Exception):
    """Not a request, or one that a server may not take."""


class UnfinishedError(Exception):
    """The bytes end before the request does."""


@dataclass
class Read:
    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool
    lines: int
    """How many headers it has, before equal ones are joined."""


@dataclass
class Reading:
    requests: list[Read] = field(default_factory=list)
    end: str = "whole"
    """How the bytes end: whole, unfinished, refused, or closed (the last request was the connection's last)."""


def read_requests(data: bytes) -> Reading:
    """Every request up to the first that is none."""
    reading = Reading()
    at = 0
    while True:
        while data[at : at + 1] in {b"\r", b"\n"}:
            at += 1
        if at == len(data):
            return reading
        try:
            request, at = _read(data, at)
        except UnfinishedError:
            reading.end = "unfinished"
            return reading
        except RefusedError:
            reading.end = "refused"
            return reading
        reading.requests.append(request)
        if not request.keep_alive:
            reading.end = "closed"
            return reading


def _read(data: bytes, at: int) -> tuple[Read, int]:
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        raise UnfinishedError
    first, *lines = data[at:end].split(b"\r\n")
    matched = FIRST.fullmatch(first)
    if matched is None or (matched[3], matched[4]) not in {(b"1", b"0"), (b"1", b"1")}:
        raise RefusedError
    method, target, old = matched[1], matched[2], matched[4] == b"0"
    if target[:1] != b"/" and (target, method) != (b"*", b"OPTIONS"):
        raise RefusedError
    headers = _headers(lines)
    if not old and b"host" not in headers:
        raise RefusedError
    body, at = _body(headers, data, end + 4, old=old)
    options = [option.strip(b" \t").lower() for option in headers.get(b"connection", b"").split(b",")]
    keep_alive = b"close" not in options and (not old or b"keep-alive" in options)
    return Read(method, target, headers, body, keep_alive, len(lines)), at


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for line in lines:
        matched = LINE.fullmatch(line)
        if matched is None:
            raise RefusedError
        name, value = matched[1].lower(), matched[2]
        if name in headers and name in ONCE:
            raise RefusedError
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def _body(headers: dict[bytes, bytes], data: bytes, at: int, *, old: bool) -> tuple[bytes, int]:
    coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    if headers.get(b"expect", b"100-continue").lower() != b"100-continue":
        raise RefusedError
    if coding is not None:
        if old or length is not None or coding.lower() != b"chunked":
            raise RefusedError
        return _chunks(data, at)
    if length is None:
        return b"", at
    if not re.fullmatch(rb"[0-9]+", length):
        raise RefusedError
    if len(data) - at < int(length):
        raise UnfinishedError
    return data[at : at + int(length)], at + int(length)


def _line(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(b"\n", at)
    if end < 0:
        raise UnfinishedError
    if data[end - 1 : end] != b"\r" or b"\r" in data[at : end - 1]:
        raise RefusedError
    return data[at : end - 1], end + 1


def _chunks(data: bytes, at: int) -> tuple[bytes, int]:
    payload = b""
    while True:
        line, at = _line(data, at)
        matched = SIZE.fullmatch(line)
        if matched is None:
            raise RefusedError
        size = int(matched[1], 16)
        if size == 0:
            break
        if len(data) - at < size + 2:
            raise UnfinishedError
        if data[at + size : at + size + 2] != b"\r\n":
            raise RefusedError
        payload += data[at : at + size]
        at += size + 2
    while True:
        line, at = _line(data, at)
        if not line:
            return payload, at
        if LINE.fullmatch(line) is None:
            raise RefusedError
