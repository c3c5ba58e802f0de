"""`tidegate tune`: searches settings of an engine that need a restart for the most goodput, and proves what it found.

Engines are started for it one after the other, with all of the machine: on a spare machine, or while nothing else is served.
"""

import asyncio
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
import uvloop
import xllamacpp

from tidegate import __version__, machine
from tidegate.bench import comparison_text
from tidegate.bench.comparing import Arm, Comparison, verdicts
from tidegate.bench.results import Run
from tidegate.bench.running import Coming, Job
from tidegate.bench.slo import Slo
from tidegate.cli import bench_options as options
from tidegate.cli.bench_asked import (
    Asked,
    asked_for,
    coming_of,
    command_line,
    how_requests_come,
    now,
    room,
    this_machine,
    where,
    writable,
)
from tidegate.cli.bench_load import Learnt, learn, write
from tidegate.cli.data_folder import data_folder
from tidegate.cli.trial_engines import TrialEngines, TrialError, pool_of
from tidegate.cli.turns import Rounds, Stoppable
from tidegate.control.plan import ReplicaSpec
from tidegate.control.tuner import llamacpp_space, page
from tidegate.control.tuner.profile import Profile, keep, profile_file
from tidegate.control.tuner.search import Score, Search
from tidegate.control.tuner.space import Settings, Value
from tidegate.control.tuner.stopping import hopeless
from tidegate.control.tuner.trials import Journal, Key, Trial
from tidegate.errors import EngineError

app = typer.Typer()

RUNG: Final = 3
"""The first rung is this part of a whole trial."""
WARMUP_S: Final = 2.0
TIMEOUT_S: Final = 120.0
NAME: Final = "trial-tune"
"""Of the engines' log."""


@dataclass
class Trials:
    """Starts engines with settings, and puts them under the load."""

    engines: TrialEngines
    model: str
    fixed: Mapping[str, Value]
    """Options that all have."""
    asked: Asked
    job: "partial[Job]"
    coming: Coming
    seconds: float
    seed: int
    going: Stoppable = field(default_factory=Stoppable)
    best: tuple[int, float] = (0, 1.0)
    """Good answers of the best trial that was measured to its end, and in how many seconds."""
    learnt: Learnt | None = None
    first: ReplicaSpec | None = None

    def remember(self, trials: Sequence[Trial]) -> None:
        """What an earlier search has measured is to be beaten, too."""
        whole = (one.goodput_per_s for one in trials if one.outcome == "measured")
        most = max((one for one in whole if one is not None), default=0.0)
        self.best = (round(most * self.seconds), self.seconds)

    async def spec(self, settings: Settings) -> ReplicaSpec:
        """What is started; the model's files are looked for once."""
        wanted = pool_of("llamacpp", self.model, {**self.fixed, **settings})
        if self.first is None:
            self.first = await self.engines.spec(wanted)
        return replace(self.first, options=wanted.pool[0].engine_options())

    async def score(self, settings: Settings) -> Score:
        """A trial of two rungs; whatever goes wrong with the engine is a score."""
        try:
            async with self.engines.running(await self.spec(settings), NAME) as engine:
                first = await self._load(engine.url, engine.api_key, engine.served_name, self.seconds / RUNG, 0)
                answers, took = _good(first), first.seconds
                if took > 0 and hopeless(answers, took, *self.best):
                    return Score("stopped early", first.goodput_per_s, first.queries_per_s, "cannot reach the best")
                whole = await self._load(engine.url, engine.api_key, engine.served_name, self.seconds, 0)
        except TrialError as error:
            return Score("out of memory" if error.no_memory else "failed", cause=str(error))
        except EngineError as error:
            return Score("failed", cause=str(error))
        answers = _good(whole)
        if whole.seconds > 0 and answers / whole.seconds > self.best[0] / self.best[1]:
            self.best = (answers, whole.seconds)
        return Score("measured", whole.goodput_per_s, whole.queries_per_s)

    async def run(self, settings: Settings, number: int) -> Run:
        """A turn of the proof: its requests follow from its number. Raises TrialError, EngineError."""
        async with self.engines.running(await self.spec(settings), NAME) as engine:
            return await self._load(engine.url, engine.api_key, engine.served_name, self.seconds, number)

    async def _load(self, url: str, key: str, served: str, seconds: float, number: int) -> Run:
        make = where(url, None, insecure=False)
        asked = replace(self.asked, model=served, api_key=key)
        if self.learnt is None:
            self.learnt = await learn(make(), asked, TIMEOUT_S)
        coming, seed = replace(self.coming, seconds=seconds), self.seed + number
        job = partial(self.job, coming=coming, endpoint=make, pid=None, seed=seed)
        run = await self.going.load(make(), asked, self.learnt, job, seed)
        if self.going.stopped:
            raise asyncio.CancelledError
        return run


def _good(run: Run) -> int:
    return round((run.goodput_per_s or 0.0) * run.seconds)


