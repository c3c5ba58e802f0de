"""The memory that llama.cpp takes for a model: worked out from the header of its file, not tried. Pure.

The measurements behind the constants are in docs/decisions/0013-memory-arithmetic.md.
"""

from dataclasses import dataclass
from typing import Protocol

from tidegate.errors import ModelError

MIB = 1024 * 1024
MIN_CONTEXT_TOKENS = 128
"""A smaller context than this is no use to anybody."""
PROCESS_BYTES = 64 * MIB
"""Python, the engine's library and its HTTP server, measured with xllamacpp 2026.10 on Linux."""
KV_VALUE_BYTES = 2
"""The engine keeps keys and values in 16 bit."""
SAMPLER_BYTES = 16
"""Of each token of the vocabulary, for each slot: its logit, and the sampler's candidate."""


class Weighed(Protocol):
    """What has to be known of a model: the header of its file tells it, and so does a plan for one that is not here yet."""

    @property
    def weights_bytes(self) -> int: ...
    @property
    def context_tokens(self) -> int | None: ...
    @property
    def hidden(self) -> int: ...
    @property
    def feed_forward(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def kv_values_per_token(self) -> int: ...


@dataclass(frozen=True)
class MemoryNeed:
    """Memory an engine takes, in bytes, with the numbers it was worked out from."""

    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    context_tokens: int
    """Of one request."""
    slots: int
    kv_bytes_per_token: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes

    def arithmetic(self) -> str:
        """The sum in words: `weights 362 MiB + KV cache 8 x 2,048 tokens x 18 KiB = 288 MiB + ...`."""
        return (
            f"weights {_mib(self.weights_bytes)} + KV cache {self.slots} slots x {self.context_tokens:,} tokens x "
            f"{self.kv_bytes_per_token / 1024:.4g} KiB = {_mib(self.kv_bytes)} + working memory "
            f"{_mib(self.compute_bytes)} = {_mib(self.total_bytes)}"
        )

    def refusal(self, model: str, available_bytes: int) -> ModelError:
        """The error for a machine that has only `available_bytes`, with the arithmetic and what would fit."""
        room = available_bytes - self.weights_bytes - self.compute_bytes
        tokens = max(room, 0) // max(self.kv_bytes_per_token, 1)
        if tokens >= MIN_CONTEXT_TOKENS:
            slots = min(self.slots, max(1, tokens // self.context_tokens))
            context = min(self.context_tokens, tokens // slots)
            hint = f"slots = {slots} and context_tokens = {context} would fit (pool.options), or end other programs"
        else:
            hint = "end other programs, choose a smaller quantisation or model, or use a machine with more memory"
        return ModelError(
            f"{model} does not fit in memory: it needs {self.arithmetic()}, and {_mib(available_bytes)} are available",
            hint=hint,
        )


def memory_needed(header: Weighed, *, context_tokens: int, slots: int, micro_batch_tokens: int = 256) -> MemoryNeed:
    """Memory that `slots` requests of `context_tokens` each take.

    Weights are the tensors of the file. KV cache: keys and values of every layer for every token, 16 bit.
    Working memory: the process, the widest float32 activations of a micro batch, the attention mask, and logits and
    candidates for each slot. Within 6 % of what xllamacpp 2026.10 took at 512 to 32,768 tokens
    (docs/decisions/0013-memory-arithmetic.md); llama.cpp's prompt cache in RAM comes on top where it is on.
    """
    per_token = header.kv_values_per_token * KV_VALUE_BYTES
    total_tokens = context_tokens * slots
    activations = micro_batch_tokens * 4 * (2 * header.feed_forward + 4 * header.hidden)
    compute = activations + micro_batch_tokens * 4 * total_tokens + slots * SAMPLER_BYTES * header.vocabulary
    return MemoryNeed(
        weights_bytes=header.weights_bytes,
        kv_bytes=per_token * total_tokens,
        compute_bytes=PROCESS_BYTES + compute,
        context_tokens=context_tokens,
        slots=slots,
        kv_bytes_per_token=per_token,
    )


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
