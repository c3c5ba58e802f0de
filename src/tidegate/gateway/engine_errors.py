"""An engine's error as a client is told it. Pure."""

from typing import Any, Final

import msgspec

from tidegate.errors import BadGateway, BadRequest, RequestError
from tidegate.gateway.fleet import Replica

TOO_LONG: Final = "context_length_exceeded"


def read(body: bytes, replica: Replica | None, path: str) -> RequestError | None:
    """The error in the body of an engine's answer; None where there is none to be read."""
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    return told(error, replica, path) if isinstance(error, dict) else None


def told(error: dict[str, Any], replica: Replica | None, path: str) -> RequestError:
    """An engine's error object. A prompt that is too long is said as OpenAI says it, whichever engine said it."""
    too_long = replica.dialect.length_error(error) if replica is not None else None
    if too_long is not None:
        asked, room = too_long
        return BadRequest(
            f"this model's context is {room} tokens long, and the request has {asked}; shorten the messages",
            code=TOO_LONG,
            param="messages" if path == "/v1/chat/completions" else "prompt",
        )
    message, code = str(error.get("message") or "the engine failed"), error.get("code")
    kind = BadRequest if isinstance(code, int) and 400 <= code < 500 else BadGateway
    return kind(message, code=str(error.get("type") or "engine_failed"))
