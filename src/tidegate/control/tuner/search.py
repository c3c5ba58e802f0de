"""A search: trials asked for, measured, kept in the journal and told, until there were as many as were wanted."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from tidegate.control.tuner.space import Settings, Space, Value
from tidegate.control.tuner.trials import Journal, Outcome, Trial
from tidegate.errors import OperatorError


class Score(msgspec.Struct, frozen=True):
    """What measuring settings gave."""

    outcome: Outcome
    goodput_per_s: float | None = None
    queries_per_s: float | None = None
    cause: str = ""


Measure = Callable[[Settings], Awaitable[Score]]
"""Measures settings; whatever goes wrong with an engine is a score. The seam at which engines and load are handed in."""


@dataclass(frozen=True)
class Found:
    """What a search has shown."""

    best: dict[str, Value] | None
    """The settings to prove; None where none had a good answer."""
    trials: Sequence[Trial]
    wanted: int

    @property
    def partial(self) -> bool:
        return len(self.trials) < self.wanted

    @property
    def random_best(self) -> float | None:
        """The most goodput among the trials that were drawn at random."""
        return max((one.goodput_per_s for one in self.trials if one.random and one.goodput_per_s), default=None)


class Search:
    """One search, that goes on where its journal ends. Raises OperatorError where Optuna is not installed."""

    def __init__(self, space: Space, journal: Journal, *, trials: int, seed: int) -> None:
        try:
            import optuna

            from tidegate.control.tuner.sampler import GuidedSampler, distributions
        except ImportError as error:
            raise OperatorError(
                f"tuning needs {error.name}, which is not installed", hint="pip install 'tidegate[tune]'"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._journal, self._wanted = space, journal, trials
        self._sampler = GuidedSampler(space, seed + len(journal.trials), trials)
        self._study = optuna.create_study(direction="maximize", sampler=self._sampler)
        self._distributions = distributions(space)
        states = optuna.trial.TrialState
        for one in journal.trials:
            names = [setting.name for setting in space.settings]
            self._study.add_trial(
                optuna.trial.create_trial(
                    state=states.FAIL if one.goodput_per_s is None else states.COMPLETE,
                    value=one.goodput_per_s,
                    params=dict(zip(names, space.point(one.settings), strict=True)),
                    distributions=self._distributions,
                )
            )
        self._failed = states.FAIL

    def found(self) -> Found:
        """What is known so far."""
        point = self._sampler.best(self._study)
        best = self._space.at(point) if point is not None else None
        return Found(best, tuple(self._journal.trials), self._wanted)

    async def run(self, measure: Measure, told: Callable[[int, Trial], None] = lambda _number, _trial: None) -> Found:
        """Try until there were as many trials as wanted. What ends it early leaves all that were measured in the journal."""
        while len(self._journal.trials) < self._wanted:
            asked = self._study.ask(self._distributions)
            settings = self._space.at(tuple(asked.params.values()))
            score = await measure(settings)
            good = score.goodput_per_s
            if good is not None and not math.isfinite(good):
                raise ValueError(f"a goodput of {good} was measured")
            trial = Trial(
                settings, score.outcome, asked.number in self._sampler.drawn, good, score.queries_per_s, score.cause
            )
            self._journal.add(trial)
            if good is None:
                self._study.tell(asked, state=self._failed)
            else:
                self._study.tell(asked, good)
            told(len(self._journal.trials), trial)
        return self.found()
