"""Plans for a machine without a GPU: vLLM's CPU build, or llama.cpp. Pure.

On the same two cores llama.cpp made 27 to 53 tokens/s for one stream of ERNIE-4.5-0.3B and vLLM 11 (docs/vllm.md), so that
llama.cpp is what is taken where nobody asks for vLLM.
"""

from dataclasses import replace
from typing import Final

from tidegate.config import LlamaCppOptions
from tidegate.engines import llamacpp_fit, plan_choices, plan_memory, plan_upgrade
from tidegate.engines.llamacpp_fit import SMALLEST_CONTEXT_TOKENS, Machine
from tidegate.engines.llamacpp_memory import memory_needed
from tidegate.engines.model_facts import ModelFacts
from tidegate.engines.plan_fit import Fit, Other, Sizes, fit
from tidegate.engines.plan_memory import GIB, MemorySum, size
from tidegate.engines.plan_types import Choice, Cpu, Order, Plan
from tidegate.errors import ModelError, SettingError

BFLOAT16_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""x86 and ARM names of arithmetic in bfloat16."""
AVX2: Final = "avx2"
X86: Final = frozenset({"sse2", "avx", "lm"})
CPU_BLOCK: Final = 128
SEQUENCES_PER_CORE, MOST_SEQUENCES = 4, 128
CPU_CONTEXT: Final = 4096
CPU_BATCHED: Final = 2048
LONG_PROMPTS: Final = Choice(
    "--long-prefill-token-threshold",
    "512",
    "a long prompt takes no more of a step while others are there: prompts are slow on a CPU",
)
MEMORY_SHARE: Final = 0.8
"""Of what is available; the rest is for everything else on the machine."""
MOST_KV_BYTES: Final = 16 * GIB
"""More cache than this no CPU reads fast enough to be of use."""
Q8_BYTES: Final = 8.5 / 8
"""Of a weight: 32 of a byte each share a 16-bit scale."""
BFLOAT16_WHY: Final = "this processor computes bfloat16 (AVX512_BF16, AMX or ARM's): half the memory of float32"
FLOAT32_WHY: Final = (
    "this processor has no bfloat16 arithmetic (AVX512_BF16 or AMX): in software it is slower than float32"
)
EAGER_WHY: Final = "start-up: compiling takes minutes on a CPU at every start, and there are no CUDA graphs to lose"


def vllm_plan(model: ModelFacts, cpu: Cpu, order: Order) -> Plan:
    """The plan for vLLM's CPU build. Raises ModelError, SettingError."""
    wanted, wishes = order.wanted, order.wishes
    if wishes.fp8 != "none":
        raise SettingError("fp8", "there is no fp8 on a CPU", hint="leave it out; llama.cpp's Q8_0 halves the weights")
    if cpu.flags & X86 and AVX2 not in cpu.flags:
        raise ModelError(
            "vLLM's CPU build needs AVX2, which this processor lacks", hint="use an engine elsewhere by its URL"
        )
    native = bool(cpu.flags & BFLOAT16_FLAGS)
    dtype = "bfloat16" if native else "float32"
    value_bytes = 2 if native else 4
    context = wishes.context_tokens or min(wanted.context_tokens or CPU_CONTEXT, model.context_tokens)
    step = min(wanted.batched_tokens or CPU_BATCHED, CPU_BATCHED)
    sizes = Sizes(
        context_tokens=context,
        sequences=wishes.sequences or min(wanted.sequences or MOST_SEQUENCES, SEQUENCES_PER_CORE * cpu.cores),
        batched_tokens=step if model.generates else max(step, context),  # without pieces a prompt is one step
        context_said=wishes.context_tokens is not None,
        sequences_said=wishes.sequences is not None,
    )
    share = wishes.memory_share or MEMORY_SHARE

    def memory(sizes: Sizes) -> MemorySum:
        return MemorySum(
            budget_bytes=int(share * cpu.available_bytes),
            budget_words=f"{share:g} of the {size(cpu.available_bytes)} available",
            weights_bytes=model.weights_bytes_as(dtype),
            working_bytes=plan_memory.working_on_cpu(model, sizes.batched_tokens, sizes.sequences, value_bytes),
            kv_token_bytes=model.kv_bytes_per_token(dtype),
        )

    found = fit(model, sizes, memory, where=cpu.words, others=(_llamacpp(model),))
    kv_bytes = _kv_bytes(found)
    upgrade, why = plan_upgrade.on_cpu(cpu, found.memory.weights_bytes + found.memory.working_bytes + kv_bytes)
    choices = (
        Choice("--dtype", dtype, BFLOAT16_WHY if native else FLOAT32_WHY),
        *_vllm_sizes(found, kv_bytes, cpu),
        Choice("--block-size", str(CPU_BLOCK), "tokens of a block: what vLLM takes on CPUs"),
        *((LONG_PROMPTS,) if model.generates else ()),
        *(() if wanted.compiled_on_cpu else (Choice("--enforce-eager", None, EAGER_WHY),)),
        *plan_choices.common(model),
        plan_choices.backstop(found.sizes.sequences),
    )
    notes = (
        "llama.cpp is faster on a CPU (Q8_0: int8 weights); vLLM has int8 there only for models quantised so beforehand",
        *(("compiled for this preset: the first start takes minutes",) if wanted.compiled_on_cpu else ()),
    )
    environment = (Choice("OMP_NUM_THREADS", str(cpu.cores), "one thread for each physical core"),)
    return Plan(
        "vllm", order.version, order.preset, model, cpu, choices, found.memory, upgrade, why, notes, environment
    )


