"""What a plan has to know of a model: its shape, from `config.json`, and the size of its weights, from its files.

The numbers are those of the safetensors folder that vLLM loads; a GGUF file tells its own (`tidegate.gguf`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tidegate.errors import ModelError

DTYPE_BYTES: Final[Mapping[str, float]] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1, "int4": 0.5}
WEIGHTS: Final = "*.safetensors"
INDEX: Final = "model.safetensors.index.json"

UNTOLD_CONTEXT: Final = 2048
"""What vLLM takes for a model that does not tell its positions."""
OLDER_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden_size": ("n_embd", "d_model"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length"),
    "num_attention_heads": ("n_head", "num_heads", "n_heads"),
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
}
"""What GPT-2, MPT, ChatGLM and others of their time call the same numbers."""
GENERATIVE: Final = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""How architectures of models that write texts end."""

ERNIE_CONFIG: Final[Mapping[str, Any]] = {
    "architectures": ["Ernie4_5ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 16,
    "num_hidden_layers": 18,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 103_424,
}
"""The shape of ERNIE-4.5-0.3B-PT, so that it can be planned for before it is here."""

FIRST_VERSION: Final[Mapping[str, tuple[int, ...]]] = {
    "Ernie4_5ForCausalLM": (0, 10),
    "Ernie4_5_MoeForCausalLM": (0, 10),
    "Gemma3ForCausalLM": (0, 8),
    "GptOssForCausalLM": (0, 10, 1),
    "Qwen3ForCausalLM": (0, 8, 4),
}
"""The first vLLM that knows an architecture, where that is not long ago."""
RENAMED: Final[Mapping[str, str]] = {"Ernie4_5_ForCausalLM": "Ernie4_5ForCausalLM"}
"""Architecture names of older configs that vLLM does not know, and what it calls them."""


@dataclass(frozen=True)
class ModelFacts:
    """Shape and size of a model."""

    name: str
    architecture: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_tokens: int
    """Positions it was trained on."""
    dtype: str
    """Of the weights as they are kept: float32, bfloat16 or float16."""
    parameters: int
    weights_bytes: int
    """On disk, in `dtype` or as `quantised`."""
    quantised: str = ""
    """The method its weights were quantised with; empty for none."""
    experts: int = 0
    """Of each layer; 0 for a dense model."""
    latent_values: int = 0
    """Numbers a token leaves in the KV cache of a layer where keys and values are kept compressed (MLA); else 0."""

    @property
    def dense(self) -> bool:
        return not self.experts

    @property
    def generates(self) -> bool:
        """Whether it writes texts; others make embeddings or scores of whole ones."""
        return self.architecture.endswith(GENERATIVE)

    @property
    def kv_values_per_token(self) -> int:
        """Numbers a token leaves in the KV cache: keys and values of every head of every layer."""
        return self.layers * (self.latent_values or 2 * self.kv_heads * self.head_dim)

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of the KV cache for a token; 18 KiB for ERNIE-4.5-0.3B in 16 bit."""
        return int(self.kv_values_per_token * DTYPE_BYTES[dtype])

    def weights_bytes_as(self, dtype: str) -> int:
        """Bytes of the weights once loaded as `dtype`; quantised ones stay as they are.

        Online fp8 leaves embeddings and the output layer as they were, so that those count in full.
        """
        if self.quantised or dtype == self.dtype:
            return self.weights_bytes
        if dtype == "fp8":
            embedded = self.vocabulary * self.hidden
            return int(min(self.weights_bytes, self.parameters - embedded + 2 * embedded))
        return int(self.weights_bytes * DTYPE_BYTES[dtype] / DTYPE_BYTES[self.dtype])


def spread(model: ModelFacts, gpus: int) -> ModelFacts:
    """What each of `gpus` has of a model that is shared out among them (tensor or pipeline parallel)."""
    return replace(
        model,
        weights_bytes=-(-model.weights_bytes // gpus),
        parameters=-(-model.parameters // gpus),
        kv_heads=max(1, model.kv_heads // gpus),
    )


def from_config(config: Mapping[str, Any], *, name: str, weights_bytes: int | None = None) -> ModelFacts:
    """Facts from the fields of a `config.json`. Without `weights_bytes` they are worked out from the shape.

    Raises ModelError for a config that lacks what is needed.
    """
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else None
    top = {**config, **(text or {})}
    try:
        hidden, heads = _number(top, "hidden_size"), _number(top, "num_attention_heads")
        names = top.get("architectures") or ["unknown"]
        quantisation = top.get("quantization_config") or {}
        latent = int(top.get("kv_lora_rank") or 0)
        facts = ModelFacts(
            name=name,
            architecture=str(names[0]),
            layers=_number(top, "num_hidden_layers"),
            hidden=hidden,
            feed_forward=_number(top, "intermediate_size", 4 * hidden),
            heads=heads,
            kv_heads=int(top.get("num_key_value_heads") or heads),
            head_dim=int(top.get("head_dim") or hidden // heads),
            vocabulary=int(top["vocab_size"]),
            context_tokens=_number(top, "max_position_embeddings", UNTOLD_CONTEXT),
            dtype=_dtype(top.get("dtype") or top.get("torch_dtype")),
            parameters=0,
            weights_bytes=weights_bytes or 0,
            quantised=str(quantisation.get("quant_method", "")) if isinstance(quantisation, dict) else "",
            experts=int(top.get("num_experts") or top.get("n_routed_experts") or top.get("num_local_experts") or 0)
            or int(top.get("moe_num_experts") or 0),
            latent_values=latent + int(top.get("qk_rope_head_dim") or 0) if latent else 0,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"has a wrong number: {error}"
        raise ModelError(f"the config.json of {name} {what}", hint="is it a language model's folder, whole?") from None
    if min(facts.layers, facts.hidden, facts.heads, facts.kv_heads, facts.head_dim, facts.vocabulary) < 1:
        raise ModelError(f"the config.json of {name} has a size of 0 or less")
    if weights_bytes is not None:
        count = int(weights_bytes / DTYPE_BYTES[facts.dtype]) if not facts.quantised else _parameters(top, facts)
        return replace(facts, parameters=count)
    count = _parameters(top, facts)
    return replace(facts, parameters=count, weights_bytes=int(count * DTYPE_BYTES[facts.dtype]))


def read(folder: Path, *, name: str = "") -> ModelFacts:
    """Facts of a safetensors folder. Raises ModelError where it is none, or its config says too little."""
    config = folder / "config.json"
    try:
        fields = json.loads(config.read_text("utf-8"))
    except FileNotFoundError:
        what = "is a GGUF file, which vLLM no longer loads" if folder.suffix == ".gguf" else "has no config.json"
        raise ModelError(
            f"{folder} {what}",
            hint="give a folder with config.json and *.safetensors (`tidegate models pull --format safetensors`)",
        ) from None
    except NotADirectoryError:
        raise ModelError(f"{folder} is a file, and vLLM loads folders", hint="GGUF files are for llama.cpp") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{config} cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise ModelError(f"{config} is no JSON object")
    sizes = [path.stat().st_size for path in folder.glob(WEIGHTS)]
    return from_config(fields, name=name or folder.name, weights_bytes=sum(sizes) if sizes else None)


def _number(config: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
    for one in (name, *OLDER_KEYS.get(name, ())):
        if config.get(one) is not None:
            return int(config[one])
    if otherwise is None:
        raise KeyError(name)
    return otherwise


def _dtype(told: Any) -> str:
    text = str(told or "bfloat16").removeprefix("torch.")
    return {"half": "float16", "float": "float32"}.get(text, text if text in DTYPE_BYTES else "bfloat16")


def _parameters(config: Mapping[str, Any], facts: ModelFacts) -> int:
    """Of a decoder with gated feed-forward layers, as nearly all are; experts count with their own width."""
    attention = 2 * facts.hidden * facts.head_dim * (facts.heads + facts.kv_heads)
    width = int(config.get("moe_intermediate_size") or facts.feed_forward)
    feed_forward = 3 * facts.hidden * (facts.experts * width if facts.experts else facts.feed_forward)
    embeddings = facts.vocabulary * facts.hidden * (1 if config.get("tie_word_embeddings") else 2)
    return embeddings + facts.layers * (attention + feed_forward + 2 * facts.hidden) + facts.hidden