@app.command()
def tune(  # noqa: PLR0917 - typer reads options from the signature
    slo: Annotated[str, typer.Option(help="What a good answer keeps: ttft=500ms,tpot=50ms,latency=3s.")],
    model: Annotated[str, typer.Option(help="Its name, as for `up`.")] = "demo",
    rate: options.Rate = None,
    concurrency: options.Concurrency = None,
    workload_: options.WorkloadName = "short",
    input_: options.Input = "",
    output: options.Output = "",
    trials: Annotated[int, typer.Option(min=10, max=500, help="Settings to try.")] = 40,
    seconds: Annotated[float, typer.Option(min=3, help="Of load in a trial, and in a turn of the proof.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=2, max=50, help="Turns of each in the proof.")] = 5,
    seed: options.Seed = 1,
    html: options.Html = None,
) -> None:
    """Search llama.cpp's settings for the most goodput under an SLO, and prove the winner against what `up` ships.

    Give --rate or --concurrency. Every trial is kept: the same command goes on where it was interrupted. The winner is
    kept as a profile only if it is better for sure; nothing takes it by itself. Exit code 1 when nothing better was
    shown, 130 when it was interrupted.
    """
    coming = coming_of(
        rate=rate, users=concurrency, seconds=seconds, warmup_s=min(WARMUP_S, seconds / RUNG / 2)
    )  # fmt: skip
    writable(html)
    bounds = Slo.parse(slo)
    asked = asked_for(workload_, prompt=input_, output=output)
    job = partial(
        Job, slo=bounds, bound_s=1.0, timeout_s=TIMEOUT_S, most_in_flight=room(10_000), count_events=False, gpus=None
    )
    with TrialEngines.held(data_folder()) as engines:
        trying = Trials(engines, model, {}, asked, job, coming, seconds, seed)
        load = how_requests_come(coming, "poisson")
        status = uvloop.run(_tune(trying, slo=str(bounds), load=load, trials=trials, rounds=rounds, html=html))
    raise typer.Exit(status)


async def _tune(trying: Trials, *, slo: str, load: str, trials: int, rounds: int, html: Path | None) -> int:
    profiles, here, cores = trying.engines.home.profiles, this_machine(os.getloadavg()[0]), machine.cores()
    space = llamacpp_space.llamacpp_space(cores)
    shipped = await trying.spec({})
    async with trying.engines.running(shipped, NAME) as engine:
        slots, context = engine.facts.slots, engine.facts.context_tokens
    trying.fixed = {} if context is None else {"context_tokens": context}  # what a request may have stays as it is
    key = Key(
        model=shipped.loaded.digest,
        machine=f"{here.processor}, {cores} cores",
        engine=f"llamacpp-{xllamacpp.__version__}",
        workload=trying.asked.words,
        load=f"{load}, seed {trying.seed}",
        slo=slo,
        space="; ".join([*(f"{one.name} {one.values}" for one in space.settings), f"context_tokens {context}"]),
    )
    journal = Journal(profiles / "trials" / f"{_digest(key)}.jsonl", key)
    trying.remember(journal.trials)
    search = Search(space, journal, trials=trials, seed=trying.seed)
    await trying.going.finish(search.run(trying.score, _told))
    found = search.found()
    file = profile_file(profiles, trying.model, key.machine, key.engine)
    verdict, proof, status = [], "", 130 if trying.going.stopped else 1
    if trying.going.stopped:
        verdict.append("Interrupted: what was tried is kept, and the same command goes on from there.")
    elif found.best is None:
        verdict.append(f"Nobody keeps the SLO ({slo}) here: no trial had an answer within it.")
    else:
        compared: dict[str, Settings] = {
            "up": {} if slots is None else {"slots": slots},
            "defaults": llamacpp_space.engine_defaults(cores),
            "tuned": found.best,
        }
        arms, whole = await _prove(trying, compared, rounds)
        comparison = Comparison(
            tidegate=__version__, command=command_line(), date=now(), machine=here, load=load, workload=trying.asked.words,
            slo=slo, rounds=rounds, partial=not whole, arms=arms, verdicts=verdicts(arms),
        )  # fmt: skip
        print(comparison_text.table(comparison), end="")
        proof = comparison_text.html_table(comparison)
        told, beside = comparison.verdicts["tuned"], verdicts(arms[1:])["tuned"]
        won = whole and (one := told.get("goodput_per_s")) is not None and one.low > 1.0
        status = 0 if won else 130 if trying.going.stopped else 1
        said = ", ".join(f"{name} {value}" for name, value in found.best.items())
        verdict.append(f"{'Kept' if won else 'Not kept, as it is not better for sure'}: {said}.")
        verdict += [
            f"{comparison_text.NAMES[figure]}, tuned / the engine's defaults: {one.ratio:.2f} ({one.low:.2f} to {one.high:.2f})."
            for figure in ("goodput_per_s", "queries_per_s")
            if (one := beside.get(figure)) is not None
        ]
        if won:
            _, defaults, tuned = (arm.mean("output_tokens_per_s") for arm in arms)
            options = {**trying.fixed, **found.best}
            proved = {"up": told, "defaults": beside}
            keep(file, Profile(trying.model, key, comparison.date, options, proved, tuned, defaults))
            verdict.append(f"It stands in {file}; put its options under [pool.options] to take it.")
    print("\n".join([*verdict, *page.summary(found)]))
    write(html or file.with_suffix(".html"), page.whole(found, verdict, proof).encode())
    return status


async def _prove(trying: Trials, compared: Mapping[str, Settings], count: int) -> tuple[list[Arm], bool]:
    """All of them in turn; and whether each had all of its turns."""
    rounds, tried = Rounds(list(compared), count), list(compared.values())
    await trying.going.finish(
        rounds.take(lambda place, number: trying.run(tried[place], number), lambda: trying.going.stopped)
    )
    words = [", ".join(f"{name} {value}" for name, value in settings.items()) for settings in tried]
    return rounds.arms(words), not trying.going.stopped and not rounds.faults


def _told(number: int, trial: Trial) -> None:
    said = ", ".join(f"{name} {value}" for name, value in trial.settings.items())
    good = "" if trial.goodput_per_s is None else f", goodput {trial.goodput_per_s:.2f}/s"
    print(f"trial {number}: {said}: {trial.outcome}{good}", file=sys.stderr, flush=True)


def _digest(key: Key) -> str:
    return hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:16]
