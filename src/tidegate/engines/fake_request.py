"""What a request asks of the fake engine: read, checked, and made into the tokens of its answer."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from tidegate.engines import fake_text
from tidegate.engines.fake_faults import marks

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"


class FakeRequest(msgspec.Struct):
    """The fields of a chat or text completion that count here."""

    model: str = ""
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[int] | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[Any] | None = None


class RefusedError(ValueError):
    """A request that is answered with 400; `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Answer(msgspec.Struct):
    """What will be answered."""

    prompt_tokens: int
    tokens: list[str]
    finish_reason: str
    asked: Mapping[str, str]
    """What the last user message asks in `[[name:value]]`."""


_DECODER: Final = msgspec.json.Decoder(FakeRequest)


def read(path: str, body: bytes) -> FakeRequest:
    """A request's fields. Raises RefusedError."""
    try:
        request = _DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise RefusedError(f"the body cannot be read: {error}") from None
    if path == CHAT and not request.messages:
        raise RefusedError("messages is required", "messages")
    if path == COMPLETIONS and request.prompt is None:
        raise RefusedError("prompt is required", "prompt")
    if request.n not in {None, 1}:
        raise RefusedError("only n = 1 is supported", "n")
    if (limit := _limit(request)) is not None and limit < 1:
        raise RefusedError(f"max_tokens must be at least 1, got {limit}", "max_tokens")
    return request


def answer(request: FakeRequest, *, default_tokens: int, continues: bool) -> Answer:
    """The answer to a request that was read.

    `continues`: a conversation that ends with an assistant message is always continued (llama.cpp), not only when the
    request says so (vLLM).
    """
    asked: Mapping[str, str] = {}
    if request.messages is not None:
        last = request.messages[-1]
        open_end = last.get("role") == "assistant" and (continues or request.continue_final_message)
        prompt = fake_text.chat_prompt(request.messages, open_end=open_end)
        begun = fake_text.content(last) if open_end else ""
        asked = marks(_last_of_user(request.messages))
    else:
        try:
            prompt = fake_text.decode(request.prompt) if isinstance(request.prompt, list) else request.prompt or ""
        except ValueError:
            raise RefusedError("prompt has ids that are no tokens", "prompt") from None
        begun, asked = prompt, marks(prompt)
    wanted = int(asked["tokens"]) if asked.get("tokens", "").isdigit() else default_tokens
    tokens = _said(asked["text"], begun) if "text" in asked else None
    if tokens is None:
        done, _ = fake_text.progress(begun)
        tokens = _take(fake_text.words_after(begun), max(wanted - done, 0))
    reason = "stop"
    limit = _limit(request)
    if limit is not None and limit < len(tokens):
        tokens, reason = tokens[:limit], "length"
    if request.stop:
        tokens, reason = _stopped(tokens, request.stop, reason)
    return Answer(fake_text.count(prompt), tokens, reason, asked)


def _limit(request: FakeRequest) -> int | None:
    return request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens


def _last_of_user(messages: list[dict[str, Any]]) -> str:
    return next((fake_text.content(message) for message in reversed(messages) if message.get("role") == "user"), "")


def _said(text: str, begun: str) -> list[str]:
    """The tokens, one a character, of a text that was asked for, without what was said already."""
    return list(text.removeprefix(begun))


def _take(words: Iterator[str], number: int) -> list[str]:
    return [next(words) for _ in range(number)]


def _stopped(tokens: list[str], stop: str | list[str], reason: str) -> tuple[list[str], str]:
    """The tokens before the first of the stop strings, the last of them cut."""
    text = "".join(tokens)
    ends = [at for one in ([stop] if isinstance(stop, str) else stop) if one and (at := text.find(one)) >= 0]
    if not ends:
        return tokens, reason
    kept: list[str] = []
    left = min(ends)
    for token in tokens:
        if left <= 0:
            break
        kept.append(token[:left])
        left -= len(token)
    return kept, "stop"
