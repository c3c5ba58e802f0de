"""Whether an engine really answers: one token, asked for over HTTP as a client would."""

from collections.abc import Mapping
from typing import Any, Final

import httpx
import msgspec

from tidegate.errors import EngineStartError

QUESTION: Final = "Hi"
ANSWER_TIMEOUT_S: Final = 120.0
"""Longest wait for one token: an engine may be busy, and on a slow disk the weights are read by the first request."""
CONNECT_TIMEOUT_S: Final = 5.0


class NoTokenError(EngineStartError):
    """It answered, but not with a token. `statuses` are what chat and completion were answered with."""

    def __init__(self, message: str, statuses: tuple[int, ...]) -> None:
        super().__init__(message)
        self.statuses = statuses


def client(url: str, api_key: str = "") -> httpx.AsyncClient:
    """A client for an engine's own URL: no proxy of the environment between, each request on a connection of its own."""
    return httpx.AsyncClient(
        base_url=url,
        headers={"authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),  # llama.cpp closes kept-alive connections when it likes
    )


async def one_token(http: httpx.AsyncClient, model: str) -> None:
    """Have one token generated, by chat or, for a model that has no template, by completion.

    Raises NoTokenError with the engine's own words when it refuses, httpx.TransportError when it does not answer.
    """
    bodies: Mapping[str, Mapping[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": QUESTION}]},
        "/v1/completions": {"prompt": QUESTION},
    }
    refusals, statuses = [], []
    for path, body in bodies.items():
        answer = await http.post(path, json={"model": model, "max_tokens": 1, "stream": False, **body})
        if answer.status_code == httpx.codes.OK and has_token(answer.content):
            return
        statuses.append(answer.status_code)
        refusals.append(f"{path} answered {answer.status_code}: {answer.text[:300].strip()}")
    message = f"{http.base_url} does not answer a one-token request: {'; '.join(refusals)}"
    raise NoTokenError(message, tuple(statuses))


async def takes_priorities(http: httpx.AsyncClient, model: str) -> bool:
    """Whether vLLM answers a request that says how urgent it is: one that schedules by arrival may refuse it.

    Raises httpx.TransportError.
    """
    body = {"model": model, "max_tokens": 1, "prompt": QUESTION}
    answer = await http.post("/v1/completions", json=body, headers={"x-vllm-priority": "1"})
    return answer.status_code == httpx.codes.OK


async def embeds(http: httpx.AsyncClient, model: str) -> bool:
    """Whether it answers /v1/embeddings. Raises httpx.TransportError."""
    answer = await http.post("/v1/embeddings", json={"model": model, "input": QUESTION})
    return answer.status_code == httpx.codes.OK and b'"embedding"' in answer.content


def has_token(body: bytes) -> bool:
    """Whether an answer counts at least one generated token, or has text where it does not count."""
    try:
        answer = msgspec.json.decode(body)
        choice = answer["choices"][0]
        counted = (answer.get("usage") or {}).get("completion_tokens")
        if counted is not None:
            return bool(counted)
        return bool(choice.get("text") or (choice.get("message") or {}).get("content"))
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        return False


def tools_of(props: Any) -> bool | None:
    """Whether a chat template knows tools, as llama.cpp's /props tells; None where it does not."""
    caps = props.get("chat_template_caps") if isinstance(props, dict) else None
    told = caps.get("supports_tools") if isinstance(caps, dict) else None
    return told if isinstance(told, bool) else None


async def get_json(http: httpx.AsyncClient, path: str) -> Any:
    """The JSON at a path; None where there is none. Raises httpx.TransportError."""
    answer = await http.get(path)
    if answer.status_code != httpx.codes.OK:
        return None
    try:
        return msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        return None
