"""`tidegate bench compare`: servers, or settings of one engine, under the same load in turn.

Only one engine of ours is there at a time: an idle one holds memory and caches that the one under load would have alone in
service, and some spin while they wait. The price is a start for each turn.
"""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
import uvloop

from tidegate import __version__
from tidegate.bench import comparison_text, probe, trace, use
from tidegate.bench.comparing import Comparison, verdicts
from tidegate.bench.results import Run
from tidegate.bench.running import Job
from tidegate.bench.slo import Slo
from tidegate.cli import bench_options as options
from tidegate.cli.bench_asked import (
    NOTHING,
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
from tidegate.cli.trial_engines import TrialEngines, one_engine, pool_of
from tidegate.cli.turns import Rounds, Stoppable
from tidegate.config import Settings
from tidegate.control.plan import ReplicaSpec
from tidegate.errors import OperatorError, SettingError
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
class Contest:
    """Who is compared, and under what."""

    contenders: Sequence[Contender]
    engines: TrialEngines | None
    """None where all run already."""
    asked: Asked
    endpoint: Callable[[str], Callable[[], Endpoint]]
    job: "partial[Job]"
    seed: int
    timeout_s: float
    going: Stoppable = field(default_factory=Stoppable)
    notes: list[str] = field(default_factory=list)
    _specs: dict[int, ReplicaSpec] = field(default_factory=dict)
    _learnt: dict[int, Learnt] = field(default_factory=dict)

    async def run(self, rounds: Rounds) -> None:
        """All turns, or those until it is stopped. Raises OperatorError where a model is not to be had."""
        await self.going.finish(self._run(rounds))

    async def _run(self, rounds: Rounds) -> None:
        for place, one in enumerate(self.contenders):
            if self.engines is not None and one.settings is not None:
                self._specs[place] = await self.engines.spec(one.settings)
        await rounds.take(self._turn, lambda: self.going.stopped)

    async def _turn(self, place: int, number: int) -> Run:
        """The same requests for each contender of a round: they follow from the seed and its number."""
        async with self._reached(place) as (make, pid, asked):
            learnt = self._learnt.get(place)
            if learnt is None:
                learnt = self._learnt[place] = await learn(make(), asked, self.timeout_s)
                self.notes += [note for note in learnt.notes if note not in self.notes]
            seed = self.seed + number
            job = partial(self.job, endpoint=make, pid=pid, seed=seed)
            return await self.going.load(make(), asked, learnt, job, seed)

    @asynccontextmanager
    async def _reached(self, place: int) -> AsyncIterator[tuple[Callable[[], Endpoint], int | None, Asked]]:
        """Where a contender is, its process, and what it is asked; an engine of ours for as long as it takes."""
        if self.engines is None or place not in self._specs:
            make = self.endpoint(self.contenders[place].url)
            at = make()
            yield make, use.listening(at.host, at.port), self.asked
            return
        async with self.engines.running(self._specs[place], f"trial-{LETTERS[place].lower()}") as engine:
            asked = replace(self.asked, model=engine.served_name, api_key=engine.api_key)
            yield self.endpoint(engine.url), engine.pid, asked


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
        if not model:
            raise SettingError(what, "is a preset for some model", hint="name it with --model")
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
    replayed = trace.load(trace_, speed) if trace_ is not None else NOTHING
    coming = coming_of(
        how=arrivals_, rate=rate, replayed=replayed, users=concurrency, seconds=seconds, requests=requests, warmup_s=warmup
    )  # fmt: skip
    writable(json_, markdown, html)
    asked = asked_for(
        workload_, prompt=input_, output=output, model=model, completions=completions, stream=stream, api_key_file=api_key_file,
        extra=extra, ignore_eos=ignore_eos, class_=class_ or (), shared_prefix=shared_prefix,
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
    rounds_ = Rounds([one.name for one in compared], rounds)
    with ExitStack() as stack:
        ours = any(one.settings is not None for one in compared)
        engines = stack.enter_context(TrialEngines.held(data_folder())) if ours else None
        if watch is not None:
            stack.callback(watch.end)
        contest = Contest(
            compared,
            engines,
            asked,
            lambda url: where(url, ca_file, insecure=insecure and url.startswith("https")),
            job,
            seed,
            timeout,
        )
        uvloop.run(contest.run(rounds_))
    arms, stopped = rounds_.arms([one.what for one in compared]), contest.going.stopped
    comparison = Comparison(
        tidegate=__version__,
        command=command_line(),
        date=now(),
        machine=this_machine(before),
        load=how_requests_come(coming, arrivals_),
        workload=asked.words,
        slo=str(bounds or ""),
        rounds=rounds,
        partial=stopped,
        arms=arms,
        verdicts=verdicts(arms),
        notes=[*replayed.notes, *contest.notes],
    )
    print(comparison_text.preset_table(comparison) if preset_table else comparison_text.table(comparison), end="")
    if preset_table:
        print("\n".join(["", *comparison_text.sentences(comparison)]))
    write(json_, msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n")
    write(markdown, comparison_text.markdown(comparison).encode())
    write(html, comparison_text.page(comparison).encode())
    if stopped:
        raise typer.Exit(130)  # 128 + SIGINT, as shells say it
    if sum(any(one and one.answered for one in arm.runs) for arm in arms) < 2:
        raise typer.Exit(1)
