"""A safetensors folder as one GGUF file, in numpy alone.

Knows dense ERNIE 4.5 and plain Llama. llama.cpp rotates neighbouring pairs of a head (interleaved RoPE): ERNIE's
weights are made for that and stay as they are, Llama's Hugging Face weights rotate halves and are permuted back.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from numpy.typing import NDArray

from tidegate.errors import ModelError
from tidegate.gguf import read_header
from tidegate.models.download import PART, check_free_space
from tidegate.models.progress import Progress
from tidegate.models.shape import BITS_PER_WEIGHT, QUANTISATIONS, Shape, read_shape
from tidegate.models.vocabulary import Vocabulary, read_vocabulary
from tidegate.models.weights import Weights

Array = NDArray[Any]
LAYER_TENSORS: Mapping[str, str] = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER_TENSORS: Mapping[str, str] = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")


@dataclass(frozen=True)
class Planned:
    """A tensor of the GGUF file: its name, shape and type, and how it is made."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    make: Callable[[], Array]


def convert(folder: Path, target: Path, quantisation: str, progress: Progress, *, name: str) -> None:
    """Write `target`, whole or not at all. Raises ModelError, and DownloadError where the disk has no room."""
    if quantisation not in QUANTISATIONS:
        raise ModelError(f"weights are not converted to {quantisation}, only to {', '.join(QUANTISATIONS)}")
    shape = read_shape(folder)
    vocabulary = read_vocabulary(folder, shape.vocabulary)
    part = target.with_name(target.name + PART)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Weights(folder) as weights:
        plan = [_typed(tensor, quantisation) for tensor in _plan(weights, shape)]
        _check_complete(folder, plan, shape)
        size = int(sum(np.prod(tensor.shape, dtype=np.int64) for tensor in plan) * BITS_PER_WEIGHT[quantisation] / 8)
        check_free_space(target.parent, size, f"{name} as {quantisation}")
        try:
            with progress.step(f"converting {name} to {quantisation}", size) as step:
                _write(part, plan, shape, vocabulary, quantisation=quantisation, name=name, step=step)
            read_header(part)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    part.replace(target)


