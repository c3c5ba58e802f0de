"""The shape of a dialect."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.types import DialectName


@dataclass(frozen=True)
class Call:
    """One JSON request to an engine."""

    path: str
    body: dict[str, Any]


Steps = Generator[Call, Any, dict[str, Any]]
"""Asks the calls it yields, is sent each answer's JSON, and returns an answer in vLLM's shape."""


@dataclass(frozen=True)
class Dialect:
    """How one kind of engine is spoken to."""

    name: DialectName
    paths: frozenset[str]
    """Paths a client may reach; everything else is 404."""
    json_as_stream: frozenset[str]
    """Paths on which a JSON request goes to the engine as a stream, so that it ends when its client goes away."""
    private_fields: frozenset[str]
    """Request fields that only an operator may decide; taken out of what clients send."""
    tokenize: Callable[[dict[str, Any]], Steps] | None
    """Steps of /tokenize, from a request in vLLM's shape; None where the engine has no tokenizer to ask."""
    detokenize: Callable[[dict[str, Any]], Steps] | None
    continue_flags: Mapping[str, Any]
    """Chat fields that make it go on with the last assistant message instead of answering it."""
    length_error: Callable[[dict[str, Any]], tuple[int, int] | None]
    """Tokens asked for and tokens there is room for, where an error object says that a prompt is too long; else None."""
