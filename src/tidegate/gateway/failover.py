"""Going on with a half-written answer on another replica. Pure: from what was sent to what is asked next.

The kept events are read for the first time when their replica is gone. What they say becomes a request that another
replica of the same weights, quantisation and template continues from the word where the text stopped; its events take
on the identity of the first ones, so that the client sees one answer, without a gap and with nothing twice.

Asking an engine again is safe although the request is a POST: it changes nothing but the time it costs.
"""

from typing import Any, Final

import msgspec

from tidegate import openai
from tidegate.openai import Fields, Usage

CHAT: Final = "/v1/chat/completions"
GUIDES: Final = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
                 "guided_grammar", "grammar", "json_schema")  # fmt: skip
"""Fields that hold an answer to a form: what was checked before the break is not known to the next engine."""


class Sent(msgspec.Struct):
    """What a client has been sent of an answer."""

    id: str = ""
    created: int = 0
    model: str = ""
    role_sent: bool = False
    text: str = ""
    tokens: int = 0
    """Of the text: as many as events with text, until an engine has counted them. vLLM joins tokens when it is behind."""
    finished: bool = False
    odd: bool = False
    """Whether there is something in it that no continuation can take up: tool calls, reasoning, log probabilities."""


def read_sent(payload: bytes, path: str) -> Sent:
    """Read the kept events. Raises UpstreamClosedError for one that is not readable."""
    sent = Sent()
    for data in openai.split_events(payload):
        if data == b"[DONE]":
            continue
        event = openai.decode_event(data)
        sent.id = sent.id or str(event.get("id") or "")
        sent.created = sent.created or int(event.get("created") or 0)
        sent.model = sent.model or str(event.get("model") or "")
        for choice in event.get("choices") or ():
            _read_choice(sent, choice, path)
    return sent


def _read_choice(sent: Sent, choice: dict[str, Any], path: str) -> None:
    sent.odd = sent.odd or bool(choice.get("index")) or choice.get("logprobs") is not None
    sent.finished = sent.finished or choice.get("finish_reason") is not None
    if path != CHAT:
        piece = choice.get("text") or ""
    else:
        delta = choice.get("delta") or {}
        sent.role_sent = sent.role_sent or "role" in delta
        piece = delta.get("content") or ""
        sent.odd = sent.odd or any(value for name, value in delta.items() if name not in {"role", "content"})
    if piece:
        sent.text += piece
        sent.tokens += 1


def can_continue(fields: Fields, sent: Sent) -> bool:
    """Whether another engine could take this answer up where it stopped."""
    if sent.odd:
        return False
    if not sent.text:
        return True
    if (
        _decoded(fields, "n") not in {None, 1}
        or _decoded(fields, "echo")
        or _decoded(fields, "best_of") not in {None, 1}
    ):
        return False
    if _decoded(fields, "logprobs") or _decoded(fields, "tools"):
        return False
    for name in GUIDES:
        guide = _decoded(fields, name)
        if guide is not None and not (isinstance(guide, dict) and guide.get("type") == "text"):
            return False
    return isinstance(_decoded(fields, "prompt"), str) or isinstance(_decoded(fields, "messages"), list)


def continuation(fields: Fields, sent: Sent, path: str, *, flags: dict[str, Any]) -> Fields | None:
    """The request for the rest of the answer; None if nothing is left to say. `flags` are the dialect's own."""
    rest = dict(fields)
    for limit in ("max_tokens", "max_completion_tokens"):
        allowed = _decoded(fields, limit)
        if isinstance(allowed, int):
            if allowed - sent.tokens < 1:
                return None
            rest[limit] = _raw(allowed - sent.tokens)
    if not sent.text:
        return rest
    if path == CHAT:
        messages = list(_decoded(fields, "messages"))
        last = messages[-1]
        if isinstance(last, dict) and last.get("role") == "assistant" and isinstance(last.get("content"), str):
            messages[-1] = {**last, "content": last["content"] + sent.text}
        else:
            messages.append({"role": "assistant", "content": sent.text})
        rest["messages"] = _raw(messages)
        rest |= {name: _raw(value) for name, value in flags.items()}
    else:
        rest["prompt"] = _raw(_decoded(fields, "prompt") + sent.text)
    return rest