def _plan(weights: Weights, shape: Shape) -> Iterator[Planned]:
    """Every tensor, in float32, by its GGUF name. Fused projections are cut into their parts."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for source in weights:
        name = re.sub(r"^ernie\.", "model.", source)
        rows, *rest = weights.shape(source)
        if name == "lm_head.weight" and shape.tied:
            continue
        if name in OUTER_TENSORS:
            yield _planned(OUTER_TENSORS[name], (rows, *rest), weights, source)
            continue
        match = LAYER_NAME.fullmatch(name)
        block, inner = (f"blk.{match[1]}", match[2]) if match else ("", name)
        if inner == "self_attn.qkv_proj":
            yield _planned(f"{block}.attn_q.weight", (q, *rest), weights, source, rows=slice(0, q))
            yield _planned(f"{block}.attn_k.weight", (kv, *rest), weights, source, rows=slice(q, q + kv))
            yield _planned(f"{block}.attn_v.weight", (kv, *rest), weights, source, rows=slice(q + kv, q + 2 * kv))
        elif inner == "mlp.up_gate_proj":
            # The gate comes first, whatever the name says.
            yield _planned(f"{block}.ffn_gate.weight", (rows // 2, *rest), weights, source, rows=slice(0, rows // 2))
            yield _planned(f"{block}.ffn_up.weight", (rows // 2, *rest), weights, source, rows=slice(rows // 2, rows))
        elif match and inner in LAYER_TENSORS:
            heads = {"self_attn.q_proj": shape.heads, "self_attn.k_proj": shape.kv_heads}.get(inner, 0)
            permuted = heads if shape.architecture == "llama" else 0
            yield _planned(f"{block}.{LAYER_TENSORS[inner]}.weight", (rows, *rest), weights, source, heads=permuted)
        elif not name.endswith("rotary_emb.inv_freq"):
            raise ModelError(
                f"the tensor {source} has no place in a dense {shape.architecture} model: it cannot be converted"
            )


def _planned(
    name: str, shape: tuple[int, ...], weights: Weights, source: str, *, rows: slice = slice(None), heads: int = 0
) -> Planned:
    def make() -> Array:
        values = weights.float32(source)[rows]
        return _to_interleaved(values, heads) if heads else values

    return Planned(name, shape, gguf.GGMLQuantizationType.F32, make)


def _to_interleaved(values: Array, heads: int) -> Array:
    """Rows of q or k from rotating halves to rotating neighbours."""
    rows = values.shape[0]
    return values.reshape(heads, 2, rows // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _typed(tensor: Planned, quantisation: str) -> Planned:
    """Matrices are quantised; norms stay float32, and what does not fill whole blocks becomes float16."""
    kinds = gguf.GGMLQuantizationType
    kind = kinds[quantisation]
    if len(tensor.shape) == 1:
        kind = kinds.F32
    elif tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = kinds.F16
    elif kind == kinds.Q4_0 and tensor.name in {"token_embd.weight", "output.weight"}:
        # Four bits are felt most at the vocabulary.
        kind = kinds.Q8_0
    return Planned(tensor.name, tensor.shape, kind, tensor.make)


def _check_complete(folder: Path, plan: list[Planned], shape: Shape) -> None:
    names = {tensor.name for tensor in plan}
    wanted = {"token_embd.weight", "output_norm.weight"}
    wanted |= {f"blk.{layer}.{part}.weight" for layer in range(shape.layers) for part in LAYER_TENSORS.values()}
    if not shape.tied:
        wanted.add("output.weight")
    if missing := sorted(wanted - names):
        raise ModelError(f"{folder} lacks {len(missing)} tensors, the first is {missing[0]}: its files are not whole")
    embedding = next(tensor for tensor in plan if tensor.name == "token_embd.weight")
    if embedding.shape != (shape.vocabulary, shape.hidden):
        raise ModelError(
            f"{folder}: the embeddings are {embedding.shape}, config.json says {(shape.vocabulary, shape.hidden)}"
        )


def _write(
    part: Path,
    plan: list[Planned],
    shape: Shape,
    vocabulary: Vocabulary,
    *,
    quantisation: str,
    name: str,
    step: Callable[[int], None],
) -> None:
    writer = gguf.GGUFWriter(part, shape.architecture)
    try:
        _describe(writer, shape, quantisation, name)
        _add_vocabulary(writer, vocabulary)
        for tensor in plan:
            block, size = gguf.GGML_QUANT_SIZES[tensor.kind]
            row_bytes = tensor.shape[-1] // block * size
            stored = (*tensor.shape[:-1], row_bytes)
            count = int(np.prod(stored, dtype=np.int64))
            writer.add_tensor_info(tensor.name, stored, np.dtype(np.uint8), count, raw_dtype=tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done = 0
        for tensor in plan:
            data = quantize(tensor.make(), tensor.kind)
            writer.write_tensor_data(data)
            done += data.nbytes
            step(done)
    finally:
        writer.close()


def _describe(writer: gguf.GGUFWriter, shape: Shape, quantisation: str, name: str) -> None:
    writer.add_name(name)
    writer.add_file_type(int(gguf.LlamaFileType["ALL_F32" if quantisation == "F32" else f"MOSTLY_{quantisation}"]))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_rope_dimension_count(shape.head_dim)


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types([int(kind) for kind in vocabulary.types])
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    adders = {
        "bos": writer.add_bos_token_id,
        "eos": writer.add_eos_token_id,
        "eot": writer.add_eot_token_id,
        "eom": writer.add_eom_token_id,
        "unk": writer.add_unk_token_id,
        "pad": writer.add_pad_token_id,
    }
    for role, token in vocabulary.special.items():
        adders[role](token)
    if vocabulary.add_bos is not None:
        writer.add_add_bos_token(vocabulary.add_bos)
    if vocabulary.add_eos is not None:
        writer.add_add_eos_token(vocabulary.add_eos)
    if vocabulary.add_space_prefix is not None:
        writer.add_add_space_prefix(vocabulary.add_space_prefix)
    if vocabulary.chat_template:
        writer.add_chat_template(vocabulary.chat_template)
