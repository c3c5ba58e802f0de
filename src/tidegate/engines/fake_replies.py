"""What the fake engine answers without generating: models, tokens, embeddings, and what it says of itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidegate.engines import fake_text, fake_wire
from tidegate.engines.fake_request import FakeRequest
from tidegate.types import DialectName

VERSION: Final = "0.32.0"
"""The vLLM that is imitated."""


@dataclass(frozen=True)
class Replies:
    """The replies of one engine."""

    model: str
    dialect: DialectName
    context_tokens: int
    slots: int | None

    def reply(self, path: str, asked: dict[str, Any], running: int) -> Any:
        """The JSON of a path; None where there is none. Raises LookupError, TypeError, ValueError for a wrong request."""
        llamacpp = self.dialect is DialectName.LLAMACPP
        match path:
            case "/v1/models":
                return self._models()
            case "/v1/embeddings":
                return self._embeddings(asked)
            case "/tokenize":
                tokens = fake_text.encode(str(asked.get("content", "")) if llamacpp else self._prompt(asked))
                if llamacpp:
                    return {"tokens": tokens}
                whole = {"count": len(tokens), "max_model_len": self.context_tokens, "tokens": tokens}
                return {**whole, "token_strs": None}
            case "/detokenize":
                return {"content" if llamacpp else "prompt": fake_text.decode(asked["tokens"])}
            case "/version" if not llamacpp:
                return {"version": VERSION}
            case "/apply-template" if llamacpp:
                return {"prompt": self._prompt(asked)}
            case "/props" if llamacpp:
                return {
                    "default_generation_settings": {"n_ctx": self.context_tokens},
                    "total_slots": self.slots or fake_wire.UNBOUNDED,
                    "model_alias": self.model,
                    "model_ftype": "Q8_0",
                    "chat_template": "fake",
                }
            case "/slots" if llamacpp:
                return [
                    {"id": number, "n_ctx": self.context_tokens, "is_processing": number < running}
                    for number in range(self.slots or running)
                ]
            case _:
                return None

    def _models(self) -> Any:
        entry = {"id": self.model, "object": "model", "created": fake_wire.CREATED}
        if self.dialect is DialectName.LLAMACPP:
            entry |= {"owned_by": "llamacpp", "meta": {"n_ctx": self.context_tokens, "n_params": 0}}
        else:
            entry |= {"owned_by": "vllm", "root": self.model, "max_model_len": self.context_tokens}
        return {"object": "list", "data": [entry]}

    def _embeddings(self, asked: dict[str, Any]) -> Any:
        given = asked["input"]
        texts = [given] if isinstance(given, str) else [text if isinstance(text, str) else str(text) for text in given]
        as_base64 = asked.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": at, "embedding": fake_wire.embedding(text, as_base64=as_base64)}
            for at, text in enumerate(texts)
        ]
        tokens = sum(map(fake_text.count, texts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": asked.get("model", self.model), "usage": usage}

    def _prompt(self, asked: dict[str, Any]) -> str:
        """The text of a request in vLLM's shape: `prompt`, or `messages` through the template."""
        if "messages" not in asked:
            return str(asked["prompt"])
        request = msgspec.convert(asked, FakeRequest)
        messages: Sequence[dict[str, Any]] = request.messages or []
        last_is_assistant = bool(messages) and messages[-1].get("role") == "assistant"
        continues = request.continue_final_message or self.dialect is DialectName.LLAMACPP
        open_end = last_is_assistant and continues
        prompt = fake_text.chat_prompt(messages, open_end=open_end)
        if not open_end and not request.add_generation_prompt:
            prompt = prompt.removesuffix("assistant: ")
        return prompt