def last_event(sent: Sent, path: str) -> bytes:
    """What ends an answer whose replica died with nothing left to say."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    choice["delta" if path == CHAT else "text"] = {} if path == CHAT else ""
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    head = {"id": sent.id, "object": kind, "created": sent.created, "model": sent.model}
    return msgspec.json.encode({**head, "choices": [choice]})


class Continuation:
    """Makes another engine's events the rest of the first one's answer."""

    def __init__(self, fields: Fields, sent: Sent, path: str) -> None:
        self._sent, self._path = sent, path
        stops = _decoded(fields, "stop")
        self._stops = tuple(s for s in ([stops] if isinstance(stops, str) else stops or ()) if isinstance(s, str) and s)
        self._reach = max(map(len, self._stops), default=1) - 1
        self._seam = sent.text[-self._reach :] if self._reach else ""
        """The end of the text before the seam: a stop string may begin in it."""
        self._since = ""
        """The text after the seam, for as long as a stop string could still span it."""
        self.stopped = False
        """Whether a stop string that straddles the seam has ended the answer."""

    def event(self, data: bytes) -> bytes | None:
        """An engine's event as the client is to see it; None for one that is not for the client."""
        if self.stopped:
            return None
        event = openai.decode_event(data)
        sent = self._sent
        if sent.id:
            event["id"], event["created"], event["model"] = sent.id, sent.created, sent.model
        usage = openai.usage_of(event)
        if usage is not None:
            whole = self.whole_usage(usage)
            event["usage"] |= {
                "prompt_tokens": whole.prompt_tokens,
                "completion_tokens": whole.completion_tokens,
                "total_tokens": whole.prompt_tokens + whole.completion_tokens,
            }
        event.pop("timings", None)  # of the rest alone: true of nothing the client sees
        choices = event.get("choices") or []
        said = [self._choice(choice) for choice in choices]
        if choices and not any(said):
            return None
        return msgspec.json.encode(event)

    def whole_usage(self, usage: Usage) -> Usage:
        """What both engines' work cost as one answer: the text before the seam was generated, not asked."""
        tokens = self._sent.tokens
        return Usage(max(0, usage.prompt_tokens - tokens), usage.completion_tokens + tokens)

    def _choice(self, choice: dict[str, Any]) -> bool:
        """Bring one choice into line; whether anything is left of it to be said."""
        holder, name = (choice.setdefault("delta", {}), "content") if self._path == CHAT else (choice, "text")
        if self._sent.role_sent and self._path == CHAT:
            holder.pop("role", None)
            if not holder.get("content"):
                holder.pop("content", None)
        piece = holder.get(name) or ""
        if piece and self._seam:
            holder[name] = piece = self._cut_at_stop(choice, piece)
        rest = [value for key, value in holder.items() if key not in {name, "index", "logprobs", "finish_reason"}]
        return bool(piece or choice.get("finish_reason") or (self._path == CHAT and any(rest)))

    def _cut_at_stop(self, choice: dict[str, Any], piece: str) -> str:
        """The piece, or nothing of it where it completes a stop string that began before the seam."""
        self._since += piece
        both = self._seam + self._since
        if any(0 <= both.find(stop) < len(self._seam) for stop in self._stops):
            self.stopped = True
            choice["finish_reason"] = "stop"
            return ""
        if len(self._since) >= self._reach:
            self._seam = ""
        return piece


def _decoded(fields: Fields, name: str) -> Any:
    raw = fields.get(name)
    return None if raw is None else msgspec.json.decode(raw)


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
