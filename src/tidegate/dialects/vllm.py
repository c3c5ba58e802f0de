"""vLLM's OpenAI server. Source: vllm/entrypoints/openai of vLLM 0.32."""

import re
from typing import Any

from tidegate.dialects.base import Call, Dialect, Steps
from tidegate.types import DialectName


def tokenize(request: dict[str, Any]) -> Steps:
    """Asked and answered in its own shape."""
    answer: dict[str, Any] = yield Call("/tokenize", request)
    return answer


def detokenize(request: dict[str, Any]) -> Steps:
    """Asked and answered in its own shape."""
    answer: dict[str, Any] = yield Call("/detokenize", request)
    return answer


_ROOM = re.compile(r"maximum context length is (\d+) tokens")
_ASKED = re.compile(r"(\d+)(?= (?:input |prompt )?tokens| in the messages)")


def length_error(error: dict[str, Any]) -> tuple[int, int] | None:
    """It says both numbers in words, which have changed from version to version."""
    message = str(error.get("message") or "")
    room = _ROOM.search(message)
    asked = _ASKED.search(message, room.end()) if room is not None else None
    return (int(asked[1]), int(room[1])) if room is not None and asked is not None else None


VLLM = Dialect(
    name=DialectName.VLLM,
    paths=frozenset(
        (
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/embeddings",
            "/v1/rerank",
            "/v1/responses",
            "/v1/score",
        )
    ),
    json_as_stream=frozenset(),
    private_fields=frozenset(("priority", "chat_template", "kv_transfer_params", "request_id", "vllm_xargs")),
    tokenize=tokenize,
    detokenize=detokenize,
    continue_flags={"add_generation_prompt": False, "continue_final_message": True},
    length_error=length_error,
)
