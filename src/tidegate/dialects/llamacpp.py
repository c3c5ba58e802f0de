"""llama.cpp's server. Source: tools/server/README.md of llama.cpp, and its answers."""

from typing import Any

from tidegate.dialects.base import Call, Dialect, Steps
from tidegate.types import DialectName


def tokenize(request: dict[str, Any]) -> Steps:
    """Tokens of a text or of a chat, counted as a request with them would be.

    Its /tokenize takes `content` and answers an empty list to anything else; a chat's prompt is made by
    /apply-template, whose special tokens have to be parsed as such.
    """
    if request.get("messages") is not None:
        template = {"messages": request["messages"]}
        template |= {name: request[name] for name in ("tools", "add_generation_prompt") if name in request}
        prompt = (yield Call("/apply-template", template))["prompt"]
        special = True
    else:
        prompt = request["prompt"]
        special = False
    body = {"content": prompt, "add_special": request.get("add_special_tokens", True), "parse_special": special}
    tokens = (yield Call("/tokenize", body))["tokens"]
    return {"count": len(tokens), "tokens": tokens}


def detokenize(request: dict[str, Any]) -> Steps:
    """The text of tokens."""
    answer = yield Call("/detokenize", {"tokens": request["tokens"]})
    return {"prompt": answer["content"]}


def length_error(error: dict[str, Any]) -> tuple[int, int] | None:
    """`{"type": "exceed_context_size_error", "n_prompt_tokens": …, "n_ctx": …}`."""
    asked, room = error.get("n_prompt_tokens"), error.get("n_ctx")
    if error.get("type") != "exceed_context_size_error" or not isinstance(asked, int) or not isinstance(room, int):
        return None
    return asked, room


LLAMACPP = Dialect(
    name=DialectName.LLAMACPP,
    paths=frozenset(("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank")),
    json_as_stream=frozenset(("/v1/chat/completions", "/v1/completions")),
    private_fields=frozenset(("priority", "chat_template", "id_slot", "lora", "n_keep", "n_discard")),
    tokenize=tokenize,
    detokenize=detokenize,
    continue_flags={},
    length_error=length_error,
)
