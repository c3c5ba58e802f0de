"""vLLM's OpenAI server. Source: vllm/entrypoints/openai of vLLM 0.32."""

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
)
