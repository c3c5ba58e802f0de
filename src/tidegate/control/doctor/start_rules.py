"""What harms in the way in which vLLM is started: a table of rules, and what they look at. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.control.doctor.deployment import Found, Word
from tidegate.engines import old_flags
from tidegate.engines.model_facts import ERNIE_CONFIG
from tidegate.engines.old_flags import Argument
from tidegate.engines.vllm_flags import PINNED

ERNIE: Final = re.compile(r"ernie-4[._]5-0[._]3b", re.IGNORECASE)
MOST_SHARE: Final = 0.95
FEW_SEQUENCES: Final = 8


@dataclass(frozen=True)
class Started:
    """One start of vLLM, its flags by name."""

    found: Found
    flags: Mapping[str, Argument]
    version: str
    """Of the image, or the pinned one."""

    @classmethod
    def of(cls, found: Found) -> "Started":
        flags = {}
        for one in old_flags.parse([word.text for word in found.arguments]):
            flags[one.flag.name if one.flag else one.name] = one
            if one.name.startswith("--no-"):
                flags[one.name] = one
        return cls(found, flags, _version(found.image))

    def line(self, flag: str) -> int:
        """Where a flag stands; the command's own line where it does not."""
        one = self.flags.get(flag)
        return self.found.arguments[one.position].line if one else self.found.line

    def value(self, flag: str) -> str:
        one = self.flags.get(flag)
        return one.values[0] if one and one.values else ""

    def number(self, flag: str) -> float | None:
        """A flag's value; None where there is none, or it is put in later."""
        found = re.fullmatch(r"(\d*\.?\d+)([kKmM]?)", self.value(flag))
        scale = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20}
        return float(found[1]) * scale[found[2]] if found else None

    def off(self, flag: str) -> bool:
        """Whether a flag is given in its `--no-` form."""
        return f"--no-{flag.removeprefix('--')}" in self.flags

    def variable(self, name: str) -> Word | None:
        return next((word for word in self.found.variables if word.text.partition("=")[0] == name), None)

    @property
    def model(self) -> str:
        """The model's name or folder; empty where it is not to be seen."""
        first = self.found.arguments[0].text if self.found.arguments else ""
        return self.value("--model") or ("" if first.startswith("-") else first)

    @property
    def elsewhere(self) -> bool:
        """Whether it is another command than the one that serves."""
        return any(word.text != "serve" and not word.text.startswith(("-", "vllm.")) for word in self.found.command)

    @property
    def ernie(self) -> bool:
        return bool(ERNIE.search(self.model))

    @property
    def on_cpu(self) -> bool:
        image = self.found.image
        return (image is not None and "cpu" in image.text) or self.variable("VLLM_CPU_KVCACHE_SPACE") is not None


@dataclass(frozen=True)
class Rule:
    """Something that harms."""

    flag: str
    """Where it stands."""
    harms: Callable[[Started], bool]
    text: str
    advice: str
    grave: bool = False


def _is(flag: str, *values: str) -> Callable[[Started], bool]:
    return lambda started: started.value(flag).lower() in values


def _has(flag: str) -> Callable[[Started], bool]:
    return lambda started: flag in started.flags and not started.off(flag)


def _below(flag: str, least: float) -> Callable[[Started], bool]:
    return lambda started: 0 < (started.number(flag) or 0) < least


def _above(flag: str, most: float) -> Callable[[Started], bool]:
    return lambda started: (started.number(flag) or 0) > most


