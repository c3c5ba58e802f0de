"""From hardware, model, engine version and preset to vLLM's flags, one line of reason each. Pure.

What the sizes rest on is in docs/vllm.md and docs/decisions/0117-profiles-are-arithmetic.md.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from tidegate.engines import plan_choices, plan_cpu, plan_memory, plan_upgrade
from tidegate.engines.model_facts import FIRST_VERSION, RENAMED, ModelFacts, spread
from tidegate.engines.plan_fit import Other, Sizes, fit
from tidegate.engines.plan_memory import GIB, SMALLEST_CONTEXT, MemorySum, size
from tidegate.engines.plan_presets import DEFAULT, TUNED, Preset, named
from tidegate.engines.plan_types import Choice, Cpu, Gpu, Order, Plan, Wishes
from tidegate.engines.vllm_flags import PINNED, release
from tidegate.errors import ModelError, SettingError

OLDEST_COMPUTE: Final = (7, 5)
"""The wheels of vLLM 0.32 hold kernels for 7.5, 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0, built with CUDA 13."""
BFLOAT16_COMPUTE: Final = (8, 0)
FP8_COMPUTE: Final = (8, 9)
FOUR_BIT_BYTES: Final = 0.55
"""Of a weight, with its scales."""
RECENT: Final = frozenset(
    ["--max-num-queued-reqs", "--performance-mode", "--stream-interval", "--kv-cache-memory-bytes"]
)
"""Flags of the pinned version that vLLM has not had for long."""
ENGINE_SHARE: Final = 0.92
"""vLLM's own `--gpu-memory-utilization`."""
UNSURE_IN_FLOAT16: Final = ("Gemma2", "Gemma3", "Glm4")
"""Architectures whose numbers leave float16's range; vLLM refuses it for them."""


def plan(
    model: ModelFacts,
    hardware: Gpu | Cpu,
    *,
    engine: Literal["auto", "vllm", "llamacpp"] = "vllm",
    version: str = PINNED,
    preset: str = DEFAULT,
    wishes: Wishes | None = None,
    tuned: Preset | None = None,
    gpus: int = 1,
) -> Plan:
    """How an engine is started; `auto` is vLLM on a GPU and llama.cpp without. `tuned` is what preset `tuned` stands for;
    `gpus` share the model out among them, each like `hardware`.

    Raises ModelError for a model that cannot run there, with the arithmetic and the nearest that can, and SettingError for
    a preset or wish that the hardware or version does not have.
    """
    wanted = tuned if preset == TUNED and tuned is not None else named(preset)
    order = Order(preset, wanted, wishes or Wishes(), version)
    if engine == "llamacpp" or (engine == "auto" and isinstance(hardware, Cpu)):
        if isinstance(hardware, Gpu):
            raise SettingError("engine", "llama.cpp is planned for processors", hint="take vLLM on a GPU")
        return plan_cpu.llamacpp_plan(model, hardware, order)
    _check_version(model, version)
    made = (
        plan_cpu.vllm_plan(model, hardware, order)
        if isinstance(hardware, Cpu)
        else _gpu_plan(spread(model, gpus), hardware, order)
    )
    return made if release(version) >= release(PINNED) else _without_recent(made)


