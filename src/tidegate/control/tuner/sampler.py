"""The guide as a sampler of Optuna's, so that a search is an Optuna study. The only module that imports Optuna."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tidegate.control.tuner.gaussian import Kernel
from tidegate.control.tuner.guide import Guide, Seen
from tidegate.control.tuner.space import Point, Space

RANDOM_FIRST: Final = 6
SCORED_FIRST: Final = 4
"""Trials with a score that the guide needs to begin."""
SETTLING: Final = 8
"""The last trials, which tell the best ones apart."""


class GuidedSampler(BaseSampler):
    """The first trials at random, then where the guide says. Parameters are places of values (`distributions`).

    A trial that failed (out of memory, no start) is told as failed, and steers the others away from where it was.
    """

    def __init__(self, space: Space, seed: int, trials: int) -> None:
        self._space, self._trials = space, trials
        self._random = np.random.default_rng(seed)
        self._kernels: list[Kernel] = []
        self.drawn: set[int] = set()
        """Numbers of the trials that were drawn without a look at the others."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002 - Optuna's signature
        return distributions(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        seen = self._seen(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL)))
        first = len(seen) < RANDOM_FIRST or sum(one.score is not None for one in seen) < SCORED_FIRST
        if first:
            point = self._space.draw(self._random)
        else:
            guide = Guide(self._space, seen, self._random, self._kernels)
            self._kernels = guide.kernels
            point = guide.next(settling=trial.number >= self._trials - SETTLING)
        if first:
            self.drawn.add(trial.number)
        return dict(zip(search_space, point, strict=True))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise NotImplementedError(f"{param_name} is not in the space that is searched")

    def best(self, study: Study) -> Point | None:
        """Of what was measured, the point with the highest mean; None where nothing had a score."""
        seen = self._seen(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL)))
        if not any(one.score for one in seen):
            return None
        return Guide(self._space, seen, self._random, self._kernels).best()

    def _seen(self, trials: Sequence[FrozenTrial]) -> list[Seen]:
        names = [one.name for one in self._space.settings]
        return [Seen(tuple(one.params[name] for name in names), one.value) for one in trials]


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Places of values, setting by setting."""
    return {one.name: IntDistribution(0, len(one.values) - 1) for one in space.settings}