RULES: Final = (
    Rule(
        "--enforce-eager",
        lambda started: _has("--enforce-eager")(started) and not started.on_cpu,
        "--enforce-eager turns CUDA graphs off, which makes every step slower",
        "leave it out; it saves some memory, and time only at the start",
    ),
    Rule(
        "--gpu-memory-utilization",
        lambda started: MOST_SHARE < (started.number("--gpu-memory-utilization") or 0) <= 1,
        "--gpu-memory-utilization leaves next to nothing for CUDA itself and for what else uses the GPU",
        f"use {MOST_SHARE:g} or less",
    ),
    Rule(
        "--gpu-memory-utilization",
        _above("--gpu-memory-utilization", 1),
        "--gpu-memory-utilization is a share, and more than 1 is refused",
        "use 0.92 for 92 %",
        grave=True,
    ),
    Rule(
        "--trust-remote-code",
        _has("--trust-remote-code"),
        "--trust-remote-code runs whatever code lies beside the model",
        "leave it out: ERNIE 4.5 and all that vLLM knows itself need none",
    ),
    Rule(
        "--api-key",
        lambda started: bool(started.value("--api-key")) and "$" not in started.value("--api-key"),
        "--api-key shows the key to everybody who can list processes",
        "use the variable VLLM_API_KEY",
    ),
    Rule(
        "--enable-prefix-caching",
        lambda started: started.off("--enable-prefix-caching"),
        "without prefix caching every turn of a conversation is computed from its beginning",
        "leave --no-enable-prefix-caching out",
    ),
    Rule(
        "--enable-chunked-prefill",
        lambda started: started.off("--enable-chunked-prefill"),
        "without chunked prefill a long prompt holds up everybody's answers",
        "leave --no-enable-chunked-prefill out",
    ),
    Rule(
        "--disable-log-stats",
        _has("--disable-log-stats"),
        "--disable-log-stats takes the engine's metrics away, from which gateways learn its load",
        "leave it out",
    ),
    Rule(
        "--max-num-seqs",
        _below("--max-num-seqs", FEW_SEQUENCES),
        "--max-num-seqs lets so few requests be computed together that the hardware is mostly idle",
        "leave it to the engine, or see `tidegate engines plan`",
    ),
    Rule(
        "--load-format", _is("--load-format", "dummy"), "--load-format dummy serves random weights", "leave it out", grave=True
    ),
    Rule(
        "--dtype",
        lambda started: _is("--dtype", "float32", "float")(started) and not started.on_cpu,
        "float32 doubles weights and KV cache, and halves the speed of a GPU",
        "use bfloat16, or float16 on a T4 and older",
    ),
    Rule(
        "--model",
        lambda started: started.model.endswith(".gguf")
        or "gguf" in {started.value("--load-format").lower(), started.value("--quantization").lower()},
        "GGUF files left vLLM in 0.24",
        "give the safetensors folder, or run the file with llama.cpp",
        grave=True,
    ),
    Rule(
        "--sse-keep-alive-interval",
        _above("--sse-keep-alive-interval", 0),
        "comments in a stream look like progress while the engine hangs",
        "leave it out",
    ),
    Rule(
        "--tensor-parallel-size",
        lambda started: started.ernie and (started.number("--tensor-parallel-size") or 1) > 1,
        "a model of 0.3 billion parameters is slower on several GPUs than on one",
        "run one replica on each GPU",
    ),
    Rule(
        "--enable-expert-parallel",
        lambda started: started.ernie and _has("--enable-expert-parallel")(started),
        "ERNIE-4.5-0.3B is dense: there are no experts to spread",
        "leave it out",
    ),
    Rule(
        "--max-model-len",
        lambda started: started.ernie and _above("--max-model-len", ERNIE_CONFIG["max_position_embeddings"])(started),
        "ERNIE-4.5-0.3B was trained on 131,072 positions, and more is refused",
        "use 131072 or less; 8192 is enough for most chats",
        grave=True,
    ),
    Rule(
        "--kv-cache-dtype",
        lambda started: started.value("--kv-cache-dtype").startswith("fp8"),
        "an fp8 KV cache needs compute capability 8.9 (L4, RTX 40, H100 and newer)",
        "leave it out on T4, A10, A100 and other older cards",
    ),
)  # fmt: skip

VARIABLES: Final = {
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "contexts longer than the model was trained on give nonsense, or end the engine",
    "VLLM_SERVER_DEV_MODE": "it opens paths for developers (sleep, reset, internals) to every client",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "every client may load files as adapters",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "whoever reaches the engine's sockets can run code in it",
}
"""What harms when it is set to anything but 0."""


def _version(image: Word | None) -> str:
    found = re.search(r":v?(\d+\.\d+(\.\d+)?)", image.text) if image else None
    return found[1] if found else PINNED
