"""The flags that a plan for vLLM is made of, with their reasons. Pure."""

import json
from collections.abc import Iterator
from typing import Final

from tidegate.engines.model_facts import RENAMED, ModelFacts
from tidegate.engines.plan_fit import Sizes
from tidegate.engines.plan_memory import MemorySum, size
from tidegate.engines.plan_presets import Preset
from tidegate.engines.plan_types import Choice, Gpu, Wishes

QUEUE_FACTOR: Final = 4
SMALLEST_BACKSTOP: Final = 64


def size_choices(wanted: Preset, sizes: Sizes, asked: Sizes, memory: MemorySum, model: ModelFacts) -> Iterator[Choice]:
    context, sequences = sizes.context_tokens, sizes.sequences
    said = asked.context_said or wanted.context_tokens is not None or context < model.context_tokens
    if said:
        full = memory.kv_tokens // context
        why = f"{memory.kv_tokens:,} tokens of KV cache hold {full:,} contexts of {context:,} in full"
        if context < asked.context_tokens:
            limit = "what it was trained on" if context == model.context_tokens else "what fits"
            why = f"{asked.context_tokens:,} were wanted, and {context:,} are {limit}; {why}"
        yield Choice("--max-model-len", str(context), why)
    if asked.sequences_said or wanted.sequences is not None or sequences < asked.sequences:
        each = memory.kv_tokens // sequences
        why = f"each has {each:,} tokens of the cache if all are there"
        if sequences < asked.sequences:
            why = f"{asked.sequences:,} were wanted, too many for the cache; {why}"
        yield Choice("--max-num-seqs", str(sequences), why)
    if wanted.batched_tokens is not None and (model.generates or sizes.batched_tokens >= context):
        yield Choice(
            "--max-num-batched-tokens",
            str(sizes.batched_tokens),
            "of one step: more fills the card, fewer let the next token of running answers come sooner",
        )


def share_choice(share: float, most: float, gpu: Gpu, wanted: Preset, wishes: Wishes) -> Choice:
    free, total = size(gpu.free_bytes), size(gpu.total_bytes)
    if share < most:
        why = f"{most:g} is more than is free: {free} of {total}, and vLLM counts from all of it"
    elif wanted.memory_share is None and wishes.memory_share is None:
        why = f"vLLM's own; {free} of {total} are free"
    else:
        why = f"of {total}; {free} are free, which suffices"
    return Choice("--gpu-memory-utilization", f"{share:g}", why)


def step_choices(wanted: Preset, sizes: Sizes, model: ModelFacts) -> Iterator[Choice]:
    if wanted.block_tokens is not None:
        yield Choice(
            "--block-size", str(wanted.block_tokens), "tokens of a block: vLLM's own on GPUs, little is wasted"
        )
    if wanted.long_prefill_tokens is not None and model.generates:
        yield Choice(
            "--long-prefill-token-threshold",
            str(min(wanted.long_prefill_tokens, sizes.batched_tokens)),
            f"a long prompt takes no more of a step's {sizes.batched_tokens:,} tokens while others are there",
        )
    if wanted.stream_interval is not None and model.generates:
        yield Choice(
            "--stream-interval", str(wanted.stream_interval), "tokens sent together: less work for the API server"
        )
    if wanted.performance_mode is not None:
        yield Choice("--performance-mode", wanted.performance_mode, "CUDA graphs of every small batch size, unpadded")


_OF_TEXTS: Final = (
    Choice(
        "--enable-chunked-prefill", None, "long prompts are computed in pieces, between the tokens of other answers"
    ),
    Choice("--enable-prefix-caching", None, "what conversations and system prompts begin with is computed once"),
)


def common(model: ModelFacts) -> tuple[Choice, ...]:
    renamed = RENAMED.get(model.architecture)
    override = json.dumps({"architectures": [renamed]}) if renamed else ""
    return (
        *((Choice("--hf-overrides", override, f"vLLM knows {model.architecture} as {renamed}"),) if renamed else ()),
        *(_OF_TEXTS if model.generates else ()),
        Choice("--load-format", "safetensors", "never falls back to pickled weights, which can run code"),
        Choice("--scheduling-policy", "priority", "the gateway tells what is urgent; without that order is by arrival"),
    )


def backstop(sequences: int) -> Choice:
    """The bound on what waits inside the engine."""
    most = max(QUEUE_FACTOR * sequences, SMALLEST_BACKSTOP)
    return Choice(
        "--max-num-queued-reqs",
        str(most),
        "running and waiting together; the gateway's queue ends long before, and past it the engine says 503",
    )
