"""The space of settings that is searched: a few values a setting, and which of them belong together. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import SettingError

Value = int | float | str
Settings = Mapping[str, Value]
Point = tuple[int, ...]
"""The places of the values, setting by setting."""

UNORDERED_DISTANCE: Final = 0.7
"""Between any two values of a setting without order, where the ends of an ordered one are 1 apart."""
MOST_DRAWS: Final = 10_000


@dataclass(frozen=True)
class Setting:
    """One setting and the values it may have, in ascending order where they have one."""

    name: str
    values: tuple[Value, ...]
    ordered: bool = True
    """Whether neighbours act alike. Sizes are given on a logarithmic grid: each step is a step, whatever its size."""
    memory: bool = False
    """Whether more of it never needs less memory: then what is larger than what ran out of it is not tried."""

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) != len(self.values):
            raise SettingError(self.name, f"needs different values to be tuned, and has {self.values!r}")


def anything(_settings: Settings) -> bool:
    """Every combination may be tried."""
    return True


class Space:
    """Settings, and which of their combinations an engine takes (`allowed`: what is refused before any start)."""

    def __init__(self, settings: Sequence[Setting], allowed: Callable[[Settings], bool] = anything) -> None:
        self.settings = tuple(settings)
        self._allowed = allowed
        if len({one.name for one in self.settings}) != len(self.settings):
            raise SettingError("tune", "a setting is named twice")

    def __len__(self) -> int:
        """Combinations, those that are not allowed with them."""
        count = 1
        for one in self.settings:
            count *= len(one.values)
        return count

    def at(self, point: Point) -> dict[str, Value]:
        """What a point stands for."""
        return {one.name: one.values[place] for one, place in zip(self.settings, point, strict=True)}

    def point(self, settings: Settings) -> Point:
        """Where settings lie. Raises SettingError for a value that is none of those that are searched."""
        for one in self.settings:
            if settings.get(one.name) not in one.values:
                raise SettingError(one.name, f"{settings.get(one.name)!r} is none of {', '.join(map(str, one.values))}")
        return tuple(one.values.index(settings[one.name]) for one in self.settings)

    def allows(self, point: Point) -> bool:
        return self._allowed(self.at(point))

    def draw(self, random: np.random.Generator) -> Point:
        """An allowed point, each as likely as any other. Raises SettingError where there seems to be none."""
        sizes = [len(one.values) for one in self.settings]
        for _ in range(MOST_DRAWS):
            point = tuple(int(place) for place in random.integers(0, sizes))
            if self.allows(point):
                return point
        raise SettingError("tune", f"none of {MOST_DRAWS:,} combinations that were drawn is allowed")

    def neighbours(self, point: Point) -> Iterator[Point]:
        """Allowed points that differ in one setting: by a step, or in any way where it has no order."""
        for axis, one in enumerate(self.settings):
            here = point[axis]
            others = (here - 1, here + 1) if one.ordered else range(len(one.values))
            for place in others:
                if place != here and 0 <= place < len(one.values):
                    other = (*point[:axis], place, *point[axis + 1 :])
                    if self.allows(other):
                        yield other

    def distances(self, some: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.float64]:
        """How far points lie apart, setting by setting: shape (settings, some, others), each between 0 and 1."""
        apart = np.empty((len(self.settings), len(some), len(others)))
        for axis, one in enumerate(self.settings):
            steps = np.abs(some[:, axis, None] - others[None, :, axis])
            if one.ordered:
                apart[axis] = steps / max(len(one.values) - 1, 1)
            else:
                apart[axis] = np.where(steps, UNORDERED_DISTANCE, 0.0)
        return apart