def llamacpp_plan(model: ModelFacts, cpu: Cpu, order: Order) -> Plan:
    """llama.cpp with Q8_0 weights, worked out as the engine itself does at its start. Raises ModelError, SettingError."""
    wanted, wishes = order.wanted, order.wishes
    if wishes.fp8 != "none":
        raise SettingError("fp8", "there is no fp8 on a CPU", hint="leave it out; Q8_0 weights take as little")
    room = Machine(cpu.cores, cpu.available_bytes)
    said = LlamaCppOptions(slots=wishes.sequences, context_tokens=wishes.context_tokens)
    if wishes.memory_share is not None:
        said = said.model_copy(update={"memory_fraction": wishes.memory_share})
    notes = ["`quantisation` belongs to [[model]], the others to [pool.options]"]
    found = None
    if wishes.context_tokens is None and wanted.context_tokens is not None:
        context = min(wanted.context_tokens, model.context_tokens)
        try:
            found = llamacpp_fit.fit(
                _as_q8(model), said.model_copy(update={"context_tokens": context}), room, model=model.name
            )
        except ModelError:
            notes.append(f"the preset's context of {context:,} tokens does not fit in this memory")
    found = found or llamacpp_fit.fit(_as_q8(model), said, room, model=model.name)
    need = found.need
    memory = MemorySum(
        budget_bytes=int(said.memory_fraction * cpu.available_bytes),
        budget_words=f"{said.memory_fraction:g} of the {size(cpu.available_bytes)} available",
        weights_bytes=need.weights_bytes,
        working_bytes=need.compute_bytes,
        kv_token_bytes=need.kv_bytes_per_token,
    )
    choices = (
        Choice("quantisation", "Q8_0", "int8 weights: the original's quality at half the reading of 16 bit"),
        Choice("slots", str(found.slots), f"requests at once on {_cores(cpu)}; each has its context reserved"),
        Choice("context_tokens", str(found.context_tokens), need.arithmetic()),
        Choice("threads", str(found.threads), "one for each physical core"),
        Choice("batch_tokens", str(found.batch_tokens), "of a prompt computed in one go: smaller ones end sooner"),
    )
    upgrade, why = plan_upgrade.on_cpu(cpu, need.total_bytes)
    return Plan("llamacpp", order.version, order.preset, model, cpu, choices, memory, upgrade, why, tuple(notes))


def _llamacpp(model: ModelFacts) -> Other:
    need = memory_needed(_as_q8(model), context_tokens=SMALLEST_CONTEXT_TOKENS, slots=1)
    return Other(f"llama.cpp with Q8_0 weights (--engine llamacpp), {size(need.total_bytes)} in all", need.total_bytes)


def _as_q8(model: ModelFacts) -> ModelFacts:
    return replace(model, weights_bytes=int(model.parameters * Q8_BYTES))


def _kv_bytes(found: Fit) -> int:
    """Cache for every sequence's full context, as far as there is memory for it."""
    full = found.sizes.sequences * found.sizes.context_tokens * found.memory.kv_token_bytes
    return min(
        full, found.memory.kv_bytes, max(MOST_KV_BYTES, found.sizes.context_tokens * found.memory.kv_token_bytes)
    )


def _vllm_sizes(found: Fit, kv_bytes: int, cpu: Cpu) -> tuple[Choice, ...]:
    sizes, memory = found.sizes, found.memory
    tokens = kv_bytes // memory.kv_token_bytes
    return (
        Choice(
            "--max-model-len",
            str(sizes.context_tokens),
            f"the cache's {tokens:,} tokens hold {tokens // sizes.context_tokens} contexts of {sizes.context_tokens:,} in full",
        ),
        Choice(
            "--max-num-seqs", str(sizes.sequences), f"at once on {_cores(cpu)}; more only wait longer for each token"
        ),
        Choice("--max-num-batched-tokens", str(sizes.batched_tokens), "of one step: what vLLM takes on CPUs"),
        Choice(
            "--kv-cache-memory-bytes",
            str(kv_bytes),
            f"{size(kv_bytes)} at {memory.kv_token_bytes / 1024:.4g} KiB a token: said outright, as on a CPU vLLM's share "
            "counts from the whole machine's memory",
        ),
    )


def _cores(cpu: Cpu) -> str:
    return f"{cpu.cores} core{'' if cpu.cores == 1 else 's'}"
