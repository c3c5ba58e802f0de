"""Whether an engine goes on with a half-written answer as it would have gone on with its own.

It is asked once, when it has become ready: a text is generated greedily, cut in the middle at the border of an event,
and asked for again from there in the way in which a failover would. Some templates put other tokens before an
assistant's text than before an answer; there the words come out different.
"""

from collections.abc import Mapping
from typing import Any, Final

import httpx
import msgspec

from tidegate.dialects import DIALECTS
from tidegate.engines import readiness
from tidegate.types import DialectName

TOKENS: Final = 24
PROMPTS: Final = ("Tell me a story about a river.", "Explain why the sky is blue.")
"""Open ones, whose next words depend on every token before. The second has a say where the first came out different:
beside other requests the numbers an engine computes differ in their last bits, and a close choice may turn."""
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"


class _NotAskedError(Exception):
    """The engine does not answer such a request."""


async def continues(url: str, api_key: str, dialect: DialectName, served_name: str) -> bool:
    """Whether both chat and completions are continued equally, as far as the engine has them; False if that cannot be told."""
    try:
        async with readiness.client(url, api_key) as http:
            for prompt in PROMPTS:
                if await _continues(http, dialect, served_name, prompt):
                    return True
    except (httpx.HTTPError, httpx.InvalidURL):
        pass
    return False


async def _continues(http: httpx.AsyncClient, dialect: DialectName, model: str, prompt: str) -> bool:
    asked = {"model": model, "temperature": 0, "seed": 1, "stream": True}
    found: list[bool] = []
    messages = [{"role": "user", "content": prompt}]
    flags = DIALECTS[dialect].continue_flags

    def chat(text: str) -> dict[str, Any]:
        more = [{"role": "assistant", "content": text}] if text else []
        return {**asked, "messages": messages + more, **(flags if text else {})}

    def completion(text: str) -> dict[str, Any]:
        return {**asked, "prompt": prompt + text}

    for path, body in ((CHAT, chat), (COMPLETIONS, completion)):
        if path == CHAT and dialect is DialectName.OPENAI:  # the API itself has no way to ask for it
            continue
        try:
            whole = await _pieces(http, path, {**body(""), "max_tokens": TOKENS})
        except _NotAskedError:
            continue
        middle = len(whole) // 2
        if not middle:
            return False
        try:
            rest = await _pieces(http, path, {**body("".join(whole[:middle])), "max_tokens": TOKENS - middle})
        except _NotAskedError:
            return False
        # vLLM joins tokens in one event when it is behind: then the rest is asked for with a few tokens too many
        found.append("".join(rest).startswith("".join(whole[middle:])))
    return bool(found) and all(found)


async def _pieces(http: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> list[str]:
    """The text of each event. Raises _NotAskedError where the request is refused or the answer is no such stream."""
    pieces: list[str] = []
    async with http.stream("POST", path, json=body) as answer:
        if answer.status_code != httpx.codes.OK:
            raise _NotAskedError
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            try:
                choices = msgspec.json.decode(line[6:]).get("choices") or [{}]
                piece = choices[0].get("text") or (choices[0].get("delta") or {}).get("content")
            except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
                raise _NotAskedError from None
            if piece:
                pieces.append(piece)
    return pieces
