"""How long prompts and answers are, in tokens. Pure."""

import math
import re
from collections.abc import Callable
from random import Random
from typing import Final

from tidegate.errors import SettingError

Lengths = Callable[[Random], int]
MOST_TOKENS: Final = 1_000_000
FORMS: Final = (
    "a number, uniform:LEAST-MOST or lognormal:MEDIAN,SIGMA[,MOST], as in 512, uniform:100-900, lognormal:200,0.6,2000"
)

_UNIFORM: Final = re.compile(r"uniform:(\d{1,7})-(\d{1,7})")
_LOGNORMAL: Final = re.compile(r"lognormal:(\d{1,7}),(\d(?:\.\d+)?)(?:,(\d{1,7}))?")


def fixed(tokens: int) -> Lengths:
    return lambda _random: tokens


def uniform(least: int, most: int) -> Lengths:
    return lambda random: random.randint(least, most)


def lognormal(median: float, sigma: float, most: int = MOST_TOKENS) -> Lengths:
    """Most are short and some are very long, as people write; `sigma` is that of the logarithm."""
    return lambda random: max(1, min(most, round(median * math.exp(random.gauss(0.0, sigma)))))


def parse(setting: str, written: str) -> Lengths:
    """Raises SettingError."""
    if re.fullmatch(r"[1-9]\d{0,6}", written) and int(written) <= MOST_TOKENS:
        return fixed(int(written))
    found = _UNIFORM.fullmatch(written)
    if found and 1 <= int(found[1]) <= int(found[2]) <= MOST_TOKENS:
        return uniform(int(found[1]), int(found[2]))
    found = _LOGNORMAL.fullmatch(written)
    if found and int(found[1]) >= 1 and 1 <= int(found[3] or MOST_TOKENS) <= MOST_TOKENS:
        return lognormal(int(found[1]), float(found[2]), int(found[3] or MOST_TOKENS))
    raise SettingError(setting, f"{written!r} is not a length in tokens: {FORMS}")
