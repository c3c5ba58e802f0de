"""The presets of a plan: what is wanted of an engine, before model and hardware have their say. Data, and a file's reader."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import SettingError

DEFAULT: Final = "default"
TUNED: Final = "tuned"


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wanted; what is None is left to the engine, or to the plan where the engine would not start with it."""

    why: str
    """For what it is, in a few words that end a sentence."""
    context_tokens: int | None = None
    """Prompt and answer of one request together."""
    sequences: int | None = None
    """Requests computed at once."""
    batched_tokens: int | None = None
    """Tokens computed in one step, prompts and answers together."""
    block_tokens: int | None = None
    """Of a block of the KV cache."""
    memory_share: float | None = None
    """Of all memory of the GPU, at most."""
    long_prefill_tokens: int | None = None
    """A prompt gets no more of a step than these while others are there."""
    stream_interval: int | None = None
    """Tokens of a stream that are sent together."""
    performance_mode: str | None = None
    compiled_on_cpu: bool = False
    """Whether minutes at every start are worth faster steps on a CPU."""


PRESETS: Final[Mapping[str, Preset]] = {
    DEFAULT: Preset("the engine's own values, changed only where it would not start with them"),
    "balanced": Preset(
        "chats and batch work on one card",
        sequences=128,
        batched_tokens=2048,
        block_tokens=16,
        memory_share=0.95,
        long_prefill_tokens=1024,
    ),
    "production": Preset(
        "many users, with a bound on what one of them can ask for",
        context_tokens=8192,
        sequences=256,
        memory_share=0.92,
        long_prefill_tokens=1024,
    ),
    "extreme": Preset(
        "all that the card gives, to one engine alone",
        context_tokens=4096,
        sequences=1024,
        batched_tokens=16_384,
        memory_share=0.95,
        stream_interval=4,
        compiled_on_cpu=True,
    ),
    "throughput": Preset(
        "most tokens a second; each may wait",
        context_tokens=8192,
        sequences=512,
        batched_tokens=8192,
        memory_share=0.92,
        stream_interval=4,
        compiled_on_cpu=True,
    ),
    "latency": Preset(
        "few at once, each of them soon",
        context_tokens=8192,
        sequences=32,
        batched_tokens=1024,
        memory_share=0.92,
        long_prefill_tokens=256,
        performance_mode="interactivity",
    ),
    "long-context": Preset(
        "documents of many pages",
        context_tokens=32_768,
        sequences=64,
        batched_tokens=8192,
        memory_share=0.92,
        long_prefill_tokens=4096,
    ),
}


def tuned_file(profiles: Path, model: str, machine: str) -> Path:
    """Where the tuner leaves what it found for a model on a machine (a GPU's name, or `cpu-N`)."""
    return profiles / f"{_slug(model)}--{_slug(machine)}.json"


def read_tuned(file: Path) -> Preset:
    """What was found by tuning. Raises SettingError where there is nothing, or nothing that can be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Preset)
    except FileNotFoundError:
        raise SettingError(
            "preset", f"nothing was tuned yet for this model on this machine ({file.name} is not there)", hint=_others()
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise SettingError("preset", f"{file} cannot be used: {error}", hint=_others()) from None


def named(preset: str) -> Preset:
    """The preset of that name. Raises SettingError that lists them."""
    if preset not in PRESETS:
        raise SettingError("preset", f"there is no {preset!r}", hint=_others())
    return PRESETS[preset]


def _others() -> str:
    return f"there are {', '.join(PRESETS)} and {TUNED}"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "any"
