"""`tidegate bench compare`: servers, or settings of one engine, under the same load in turn.

Only one engine of ours is there at a time: an idle one holds memory and caches that the one under load would have alone in
service, and some spin while they wait. The price is a start for each turn.
"""

import asyncio
import datetime as dt
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
import uvloop

from tidegate import __version__
from tidegate.bench import arrivals, comparison_text, probe, trace, use, workload
from tidegate.bench.comparing import Arm, Comparison, turns, verdicts
from tidegate.bench.results import Run
from tidegate.bench.running import Coming, Job, Runs
from tidegate.bench.slo import Slo
from tidegate.cli import bench_options as options
from tidegate.cli.bench_asked import (
    Asked,
    asked_for,
    check,
    extra_fields,
    how_requests_come,
    read_key,
    room,
    this_machine,
    where,
    writable,
)
from tidegate.cli.bench_load import Learnt, learn, measure, write
from tidegate.cli.data_folder import data_folder
from tidegate.cli.trial_engines import TrialEngines, TrialError, one_engine, pool_of
from tidegate.config import Settings
from tidegate.control.plan import ReplicaSpec
from tidegate.errors import EngineError, OperatorError, SettingError
from tidegate.http import Endpoint

PRESET: Final = "preset:"
REFERENCE_PRESETS: Final = ("default", "balanced", "extreme")
LETTERS: Final = "ABC"


@dataclass(frozen=True)
class Contender:
    """One of the compared, as it was typed: a URL, or an engine of ours."""

    name: str
    what: str
    url: str = ""
    settings: Settings | None = None


