"""The fake engine's bytes: events, answers, errors and metrics as vLLM and llama.cpp write them."""

import base64
import hashlib
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tidegate.engines.fake_request import CHAT
from tidegate.engines.fake_text import escaped
from tidegate.types import DialectName

JSON: Final = ((b"content-type", b"application/json"),)
TEXT: Final = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)
STREAM: Final = ((b"content-type", b"text/event-stream; charset=utf-8"),)
DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"
CREATED: Final = 1_796_063_912
"""A fixed time, so that equal requests get equal bytes."""
EMBEDDING_DIMENSIONS: Final = 16
UNBOUNDED: Final = 1_000_000
"""Slots that are reported where their number has no bound."""


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


def event(value: Any) -> bytes:
    """One SSE event."""
    return b"data: " + encode(value) + b"\n\n"


class Writer:
    """The bytes of one request's answer."""

    def __init__(self, path: str, model: str, number: int) -> None:
        self._chat = path == CHAT
        kind = "chatcmpl" if self._chat else "cmpl"
        self._id = f"{kind}-{number:016x}"
        self._model = model
        suffix = ".chunk" if self._chat else ""
        self._object = f"chat.completion{suffix}" if self._chat else "text_completion"
        head = f'data: {{"id":"{self._id}","object":"{self._object}","created":{CREATED},"model":'.encode()
        head += encode(model) + b',"choices":[{"index":0,'
        self._before = head + (b'"delta":{"content":"' if self._chat else b'"text":"')
        self._after = (b'"}' if self._chat else b'"') + b',"logprobs":null,"finish_reason":null}]}\n\n'

    def token(self, text: str) -> bytes:
        """The event of one token."""
        return b"".join((self._before, escaped(text), self._after))

    def first(self) -> bytes:
        """The event before the first token: a chat's role, nothing for a text."""
        return self._choice({"delta": {"role": "assistant", "content": ""}}, None) if self._chat else b""

    def last(self, finish_reason: str) -> bytes:
        """The event that says why the answer ends."""
        return self._choice({"delta": {"content": ""}} if self._chat else {"text": ""}, finish_reason)

    def usage(self, usage: Mapping[str, int]) -> bytes:
        """The event with the usage, which has no choices."""
        return event({**self._head(), "choices": [], "usage": usage})

    def _choice(self, what: Mapping[str, Any], finish_reason: str | None) -> bytes:
        choice = {"index": 0, **what, "logprobs": None, "finish_reason": finish_reason}
        return event({**self._head(), "choices": [choice]})

    def _head(self) -> dict[str, Any]:
        return {"id": self._id, "object": self._object, "created": CREATED, "model": self._model}

    def whole(self, text: str, finish_reason: str, usage: Mapping[str, int]) -> bytes:
        """The JSON answer."""
        what = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **what, "logprobs": None, "finish_reason": finish_reason}
        head = {**self._head(), "object": self._object.removesuffix(".chunk")}
        return encode({**head, "choices": [choice], "usage": usage})


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def error(dialect: DialectName, status: int, message: str, *, kind: str, param: str | None = None) -> bytes:
    """An error body in the dialect's shape."""
    if dialect is DialectName.LLAMACPP:
        return encode({"error": {"code": status, "message": message, "type": kind}})
    return encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


def context_exceeded(dialect: DialectName, prompt_tokens: int, context_tokens: int) -> bytes:
    """The 400 of a prompt that is longer than the context, word for word as the engines of 2026 say it."""
    if dialect is DialectName.LLAMACPP:
        message = (
            f"request ({prompt_tokens} tokens) exceeds the available context size ({context_tokens} tokens), "
            "try increasing it"
        )
        fields = {"code": 400, "message": message, "type": "exceed_context_size_error"}
        return encode({"error": {**fields, "n_prompt_tokens": prompt_tokens, "n_ctx": context_tokens}})
    message = (
        f"This model's maximum context length is {context_tokens} tokens. However, your request has {prompt_tokens} "
        "input tokens. Please reduce the length of the input messages."
    )
    return error(dialect, 400, message, kind="BadRequestError", param="input_tokens")


def embedding(text: str, *, as_base64: bool) -> list[float] | str:
    """A unit vector that depends on the text alone."""
    digest = hashlib.sha512(text.encode()).digest()
    raw = [value - 32_768 for value in struct.unpack(f"<{EMBEDDING_DIMENSIONS}H", digest[: 2 * EMBEDDING_DIMENSIONS])]
    length = sum(value * value for value in raw) ** 0.5 or 1.0
    vector = [value / length for value in raw]
    if as_base64:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    return vector


class Counters(msgspec.Struct):
    """What /metrics counts."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0
    stopped: int = 0
    length: int = 0
    aborted: int = 0
    queue_s: float = 0.0
    first_token_s: float = 0.0
    first_tokens: int = 0
    whole_s: float = 0.0

    @property
    def finished(self) -> int:
        return self.stopped + self.length + self.aborted


def metrics(dialect: DialectName, model: str, counters: Counters, *, running: int, waiting: int, slots: int) -> bytes:
    """The text of /metrics."""
    if dialect is DialectName.LLAMACPP:
        lines = _llamacpp_metrics(counters, running, waiting)
        labels = ""
    else:
        lines = _vllm_metrics(counters, running, waiting, slots)
        labels = f'engine="0",model_name={encode(model).decode()}'
    return "".join(_line(name, labels, value) for name, value in lines.items()).encode()


def _line(name: str, labels: str, value: float) -> str:
    name, brace, own = name.partition("{")
    inside = ",".join(part for part in (labels, own.rstrip("}") if brace else "") if part)
    return f"{name}{{{inside}}} {value}\n" if inside else f"{name} {value}\n"


def _vllm_metrics(counters: Counters, running: int, waiting: int, slots: int) -> dict[str, float]:
    finished = counters.finished
    return {
        "vllm:num_requests_running": running,
        "vllm:num_requests_waiting": waiting,
        "vllm:kv_cache_usage_perc": min(1.0, running / slots),
        "vllm:num_preemptions_total": 0,
        "vllm:prompt_tokens_total": counters.prompt_tokens,
        "vllm:generation_tokens_total": counters.generation_tokens,
        "vllm:iteration_tokens_total_sum": counters.prompt_tokens + counters.generation_tokens,
        "vllm:iteration_tokens_total_count": counters.steps,
        'vllm:request_success_total{finished_reason="stop"}': counters.stopped,
        'vllm:request_success_total{finished_reason="length"}': counters.length,
        'vllm:request_success_total{finished_reason="abort"}': counters.aborted,
        "vllm:request_queue_time_seconds_sum": counters.queue_s,
        "vllm:request_queue_time_seconds_count": finished,
        "vllm:time_to_first_token_seconds_sum": counters.first_token_s,
        "vllm:time_to_first_token_seconds_count": counters.first_tokens,
        "vllm:e2e_request_latency_seconds_sum": counters.whole_s,
        "vllm:e2e_request_latency_seconds_count": finished,
    }


def _llamacpp_metrics(counters: Counters, running: int, waiting: int) -> dict[str, float]:
    return {
        "llamacpp:prompt_tokens_total": counters.prompt_tokens,
        "llamacpp:tokens_predicted_total": counters.generation_tokens,
        "llamacpp:n_decode_total": counters.steps,
        "llamacpp:requests_processing": running,
        "llamacpp:requests_deferred": waiting,
    }
