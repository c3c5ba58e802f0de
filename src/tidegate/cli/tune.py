"""`tidegate tune`: searches settings of an engine that need a restart for the most goodput, and proves what it found.

Engines are started for it one after the other, with all of the machine: on a spare machine, or while nothing else is served.
"""

import asyncio
import datetime as dt
import hashlib
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
import uvloop
import xllamacpp

from tidegate import __version__, machine
from tidegate.bench import arrivals, comparison_text, workload
from tidegate.bench.comparing import Arm, Comparison, turns, verdicts
from tidegate.bench.results import Run
from tidegate.bench.running import Coming, Job, Runs
from tidegate.bench.slo import Slo
from tidegate.cli import bench_options as options
from tidegate.cli.bench_asked import Asked, asked_for, check, how_requests_come, room, this_machine, where
from tidegate.cli.bench_load import Learnt, learn, measure
from tidegate.cli.data_folder import data_folder
from tidegate.cli.trial_engines import TrialEngines, TrialError, pool_of
from tidegate.control.plan import ReplicaSpec
from tidegate.control.tuner import llamacpp_space, page
from tidegate.control.tuner.profile import Profile, keep, profile_file
from tidegate.control.tuner.search import Found, Score, Search
from tidegate.control.tuner.space import Settings, Value
from tidegate.control.tuner.stopping import hopeless
from tidegate.control.tuner.trials import Journal, Key, Trial
from tidegate.errors import EngineError, OperatorError

app = typer.Typer()

RUNG: Final = 3
"""The first rung is this part of a whole trial."""
WARMUP_S: Final = 2.0
TIMEOUT_S: Final = 120.0


@dataclass
class Trials:
    """Starts engines with settings, and puts them under the load. `stop` ends what goes on."""

    engines: TrialEngines
    model: str
    fixed: Mapping[str, Value]
    """Options that all have."""
    asked: Asked
    job: "partial[Job]"
    coming: Coming
    seconds: float
    seed: int
    best: tuple[int, float] = (0, 1.0)
    """Good answers of the best trial that was measured to its end, and in how many seconds."""
    learnt: Learnt | None = None
    first: ReplicaSpec | None = None
    runs: Runs | None = None
    stopped: bool = False

    async def spec(self, settings: Settings) -> ReplicaSpec:
        """What is started; the model's files are looked for once."""
        wanted = pool_of("llamacpp", self.model, {**self.fixed, **settings})
        if self.first is None:
            self.first = await self.engines.spec(wanted)
        return replace(self.first, options=wanted.pool[0].engine_options())

    async def score(self, settings: Settings) -> Score:
        """A trial of two rungs; whatever goes wrong with the engine is a score."""
        try:
            async with self.engines.running(await self.spec(settings), "trial-tune") as engine:
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
        async with self.engines.running(await self.spec(settings), "trial-tune") as engine:
            return await self._load(engine.url, engine.api_key, engine.served_name, self.seconds, number)

    async def _load(self, url: str, key: str, served: str, seconds: float, number: int) -> Run:
        make = where(url, None, insecure=False)
        asked = replace(self.asked, model=served, api_key=key)
        if self.learnt is None:
            self.learnt = await learn(make(), asked, TIMEOUT_S)
        coming = replace(self.coming, seconds=seconds)
        job = partial(self.job, coming=coming, endpoint=make, pid=None, seed=self.seed + number)
        done = await measure(make(), asked, self.learnt, job, self.seed + number, begun=self._begun)
        self.runs = None
        if self.stopped:
            raise asyncio.CancelledError
        return done.done[0]

    def _begun(self, runs: Runs) -> None:
        self.runs = runs


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
    """Search llama.cpp's settings for the most goodput under an SLO, and prove the winner against the present ones.

    Give --rate or --concurrency. Every trial is kept: the same command goes on where it was interrupted. The winner is
    kept as a profile only if it is better for sure; nothing takes it by itself. Exit code 1 when nothing better was
    shown, 130 when it was interrupted.
    """
    coming = Coming(
        arrivals=arrivals.parse("poisson"), rate=rate, trace=(), users=concurrency, seconds=seconds, requests=None,
        warmup_s=min(WARMUP_S, seconds / RUNG / 2),
    )  # fmt: skip
    check(coming)
    bounds = Slo.parse(slo)
    asked = asked_for(
        workload_, input_, output, "", workload.CHAT, stream=True, api_key="", extra={}, classes={}, prefix=None
    )
    job = partial(
        Job, slo=bounds, bound_s=1.0, timeout_s=TIMEOUT_S, most_in_flight=room(10_000), count_events=False, gpus=None
    )
    home = data_folder()
    home.create()
    raise typer.Exit(
        uvloop.run(
            _tune(
                Trials(TrialEngines(home), model, {}, asked, job, coming, seconds, seed),
                slo=str(bounds), load=how_requests_come(coming, "poisson"), trials=trials, rounds=rounds,
                html=html,
            )
        )
    )  # fmt: skip


