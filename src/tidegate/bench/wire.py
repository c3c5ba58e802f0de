"""What a server says, as far as it is measured: events, answers, error bodies. Pure."""

from typing import Any, Final

import msgspec

MOST_EXPLAINED: Final = 200
"""Characters of a server's own words that are kept of an error."""


class Text(msgspec.Struct):
    """A delta of a stream, or the message of a whole answer; thinking is text like any other."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    delta: Text | None = None
    message: Text | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def said(self) -> bool:
        """Whether there is any text."""
        if self.text:
            return True
        told = self.delta or self.message
        return told is not None and bool(told.content or told.reasoning_content or told.reasoning)


class Counted(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Message(msgspec.Struct):
    """An event of a stream, or a whole answer."""

    choices: list[Choice] = []
    usage: Counted | None = None
    error: Any = None


decode: Final = msgspec.json.Decoder(Message).decode
"""Raises msgspec.DecodeError, or UnicodeDecodeError."""


def explanation(body: bytes) -> str:
    """What an error's body says, on one line: OpenAI's message, or the bytes themselves."""
    text = body.decode("utf-8", "replace")
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _line(text)
    error = fields.get("error", fields) if isinstance(fields, dict) else fields
    message = error.get("message", text) if isinstance(error, dict) else error
    return _line(message if isinstance(message, str) else text)


def _line(text: str) -> str:
    text = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:MOST_EXPLAINED]
