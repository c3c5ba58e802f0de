"""Answers that the gateway gives itself."""

import math

import msgspec

from tidegate import openai
from tidegate.errors import RequestError
from tidegate.http import Exchange

Headers = list[tuple[bytes, bytes]]


def answer_error(exchange: Exchange, error: RequestError, headers: Headers | None = None) -> None:
    """An OpenAI error, with `Retry-After` where the error knows when to come back."""
    lines = [openai.JSON, *(headers or ()), *retry_headers(error)]
    exchange.respond(error.status, lines, openai.error_body(error))


def retry_headers(error: RequestError) -> Headers:
    """When to come back: whole seconds as HTTP has them, and OpenAI's milliseconds."""
    if error.retry_after_s is None:
        return []
    return [
        (b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))),
        (b"retry-after-ms", b"%d" % max(1, math.ceil(error.retry_after_s * 1000))),
    ]


def answer_json(exchange: Exchange, value: object, headers: Headers | None = None, status: int = 200) -> None:
    exchange.respond(status, [openai.JSON, *(headers or ())], msgspec.json.encode(value))
