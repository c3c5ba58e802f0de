"""What `config.json` says of a model that can be converted: architecture and sizes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.errors import ModelError

ARCHITECTURES: Mapping[str, str] = {
    "Ernie4_5_ForCausalLM": "ernie4_5",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "LlamaForCausalLM": "llama",
}
BITS_PER_WEIGHT: Mapping[str, float] = {"Q8_0": 8.5, "Q4_0": 4.5, "BF16": 16, "F16": 16, "F32": 32}
QUANTISATIONS = tuple(BITS_PER_WEIGHT)


@dataclass(frozen=True)
class Shape:
    """The numbers of `config.json` that the file needs."""

    architecture: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_tokens: int
    epsilon: float
    rope_theta: float
    tied: bool


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is no file. Raises ModelError."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} is not a JSON object")
    return found


def read_shape(folder: Path) -> Shape:
    """Read `config.json`. Raises ModelError for a model that is not converted."""
    path = folder / "config.json"
    config = read_json(path)
    names = config.get("architectures") or ["none"]
    if names[0] not in ARCHITECTURES:
        raise ModelError(
            f"{path} is a model of the architecture {names[0]}; converted are {', '.join(ARCHITECTURES)}",
            hint="give a GGUF file of this model instead",
        )
    rope = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        raise ModelError(
            f"{path} stretches positions by {kind!r}, which is not converted",
            hint="give a GGUF file of this model instead",
        )
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return Shape(
            architecture=ARCHITECTURES[names[0]],
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            feed_forward=int(config["intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocabulary=int(config["vocab_size"]),
            context_tokens=int(config["max_position_embeddings"]),
            epsilon=float(config.get("rms_norm_eps", 1e-5)),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} lacks a number, or has a wrong one: {error}") from None
