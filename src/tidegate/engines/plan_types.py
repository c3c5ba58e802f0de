"""What goes into a plan and what comes out of it."""

from dataclasses import dataclass, field
from typing import Literal

from tidegate.engines.model_facts import ModelFacts
from tidegate.engines.plan_memory import MemorySum
from tidegate.engines.plan_presets import Preset

Fp8 = Literal["none", "weights", "kv", "both"]
Upgrade = Literal["blue-green", "rolling or stop-start"]


@dataclass(frozen=True)
class Gpu:
    """One GPU, as its driver tells of it."""

    name: str
    total_bytes: int
    free_bytes: int
    compute: tuple[int, int]
    """Compute capability: (8, 9) for an L4."""

    @property
    def words(self) -> str:
        return f"{self.name} (compute capability {self.compute[0]}.{self.compute[1]})"


@dataclass(frozen=True)
class Cpu:
    """A machine without a GPU."""

    flags: frozenset[str]
    """What the processor can, as in /proc/cpuinfo."""
    cores: int
    total_bytes: int
    available_bytes: int

    @property
    def words(self) -> str:
        return f"{self.cores} core{'' if self.cores == 1 else 's'} without a GPU"


@dataclass(frozen=True)
class Wishes:
    """What an operator has said; it is taken as it is, or refused, never changed."""

    context_tokens: int | None = None
    sequences: int | None = None
    memory_share: float | None = None
    fp8: Fp8 = "none"


@dataclass(frozen=True)
class Order:
    """What is asked for: the preset of that name, what it wants, an operator's wishes, and the engine's version."""

    preset: str
    wanted: Preset
    wishes: Wishes
    version: str


@dataclass(frozen=True)
class Choice:
    """One flag, or one setting, and why."""

    name: str
    value: str | None
    """None for a flag without one."""
    reason: str


@dataclass(frozen=True)
class Plan:
    """How an engine is started for a model on a machine."""

    engine: Literal["vllm", "llamacpp"]
    version: str
    preset: str
    model: ModelFacts
    hardware: Gpu | Cpu
    choices: tuple[Choice, ...]
    """Flags for vLLM; keys of `[pool.options]` for llama.cpp."""
    memory: MemorySum | None
    upgrade: Upgrade
    upgrade_reason: str
    notes: tuple[str, ...] = ()
    environment: tuple[Choice, ...] = field(default=())
    """Variables of the engine's environment that follow from the hardware."""

    def argv(self) -> tuple[str, ...]:
        """The flags as a command line has them."""
        return tuple(part for one in self.choices for part in (one.name, one.value) if part is not None)

    def value(self, name: str) -> str | None:
        """What was chosen for a flag or setting; None where it was left to the engine."""
        return next((one.value for one in self.choices if one.name == name), None)
