"""Every flag, subcommand, variable and architecture of the pinned vLLM, as it tells of them itself.

The data are in vllm_flags.json, written by `scripts/vllm_flags.py` in vLLM's environment.
"""

import functools
import re
from pathlib import Path
from typing import Final

import msgspec

from tidegate.engines.vllm_releases import DEFAULT

PINNED: Final = DEFAULT
"""The version that plans and checks are made for."""
DATA: Final = Path(__file__).with_name("vllm_flags.json")


class Flag(msgspec.Struct, frozen=True):
    """One flag of `vllm serve`."""

    names: tuple[str, ...]
    """The one to use first; then short ones, and `--no-…` where it can be turned off."""
    takes: str
    """`none`, `one`, `optional` or `many` values."""
    kind: str = "str"
    """Of a value: `int`, `float`, `str` or `json`."""
    choices: tuple[str, ...] = ()
    default: bool | int | float | str | None = None
    deprecated: bool = False

    @property
    def name(self) -> str:
        return self.names[0]


class Known(msgspec.Struct, frozen=True):
    """What one version of vLLM knows."""

    version: str
    architectures: tuple[str, ...]
    """Models it knows, as `config.json` names them."""
    dropped: dict[str, str]
    """Architectures it no longer knows, and the last version that did."""
    commands: tuple[str, ...]
    """What may follow `vllm`."""
    environment: tuple[str, ...]
    """Variables that begin with VLLM_."""
    flags: tuple[Flag, ...]

    def by_name(self) -> dict[str, Flag]:
        """Every flag by each of its names."""
        return {name: flag for flag in self.flags for name in flag.names}


@functools.cache
def known() -> Known:
    """What the pinned version knows."""
    return msgspec.json.decode(DATA.read_bytes(), type=Known)


def canonical(name: str) -> str:
    """A flag as vLLM reads it: underscores are hyphens, and what follows a dot is a key within it."""
    head, dot, rest = name.partition(".")
    return head.replace("_", "-") + dot + rest if name.startswith("--") else name


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparison: (0, 32, 0) of `0.32.0+cpu`."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
