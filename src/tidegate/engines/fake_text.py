"""The fake engine's language: an endless text that every answer begins, and tokens that can be turned back.

The text is `词0 词1 词2 ...`, one token each, so that whoever reads an answer sees at once what is missing or twice,
and any engine can go on with it from any character. Every other character is a token of its own.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

FIRST_WORD_ID: Final = 2_000_000
"""Ids below are code points."""
BEGIN: Final = "词0 "

_TOKEN: Final = re.compile(r"词(\d{1,7}) |.", re.DOTALL)


@lru_cache(maxsize=8192)
def word(number: int) -> str:
    """Token `number` of every answer."""
    return f"词{number} "


def progress(text: str) -> tuple[int, str]:
    """How much of the answer a text ends with: its whole words, and what is left of one that was cut."""
    at = text.rfind(BEGIN)
    if at < 0:
        cut = next((size for size in range(len(BEGIN) - 1, 0, -1) if text.endswith(BEGIN[:size])), 0)
        return 0, BEGIN[cut:] if cut else ""
    number = 0
    while at < len(text):
        piece = word(number)
        if not text.startswith(piece, at):
            said = text[at:]
            return (number, piece[len(said) :]) if piece.startswith(said) else (0, "")
        number += 1
        at += len(piece)
    return number, ""


def words_after(text: str) -> Iterator[str]:
    """The tokens that continue `text`, the first of them what is left of one that was cut; from the start if unknown."""
    number, left = progress(text)
    if left:
        yield left
        number += 1
    while True:
        yield word(number)
        number += 1


def encode(text: str) -> list[int]:
    """Tokens of a text."""
    return [FIRST_WORD_ID + int(found[1]) if found[1] else ord(found[0]) for found in _TOKEN.finditer(text)]


def decode(tokens: Sequence[int]) -> str:
    """The text of tokens. Raises ValueError for what is none."""
    return "".join(word(token - FIRST_WORD_ID) if token >= FIRST_WORD_ID else chr(token) for token in tokens)


def count(text: str) -> int:
    """Number of tokens of a text."""
    return len(text) if "词" not in text else len(encode(text))


def chat_prompt(messages: Sequence[Mapping[str, Any]], *, open_end: bool) -> str:
    """What a chat's template makes of it; `open_end` leaves the last message, the assistant's, to be continued."""
    lines = [f"{message.get('role', '')}: {content(message)}\n" for message in messages]
    if open_end:
        return "".join(lines)[:-1]
    return "".join(lines) + "assistant: "


def content(message: Mapping[str, Any]) -> str:
    """The text of a message, of its text parts if it has parts."""
    value = message.get("content")
    if isinstance(value, list):
        return "".join(str(part.get("text", "")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


@lru_cache(maxsize=8192)
def escaped(text: str) -> bytes:
    """A text as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()