@dataclass
class Turns:
    """The turns of a comparison, one after the other. `stop` ends the one that goes on, and tells what there is."""

    contenders: Sequence[Contender]
    asked: Asked
    endpoint: Callable[[str], Callable[[], Endpoint]]
    job: "partial[Job]"
    seed: int
    timeout_s: float
    stopped: bool = False
    faults: dict[int, TrialError] = field(default_factory=dict)
    """By number of the contender: it is not asked again."""
    notes: list[str] = field(default_factory=list)
    _engines: TrialEngines | None = None
    _specs: dict[int, ReplicaSpec] = field(default_factory=dict)
    _learnt: dict[int, Learnt] = field(default_factory=dict)
    _runs: Runs | None = None
    _task: "asyncio.Task[list[list[Run | None]]] | None" = None

    def stop(self) -> None:
        """Ctrl-C."""
        self.stopped = True
        if self._runs is not None:
            self._runs.stop()
        elif self._task is not None:
            self._task.cancel()  # an engine is about to start, or to end

    async def run(self, rounds: int) -> list[list[Run | None]]:
        """The runs by contender and round. Raises OperatorError where a contender's model or server is not to be had."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.stop)
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        found: list[list[Run | None]] = [[None] * rounds for _ in self.contenders]
        self._task = loop.create_task(self._run(found, rounds))
        try:
            return await self._task
        except asyncio.CancelledError:
            if not self.stopped:
                raise
            return found

    async def _run(self, found: list[list[Run | None]], rounds: int) -> list[list[Run | None]]:
        await self._prepare()
        for number, arm in turns(len(self.contenders), rounds):
            if self.stopped:
                break
            if arm in self.faults:
                continue
            told = f"round {number + 1} of {rounds}: {self.contenders[arm].name}"
            print(told, file=sys.stderr, flush=True)
            try:
                found[arm][number] = await self._turn(arm, number)
            except TrialError as error:
                self.faults[arm] = error
            except (EngineError, OperatorError) as error:  # it does not answer, or not what it is asked
                self.faults[arm] = TrialError(str(error), no_memory=False)
        return found

    async def _prepare(self) -> None:
        ours = {arm: one.settings for arm, one in enumerate(self.contenders) if one.settings is not None}
        if ours:
            home = data_folder()
            home.create()
            self._engines = TrialEngines(home)
            for arm, settings in ours.items():
                self._specs[arm] = await self._engines.spec(settings)

    async def _turn(self, arm: int, number: int) -> Run | None:
        """The same requests for each contender of a round: they follow from the seed and its number."""
        async with self._reached(arm) as (make, pid, asked):
            learnt = self._learnt.get(arm)
            if learnt is None:
                learnt = self._learnt[arm] = await learn(make(), asked, self.timeout_s)
                self.notes += [note for note in learnt.notes if note not in self.notes]
            job = partial(self.job, endpoint=make, pid=pid, seed=self.seed + number)
            try:
                runs = await measure(make(), asked, learnt, job, self.seed + number, begun=self._begun)
            finally:
                self._runs = None
        return runs.done[0] if runs.done else None

    def _begun(self, runs: Runs) -> None:
        self._runs = runs

    @asynccontextmanager
    async def _reached(self, arm: int) -> AsyncIterator[tuple[Callable[[], Endpoint], int | None, Asked]]:
        """Where a contender is, its process, and what it is asked; an engine of ours for as long as it takes."""
        one = self.contenders[arm]
        if self._engines is None or arm not in self._specs:
            make = self.endpoint(one.url)
            at = make()
            yield make, use.listening(at.host, at.port), self.asked
            return
        async with self._engines.running(self._specs[arm], f"trial-{LETTERS[arm].lower()}") as engine:
            yield (
                self.endpoint(engine.url),
                engine.pid,
                replace(self.asked, model=engine.served_name, api_key=engine.api_key),
            )


def contenders(written: Sequence[str], engine: str, model: str) -> list[Contender]:
    """What A, B and C name. Raises SettingError."""
    found = [_contender(place, text, engine, model) for place, text in enumerate(written)]
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise SettingError("A B C", f"{', '.join(names)}: two have one name", hint="write NAME=WHAT")
    return found


def _contender(place: int, text: str, engine: str, model: str) -> Contender:
    before, equals, after = text.partition("=")
    named = bool(equals) and before.replace("-", "").replace("_", "").replace(".", "").isalnum()
    name, what = (before, after) if named else (LETTERS[place], text)
    if what.startswith(("http://", "https://")):
        return Contender(name, probe.base_url(what), url=what)
    if what.startswith(PRESET):
        preset = what.removeprefix(PRESET)
        if engine != "vllm":
            raise SettingError(what, "presets are vLLM's", hint=f"give a file with the options of {engine}")
        settings = pool_of(engine, model, {"preset": preset})
        return Contender(name if named else preset, f"{engine} with {model}, preset {preset}", settings=settings)
    file = Path(what)
    if not file.is_file():
        raise SettingError(what, "is neither a URL, nor preset:NAME, nor a settings file of one engine")
    settings = one_engine(file)
    pool = settings.pool[0]
    told = ", ".join(f"{key} {value}" for key, value in sorted(pool.options.items())) or "its own options"
    return Contender(name if named else file.stem, f"{pool.engine} with {pool.model}: {told}", settings=settings)


def compare(  # noqa: PLR0917 - typer reads options from the signature
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A B [C]", help="Each a URL, a settings file of one engine, or preset:NAME; NAME=… gives it a name."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="Of preset:NAME.")] = "vllm",
    model: Annotated[str, typer.Option(help="Of preset:NAME; of URLs, else the first that the server lists.")] = "",
    preset_table: Annotated[
        bool, typer.Option("--preset-table", help="Compare default, balanced and extreme; a short Markdown table.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Turns of each; two or more give intervals.")] = 5,
    rate: options.Rate = None,
    arrivals_: options.How = "poisson",
    trace_: options.Trace = None,
    speed: options.Speed = 1.0,
    concurrency: options.Concurrency = None,
    seconds: options.Seconds = None,
    requests: options.Requests = None,
    warmup: options.Warmup = 2.0,
    workload_: options.WorkloadName = "reference",
    input_: options.Input = "",
    output: options.Output = "",
    shared_prefix: options.SharedPrefix = "",
    class_: options.Classes = None,
    completions: options.Completions = False,
    stream: options.Stream = True,
    ignore_eos: options.IgnoreEos = False,
    extra: options.Extra = "",
    api_key_file: options.Key = None,
    ca_file: options.Authorities = None,
    insecure: options.Insecure = False,
    slo: options.Bounds = "",
    over: options.Over = 1.0,
    timeout: options.Timeout = 120.0,
    max_in_flight: options.MostInFlight = 10_000,
    count_events: options.CountEvents = False,
    seed: options.Seed = 1,
    json_: options.Json = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
) -> None:
    """Send the same requests to two or three servers in turn, A B B A A B, and tell who does better and how surely.

    A settings file says one [[pool]], which is started for each of its turns. Give one of --rate, --trace and
    --concurrency. Exit code 1 when nothing could be compared, 130 when it was interrupted.
    """
    if preset_table and what:
        raise SettingError("--preset-table", "says itself what is compared", hint="leave out A and B")
    written = [f"{PRESET}{name}" for name in REFERENCE_PRESETS] if preset_table else what or []
    if not 2 <= len(written) <= len(LETTERS):
        raise OperatorError("say what to compare: A B, or A B C", hint="tidegate bench compare --help")
    compared = contenders(written, engine, model)
    replayed = trace.load(trace_, speed) if trace_ is not None else trace.Trace([], [])
    coming = Coming(
        arrivals=arrivals.parse(arrivals_),
        rate=rate,
        trace=tuple(replayed.arrivals),
        users=concurrency,
        seconds=30.0 if seconds is None and requests is None and not replayed.arrivals else seconds,
        requests=requests,
        warmup_s=warmup,
    )
    check(coming)
    writable(json_, markdown, html)
    asked = asked_for(
        workload_, input_, output, model, workload.COMPLETIONS if completions else workload.CHAT, stream=stream,
        api_key=read_key(api_key_file), extra=extra_fields(extra, ignore_eos=ignore_eos), classes=workload.classes(class_ or ()),
        prefix=workload.Prefix.parse(shared_prefix) if shared_prefix else None,
    )  # fmt: skip
    bounds = Slo.parse(slo) if slo else None
    for one in compared:
        if one.url:
            where(one.url, ca_file, insecure=insecure)  # a wrong address is told before anything is started
    watch = use.gpus()
    job = partial(
        Job, coming=coming, slo=bounds, bound_s=over, timeout_s=timeout, most_in_flight=room(max_in_flight),
        count_events=count_events, gpus=watch.gpus if watch is not None else None,
    )  # fmt: skip
    before = os.getloadavg()[0]
    going = Turns(
        compared,
        asked,
        lambda url: where(url, ca_file, insecure=insecure and url.startswith("https")),
        job,
        seed,
        timeout,
    )
    found = uvloop.run(going.run(rounds))
    if watch is not None:
        watch.end()
    arms = [
        Arm(one.name, one.what, runs, str(going.faults.get(place, "")), getattr(going.faults.get(place), "no_memory", False))
        for place, (one, runs) in enumerate(zip(compared, found, strict=True))
    ]  # fmt: skip
    comparison = Comparison(
        tidegate=__version__,
        command=shlex.join(["tidegate", "bench", *sys.argv[2:]]),
        date=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=this_machine(before),
        load=how_requests_come(coming, arrivals_),
        workload=asked.words,
        slo=str(bounds or ""),
        rounds=rounds,
        partial=going.stopped,
        arms=arms,
        verdicts=verdicts(arms),
        notes=[*replayed.notes, *going.notes],
    )
    print(comparison_text.preset_table(comparison) if preset_table else comparison_text.table(comparison), end="")
    if preset_table:
        print("\n".join(["", *comparison_text.sentences(comparison)]))
    write(json_, msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n")
    write(markdown, comparison_text.markdown(comparison).encode())
    write(html, comparison_text.page(comparison).encode())
    if going.stopped:
        raise typer.Exit(130)  # 128 + SIGINT, as shells say it
    if sum(any(one and one.answered for one in arm.runs) for arm in arms) < 2:
        raise typer.Exit(1)
