"""Answers that the gateway gives itself."""

import math
from typing import Final

import msgspec

from tidegate import openai
from tidegate.errors import RequestError
from tidegate.http import Exchange, HeaderList, ResponseHead, as_lines


def answer_error(exchange: Exchange, error: RequestError, headers: HeaderList = ()) -> None:
    """An OpenAI error, with `Retry-After` where the error knows when to come back, and how to show a key on 401."""
    own = [openai.JSON, *retry_headers(error)]
    if error.status == 401:
        own.append((b"www-authenticate", b"Bearer"))
    lines = as_lines(own) + as_lines(headers)
    exchange.respond(error.status, lines, openai.error_body(error))


def retry_headers(error: RequestError) -> list[tuple[bytes, bytes]]:
    """When to come back: whole seconds as HTTP has them, and OpenAI's milliseconds."""
    if error.retry_after_s is None:
        return []
    return [
        (b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))),
        (b"retry-after-ms", b"%d" % max(1, math.ceil(error.retry_after_s * 1000))),
    ]


def answer_json(exchange: Exchange, value: object, headers: HeaderList = ()) -> None:
    """A value as JSON."""
    exchange.respond(200, as_lines([openai.JSON]) + as_lines(headers), msgspec.json.encode(value))


def engine_lines(head: ResponseHead | None) -> bytes:
    """What a client is told of the headers of an engine's JSON answer, as lines."""
    if head is None:
        return JSON_LINE
    if not head.told:
        headers = head.headers
        head.told = b"content-type: %b\r\n" % headers.get(b"content-type", b"application/json")
        if b"retry-after" in headers:
            head.told += b"retry-after: %b\r\n" % headers[b"retry-after"]
    return head.told


JSON_LINE: Final = b"content-type: application/json\r\n"
STREAM_LINES: Final = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
)
