"""Any other OpenAI-compatible server: only what the API itself names."""

from tidegate.dialects.base import Dialect
from tidegate.dialects.vllm import length_error
from tidegate.types import DialectName

OPENAI = Dialect(
    name=DialectName.OPENAI,
    paths=frozenset(("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/responses")),
    json_as_stream=frozenset(),
    private_fields=frozenset(("priority", "chat_template")),
    tokenize=None,
    detokenize=None,
    continue_flags={},
    length_error=length_error,
)
