"""One JSON answer put together from the events of a stream. Pure.

A JSON request goes to some engines as a stream, because they end a stream when its client goes away and never a JSON
answer (see `Dialect.json_as_stream`). What the client gets is what the engine would have answered itself.
"""

from typing import Any, Final

import msgspec

from tidegate.errors import UpstreamClosedError
from tidegate.openai import Usage, split_events, usage_of, whole_events

_decode = msgspec.json.Decoder(dict[str, Any]).decode


NO_NEWS: Final = frozenset((b"[DONE]", b"null"))
"""Events that say nothing of the answer; llama.cpp begins the stream of several prompts with a null."""


class Assembly:
    """Feed it the stream's bytes; `answer` is the body when they are whole."""

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self._tail = b""
        self._frame: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._error: dict[str, Any] | None = None
        self._done = False

    def feed(self, data: bytes) -> None:
        """Some bytes of the stream. Raises UpstreamClosedError for an event that is none of OpenAI's."""
        data = self._tail + data
        end = whole_events(data)
        self._tail = data[end:]
        for event in split_events(data[:end]):
            if event == b"[DONE]":
                self._done = True
            if event in NO_NEWS:
                continue
            try:
                self._take(_decode(event))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise UpstreamClosedError(f"an event is not what an engine sends: {error}") from None

    @property
    def error(self) -> dict[str, Any] | None:
        """The engine's error object, if it sent one in the stream."""
        return self._error

    @property
    def whole(self) -> bool:
        """Whether every choice was finished."""
        return self._done and bool(self._choices) and all(c["finish_reason"] for c in self._choices.values())

    @property
    def usage(self) -> Usage | None:
        """What the engine said that the answer cost."""
        return usage_of(self._frame)

    def answer(self) -> bytes:
        """The body of the JSON answer."""
        frame = dict(self._frame)
        frame["object"] = "chat.completion" if self._chat else "text_completion"
        frame["choices"] = [self._choices[index] for index in sorted(self._choices)]
        return msgspec.json.encode(frame)

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self._error = event["error"] if isinstance(event["error"], dict) else {"message": str(event["error"])}
            return
        for choice in event.pop("choices", None) or ():
            self._add(choice)
        self._frame |= {name: value for name, value in event.items() if value is not None}

    def _add(self, piece: dict[str, Any]) -> None:
        index = piece.get("index", 0)
        choice = self._choices.get(index)
        if choice is None:
            start: dict[str, Any] = {"message": {"role": "assistant", "content": None}} if self._chat else {"text": ""}
            choice = self._choices[index] = {"index": index, **start, "logprobs": None, "finish_reason": None}
        if self._chat:
            _add_delta(choice["message"], piece.get("delta") or {})
        else:
            choice["text"] += piece.get("text") or ""
        if piece.get("logprobs"):
            choice["logprobs"] = _joined(choice["logprobs"], piece["logprobs"])
        for name in ("finish_reason", "stop_reason"):
            if piece.get(name) is not None:
                choice[name] = piece[name]


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if value is None:
            continue
        if name == "tool_calls":
            _add_tool_calls(message.setdefault("tool_calls", []), value)
        elif name != "role" and isinstance(value, str):
            message[name] = (message.get(name) or "") + value
        else:
            message[name] = value


def _add_tool_calls(calls: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    for piece in pieces:
        index = piece.get("index", 0)
        while len(calls) <= index:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[index]
        call["id"] = piece.get("id") or call["id"]
        call["type"] = piece.get("type") or call["type"]
        for name, value in (piece.get("function") or {}).items():
            call["function"][name] = call["function"].get(name, "") + (value or "")


def _joined(known: dict[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    if known is None:
        return {name: list(value) if isinstance(value, list) else value for name, value in more.items()}
    for name, value in more.items():
        if isinstance(value, list):
            known[name] = [*(known.get(name) or ()), *value]
    return known