async def _tune(going: Trials, *, slo: str, load: str, trials: int, rounds: int, html: Path | None) -> int:
    profiles, before, cores = going.engines.home.path / "profiles", os.getloadavg()[0], machine.cores()
    space = llamacpp_space.llamacpp_space(cores)
    defaults = llamacpp_space.engine_defaults(cores)
    present_spec = await going.spec({})
    assert present_spec.files is not None  # noqa: S101 - a plan gives files to llama.cpp
    async with going.engines.running(present_spec, "trial-tune") as engine:
        slots, context = engine.facts.slots, engine.facts.context_tokens
    going.fixed = {} if context is None else {"context_tokens": context}  # what a request may have stays as it is
    present: dict[str, Value] = {} if slots is None else {"slots": slots}
    key = Key(
        present_spec.files.digest, f"cpu-{cores}", f"llamacpp-{xllamacpp.__version__}", going.asked.words,
        f"{load}, seed {going.seed}", slo, "; ".join(f"{one.name} {one.values}" for one in space.settings) + f"; {context}",
    )  # fmt: skip
    file = profile_file(profiles, going.model, key.machine, key.engine)
    journal = Journal(profiles / "trials" / f"{_digest(key)}.jsonl", key)
    search = Search(space, journal, trials=trials, seed=going.seed)
    task = asyncio.create_task(search.run(going.score, _told))
    _stop_by_signals(going, task)
    try:
        await task
    except asyncio.CancelledError:
        if not going.stopped:
            raise
    found = search.found()
    verdict, proof, status = [], "", 130 if going.stopped else 1
    if going.stopped:
        verdict.append("Interrupted: what was tried is kept, and the same command goes on from there.")
    elif found.best is None:
        verdict.append(f"Nobody keeps the SLO ({slo}) here: no trial had an answer within it.")
    else:
        compared = {"present": present, "defaults": defaults, "tuned": found.best}
        arms, whole = await _prove(going, compared, rounds)
        told = verdicts(arms)["tuned"]
        beside = verdicts([arms[1], arms[2]])["tuned"]
        won = whole and (one := told.get("goodput_per_s")) is not None and one.low > 1.0
        said = ", ".join(f"{name} {value}" for name, value in found.best.items())
        verdict.append(f"{'Kept' if won else 'Not kept, as it is not better for sure'}: {said}.")
        comparison = Comparison(
            __version__, shlex.join(["tidegate", *sys.argv[1:]]), dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            this_machine(before), load, going.asked.words, slo, rounds, not whole, arms, verdicts(arms),
        )  # fmt: skip
        verdict += [
            f"{comparison_text.NAMES[figure]}, tuned / the engine's defaults: {one.ratio:.2f} ({one.low:.2f} to {one.high:.2f})."
            for figure in ("goodput_per_s", "queries_per_s")
            if (one := beside.get(figure)) is not None
        ]
        print(comparison_text.table(comparison), end="")
        proof = _table(comparison)
        status = 0 if won else 130 if going.stopped else 1
        if won:
            keep(
                file,
                Profile(key, comparison.date, {**going.fixed, **found.best}, {"present": told, "defaults": beside}),
            )
            verdict.append(f"It stands in {file}; put it under [pool.options] to take it.")
    print("\n".join([*verdict, *page.summary(found)]))
    report = html or file.with_suffix(".html")
    report.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    report.write_text(page.whole(found, verdict, proof), "utf-8")
    return status


async def _prove(going: Trials, compared: Mapping[str, Settings], rounds: int) -> tuple[list[Arm], bool]:
    """All of them in turn; and whether each had all of its turns."""
    runs: dict[str, list[Run | None]] = {name: [None] * rounds for name in compared}
    faults: dict[str, TrialError] = {}
    names = list(compared)
    task = asyncio.create_task(_turns(going, compared, runs, faults, turns(len(names), rounds)))
    _stop_by_signals(going, task)
    try:
        await task
    except asyncio.CancelledError:
        if not going.stopped:
            raise
    words = {name: ", ".join(f"{key} {value}" for key, value in compared[name].items()) for name in names}
    arms = [Arm(name, words[name], runs[name], str(faults.get(name, ""))) for name in names]
    return arms, not going.stopped and not faults


async def _turns(
    going: Trials,
    compared: Mapping[str, Settings],
    runs: Mapping[str, list[Run | None]],
    faults: dict[str, TrialError],
    order: list[tuple[int, int]],
) -> None:
    names = list(compared)
    for number, place in order:
        name = names[place]
        print(f"proof, round {number + 1}: {name}", file=sys.stderr, flush=True)
        try:
            runs[name][number] = await going.run(compared[name], number)
        except TrialError as error:
            faults[name] = error
        except (EngineError, OperatorError) as error:
            faults[name] = TrialError(str(error), no_memory=False)


def _stop_by_signals(going: Trials, task: "asyncio.Task[Found] | asyncio.Task[None]") -> None:
    def stop() -> None:
        going.stopped = True
        if going.runs is not None:
            going.runs.stop()
        else:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _told(number: int, trial: Trial) -> None:
    said = ", ".join(f"{name} {value}" for name, value in trial.settings.items())
    good = "" if trial.goodput_per_s is None else f", goodput {trial.goodput_per_s:.2f}/s"
    print(f"trial {number}: {said}: {trial.outcome}{good}", file=sys.stderr, flush=True)


def _digest(key: Key) -> str:
    return hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:16]


def _table(comparison: Comparison) -> str:
    cells = [comparison_text.head(comparison), *comparison_text.rows(comparison)]
    return f"<table>{''.join('<tr>' + ''.join(f'<td>{escape(cell)}</td>' for cell in row) + '</tr>' for row in cells)}</table>"