def _without_recent(made: Plan) -> Plan:
    """The plan for an older vLLM, which may not have every flag of the pinned one."""
    left_out = [one.name for one in made.choices if one.name in RECENT]
    if not left_out:
        return made
    cache = made.value("--kv-cache-memory-bytes")
    return replace(
        made,
        choices=tuple(one for one in made.choices if one.name not in RECENT),
        environment=(
            *made.environment,
            *((Choice("VLLM_CPU_KVCACHE_SPACE", str(-(-int(cache) // GIB)), "GiB of KV cache"),) if cache else ()),
        ),
        notes=(*made.notes, f"left out for vLLM {made.version}, which may not have it: {', '.join(left_out)}"),
    )


def _gpu_plan(model: ModelFacts, gpu: Gpu, order: Order) -> Plan:
    wanted, wishes = order.wanted, order.wishes
    precision = _precision(model, gpu, wishes)
    most = wishes.memory_share or wanted.memory_share or ENGINE_SHARE
    share = plan_memory.share_of_free(gpu.free_bytes, gpu.total_bytes, most)
    if wishes.memory_share is not None and share < wishes.memory_share:
        raise SettingError(
            "memory_share",
            f"{wishes.memory_share:g} of {size(gpu.total_bytes)} is {size(wishes.memory_share * gpu.total_bytes)}, and "
            f"{size(gpu.free_bytes)} of {gpu.name} are free",
            hint=f"{share:g} is what fits now; `nvidia-smi` shows who holds the rest",
        )
    batched, sequences = engine_defaults(gpu)
    sizes = Sizes(
        context_tokens=wishes.context_tokens or wanted.context_tokens or model.context_tokens,
        sequences=wishes.sequences or wanted.sequences or sequences,
        batched_tokens=wanted.batched_tokens or batched,
        context_said=wishes.context_tokens is not None,
        sequences_said=wishes.sequences is not None,
    )

    def memory(sizes: Sizes) -> MemorySum:
        return MemorySum(
            budget_bytes=int(share * gpu.total_bytes),
            budget_words=f"{share:g} of {size(gpu.total_bytes)}",
            weights_bytes=model.weights_bytes_as(precision.weights),
            working_bytes=plan_memory.working_on_gpu(model, sizes.batched_tokens, sizes.sequences),
            kv_token_bytes=model.kv_bytes_per_token(precision.kv),
        )

    found = fit(model, sizes, memory, where=gpu.words, others=_others(model, gpu, precision, sizes.batched_tokens))
    choices = (
        *precision.choices,
        *plan_choices.size_choices(wanted, found.sizes, sizes, found.memory, model),
        plan_choices.share_choice(share, most, gpu, wanted, wishes),
        *plan_choices.step_choices(wanted, found.sizes, model),
        *plan_choices.common(model),
        plan_choices.backstop(found.sizes.sequences),
    )
    upgrade, why = plan_upgrade.on_gpu(share, gpu, found.memory, found.sizes)
    return Plan(
        "vllm",
        order.version,
        order.preset,
        model,
        gpu,
        choices,
        found.memory,
        upgrade,
        why,
        _notes(model, gpu, precision),
    )


def _notes(model: ModelFacts, gpu: Gpu, precision: "_Precision") -> tuple[str, ...]:
    kind = "dense" if model.dense else "a mixture of experts"
    graphs = f"CUDA graphs stay on: {model.name} is {kind}, and --enforce-eager would only make each step slower"
    if gpu.compute >= BFLOAT16_COMPUTE:
        return (graphs, *precision.notes)
    attention = "FlashAttention needs compute capability 8.0; vLLM takes another attention kernel here by itself"
    return (graphs, *precision.notes, attention)


def engine_defaults(gpu: Gpu) -> tuple[int, int]:
    """The tokens of a step and the sequences that vLLM takes by itself on a GPU (`EngineArgs.get_batch_defaults`)."""
    if gpu.total_bytes >= 160 * GIB:
        return 16_384, 1024
    if gpu.total_bytes >= 70 * GIB and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256


@dataclass(frozen=True)
class _Precision:
    weights: str
    kv: str
    choices: tuple[Choice, ...]
    notes: tuple[str, ...] = ()


def _precision(model: ModelFacts, gpu: Gpu, wishes: Wishes) -> _Precision:
    told = f"compute capability {gpu.compute[0]}.{gpu.compute[1]}"
    if gpu.compute < OLDEST_COMPUTE:
        raise ModelError(
            f"{gpu.name} has {told}, and vLLM {PINNED} holds kernels for 7.5 and newer only",
            hint="use llama.cpp on this machine's processor, a newer GPU, or an older engine by its URL",
        )
    if gpu.compute >= BFLOAT16_COMPUTE:
        dtype, why = "bfloat16", f"{told} (Ampere or newer) computes bfloat16, the model's own range"
    elif model.architecture.startswith(UNSURE_IN_FLOAT16):
        dtype, why = "float32", f"{told} has no bfloat16, and this architecture leaves float16's range"
    else:
        dtype, why = "float16", f"{told} (older than Ampere) has no bfloat16, which vLLM refuses there"
    choices = [Choice("--dtype", dtype, why)]
    weights, kv = dtype, dtype
    if wishes.fp8 != "none" and gpu.compute < FP8_COMPUTE:
        raise SettingError(
            "fp8", f"{gpu.name} has {told}; fp8 needs 8.9 (L4, L40S, RTX 40, H100 and newer)", hint="leave it out"
        )
    if wishes.fp8 in {"weights", "both"} and not model.quantised:
        weights = "fp8"
        choices.append(
            Choice("--quantization", "fp8", f"asked for; {told} computes fp8: half the weights' memory, some accuracy")
        )
    if wishes.fp8 in {"kv", "both"}:
        kv = "fp8"
        choices.append(
            Choice("--kv-cache-dtype", "fp8", f"asked for; {told} has it: twice the tokens in the cache, some accuracy")
        )
    notes = []
    if gpu.compute >= FP8_COMPUTE and wishes.fp8 == "none":
        notes.append("fp8 weights or KV cache are possible here (--fp8 weights, kv or both); test the answers first")
    return _Precision(weights, kv, tuple(choices), tuple(notes))


def _others(model: ModelFacts, gpu: Gpu, precision: _Precision, batched_tokens: int) -> tuple[Other, ...]:
    """The same model in fewer bits."""
    beside = plan_memory.working_on_gpu(model, batched_tokens, 1) + SMALLEST_CONTEXT * model.kv_bytes_per_token("fp8")
    four_bit = int(model.parameters * FOUR_BIT_BYTES)
    found = [Other(f"a 4-bit version of it (AWQ or GPTQ), about {size(four_bit)} of weights", four_bit + beside)]
    if precision.weights != "fp8" and gpu.compute >= FP8_COMPUTE and not model.quantised:
        fp8 = model.weights_bytes_as("fp8")
        found.insert(0, Other(f"fp8 (--fp8 both), {size(fp8)} of weights", fp8 + beside))
    return () if model.quantised else tuple(found)


def _check_version(model: ModelFacts, version: str) -> None:
    architecture = RENAMED.get(model.architecture, model.architecture)
    first = FIRST_VERSION.get(architecture)
    if first is not None and release(version) < first:
        raise ModelError(
            f"vLLM {version} is older than {architecture}: {'.'.join(map(str, first))} is the first that knows it",
            hint=f"install {PINNED}: `tidegate engines install vllm`",
        )
