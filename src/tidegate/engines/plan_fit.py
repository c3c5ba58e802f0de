"""The largest context and the most sequences, up to what is wanted, that the memory of a plan holds. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidegate.engines.model_facts import DTYPE_BYTES, ModelFacts
from tidegate.engines.plan_memory import SMALLEST_CONTEXT, TYPICAL_TOKENS, MemorySum, size
from tidegate.errors import ModelError

Memory = Callable[["Sizes"], MemorySum]
SMALLEST_BILLIONS: Final = 0.1


@dataclass(frozen=True)
class Other:
    """Something else that could be run: another precision, or another engine."""

    words: str
    needed_bytes: int


@dataclass(frozen=True)
class Sizes:
    """What memory is worked out for. What was said by an operator is kept or refused; the rest may shrink."""

    context_tokens: int
    sequences: int
    batched_tokens: int
    context_said: bool = False
    sequences_said: bool = False


@dataclass(frozen=True)
class Fit:
    """What fits, and the sum."""

    sizes: Sizes
    memory: MemorySum


def fit(model: ModelFacts, sizes: Sizes, memory: Memory, *, where: str, others: Sequence[Other] = ()) -> Fit:
    """The sizes that `memory` holds: at least one full context, and a typical chat for each sequence.

    Sequences are given up first, down to one, then context, down to SMALLEST_CONTEXT. `others` are what
    else could be run. Raises ModelError with the arithmetic and the nearest that fits.
    """
    if sizes.context_tokens > model.context_tokens:
        if sizes.context_said:
            raise ModelError(
                f"{model.name} was trained on contexts of {model.context_tokens:,} tokens, and {sizes.context_tokens:,} "
                "are asked for",
                hint=f"ask for {model.context_tokens:,} or less",
            )
        sizes = replace(sizes, context_tokens=model.context_tokens)
    while True:
        found = memory(sizes)
        enough = found.kv_tokens >= sizes.context_tokens
        if enough and (sizes.sequences_said or found.kv_tokens >= sizes.sequences * _typical(sizes)):
            return Fit(sizes, found)
        if not sizes.sequences_said and sizes.sequences > 1 and found.kv_tokens < sizes.sequences * _typical(sizes):
            sizes = replace(sizes, sequences=sizes.sequences // 2)
        elif not sizes.context_said and sizes.context_tokens // 2 >= SMALLEST_CONTEXT:
            sizes = replace(sizes, context_tokens=sizes.context_tokens // 2)
        else:
            raise _refusal(model, Fit(sizes, found), memory, where, others)


def _typical(sizes: Sizes) -> int:
    return min(sizes.context_tokens, TYPICAL_TOKENS)


def _refusal(model: ModelFacts, tried: Fit, memory: Memory, where: str, others: Sequence[Other]) -> ModelError:
    sizes, found = tried.sizes, tried.memory
    one = size(sizes.context_tokens * found.kv_token_bytes)
    message = (
        f"{model.name} does not fit on {where}: {found.arithmetic()}; one request of {sizes.context_tokens:,} tokens needs "
        f"{one}"
    )
    fewer = memory(replace(sizes, sequences=1))
    nearest = []
    if fewer.kv_tokens >= sizes.context_tokens and sizes.sequences > 1:
        nearest.append(f"fewer sequences ({_most_sequences(sizes, memory)} or less)")
    if found.kv_tokens >= SMALLEST_CONTEXT:
        nearest.append(f"a context of {found.kv_tokens // SMALLEST_CONTEXT * SMALLEST_CONTEXT:,} tokens")
    elif fewer.kv_tokens >= SMALLEST_CONTEXT:
        nearest.append(f"one sequence with {fewer.kv_tokens // SMALLEST_CONTEXT * SMALLEST_CONTEXT:,} tokens")
    nearest += [other.words for other in others if other.needed_bytes <= fewer.budget_bytes]
    beside = fewer.working_bytes + SMALLEST_CONTEXT * fewer.kv_token_bytes
    if fewer.kv_tokens < SMALLEST_CONTEXT:
        billions = (fewer.budget_bytes - beside) / DTYPE_BYTES["bfloat16"] / 1e9
        if billions >= SMALLEST_BILLIONS:
            nearest.append(f"a model of {billions:.1f} billion parameters or less in 16 bit")
        nearest.append(f"a budget of {size(fewer.weights_bytes + beside)}: free some memory, or take a larger machine")
    return ModelError(message, hint=f"nearest: {'; '.join(nearest)}")


def _most_sequences(sizes: Sizes, memory: Memory) -> int:
    count = sizes.sequences
    while count > 1 and memory(replace(sizes, sequences=count)).kv_tokens < sizes.context_tokens:
        count //= 2
    return count
