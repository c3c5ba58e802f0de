"""The memory of a plan for vLLM: what the engine may take, what goes before the KV cache, and what is left for tokens. Pure.

vLLM takes `--gpu-memory-utilization` of ALL memory of a GPU, refuses to start where less than that is free, loads the
weights, tries a step of the largest size, and makes a KV cache of the rest (its 0.32 source: `v1/worker/utils.py`,
`v1/worker/gpu_worker.py`). The working memory is worked out here from the sizes that trial has.
"""

from dataclasses import dataclass
from typing import Final

from tidegate.engines.model_facts import ModelFacts

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CONTEXT_BYTES: Final = 600 * MIB
"""CUDA's own context and kernels in each process that uses a GPU."""
LIBRARY_BYTES: Final = 400 * MIB
"""Work spaces of cuBLAS and of the attention kernels."""
GRAPH_BYTES: Final = 512 * MIB
"""CUDA graphs of the usual batch sizes of a small model."""
CPU_PROCESS_BYTES: Final = 3 * GIB
"""vLLM's processes on a CPU, PyTorch in each, before any weights."""
SAMPLER_BYTES: Final = 20
"""Of each token of the vocabulary for each sequence: logits as float32, sorted, with their places, and their sum."""
MARGIN_BYTES: Final = CONTEXT_BYTES
"""Less than what is free is asked for by so much: vLLM measures when its own context is made already."""
SMALLEST_CONTEXT: Final = 512
"""Shorter ones are no use to anybody."""
TYPICAL_TOKENS: Final = 1024
"""What a chat has in the cache on average, where its context may be longer: sequences are counted by it."""


@dataclass(frozen=True)
class MemorySum:
    """What an engine may take, and what becomes of it. Bytes."""

    budget_bytes: int
    budget_words: str
    """Where the budget comes from, as in `0.92 of 24.0 GiB`."""
    weights_bytes: int
    working_bytes: int
    kv_token_bytes: int

    @property
    def kv_bytes(self) -> int:
        return max(0, self.budget_bytes - self.weights_bytes - self.working_bytes)

    @property
    def kv_tokens(self) -> int:
        return self.kv_bytes // self.kv_token_bytes

    def arithmetic(self) -> str:
        """The sum in words."""
        return (
            f"{self.budget_words} = {size(self.budget_bytes)}, less weights {size(self.weights_bytes)} and working memory "
            f"{size(self.working_bytes)}, leaves {size(self.kv_bytes)} for the KV cache: at {self.kv_token_bytes / KIB:.4g} "
            f"KiB a token {self.kv_tokens:,} tokens"
        )


def working_on_gpu(model: ModelFacts, batched_tokens: int, sequences: int) -> int:
    """Bytes beside weights and KV cache: CUDA, the activations of the largest step, the sampler, CUDA graphs."""
    step = _step_bytes(model, batched_tokens, sequences, value_bytes=2)
    return CONTEXT_BYTES + LIBRARY_BYTES + GRAPH_BYTES + step


def working_on_cpu(model: ModelFacts, batched_tokens: int, sequences: int, value_bytes: float) -> int:
    """Bytes beside weights and KV cache: the processes, the activations of the largest step, the sampler."""
    return CPU_PROCESS_BYTES + _step_bytes(model, batched_tokens, sequences, value_bytes)


def _step_bytes(model: ModelFacts, batched_tokens: int, sequences: int, value_bytes: float) -> int:
    activations = int(batched_tokens * value_bytes * (2 * model.feed_forward + 4 * model.hidden))
    return activations + sequences * model.vocabulary * SAMPLER_BYTES


def share_of_free(free_bytes: int, total_bytes: int, most: float) -> float:
    """The share of ALL memory, in hundredths and `most` at most, that what is FREE suffices for; 0 if none does."""
    room = max(0, free_bytes - MARGIN_BYTES)
    return min(most, room * 100 // max(total_bytes, 1) / 100)


def size(count: float) -> str:
    """Bytes as people read them."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:,.0f} MiB"
