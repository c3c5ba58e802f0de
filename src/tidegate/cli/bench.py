"""`tidegate bench`: load against any OpenAI server, and what it shows."""

import os
from functools import partial
from typing import Annotated

import msgspec
import typer
import uvloop

from tidegate import __version__
from tidegate.bench import page, summary, text, trace, use
from tidegate.bench.knee import knee
from tidegate.bench.results import Report
from tidegate.bench.running import Job, Runs
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
from tidegate.cli.bench_compare import compare
from tidegate.cli.bench_load import Learnt, learn, measure, stopped_by_signals, write
from tidegate.http import Endpoint

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Load against any OpenAI server."
)


app.command()(compare)


@app.callback()
def bench() -> None:
    """Load against any OpenAI server."""


@app.command()
def run(  # noqa: PLR0917 - typer reads options from the signature
    url: Annotated[str, typer.Argument(help="Of the server: http://HOST:PORT or https://HOST.")],
    rate: options.Rate = None,
    arrivals_: options.How = "poisson",
    ramp: Annotated[str, typer.Option(help="FROM:TO[:STEPS] requests a second, a run each, to find the knee.")] = "",
    trace_: options.Trace = None,
    speed: options.Speed = 1.0,
    concurrency: options.Concurrency = None,
    seconds: options.Seconds = None,
    requests: options.Requests = None,
    warmup: options.Warmup = 0.0,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Runs; two or more give intervals.")] = 1,
    workload_: options.WorkloadName = "reference",
    input_: options.Input = "",
    output: options.Output = "",
    shared_prefix: options.SharedPrefix = "",
    class_: options.Classes = None,
    completions: options.Completions = False,
    stream: options.Stream = True,
    ignore_eos: options.IgnoreEos = False,
    extra: options.Extra = "",
    model: Annotated[str, typer.Option(help="Its name; else the first that the server lists.")] = "",
    api_key_file: options.Key = None,
    ca_file: options.Authorities = None,
    insecure: options.Insecure = False,
    slo: options.Bounds = "",
    over: options.Over = 1.0,
    timeout: options.Timeout = 120.0,
    max_in_flight: options.MostInFlight = 10_000,
    count_events: options.CountEvents = False,
    pid: Annotated[
        int | None, typer.Option(min=1, help="Process to watch; else whoever listens at a local URL.")
    ] = None,
    seed: options.Seed = 1,
    json_: options.Json = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
) -> None:
    """Send requests, and tell how they were answered.

    Give one of --rate, --ramp, --trace and --concurrency. Times count from when a request was to be sent. Ctrl-C ends
    the run and tells what there is. Exit code 1 when nothing was answered, 130 when it was interrupted.
    """
    endpoint = where(url, ca_file, insecure=insecure)
    base = endpoint()
    replayed = trace.load(trace_, speed) if trace_ is not None else NOTHING
    coming = coming_of(
        how=arrivals_, rate=rate, ramp=ramp, replayed=replayed, users=concurrency, seconds=seconds, requests=requests,
        warmup_s=warmup, repeats=repeats,
    )  # fmt: skip
    writable(json_, markdown, html)
    asked = asked_for(
        workload_, prompt=input_, output=output, model=model, completions=completions, stream=stream, api_key_file=api_key_file,
        extra=extra, ignore_eos=ignore_eos, class_=class_ or (), shared_prefix=shared_prefix,
    )  # fmt: skip
    bounds = Slo.parse(slo) if slo else None
    most = room(max_in_flight)
    watch = use.gpus()
    job = partial(
        Job,
        endpoint=endpoint,
        coming=coming,
        seed=seed,
        slo=bounds,
        bound_s=over,
        timeout_s=timeout,
        most_in_flight=most,
        count_events=count_events,
        pid=pid if pid is not None else use.listening(base.host, base.port),
        gpus=watch.gpus if watch is not None else None,
    )
    before = os.getloadavg()[0]
    runs, learnt = uvloop.run(_measure(base, asked, job, seed, timeout))
    if watch is not None:
        watch.end()
    done = runs.done
    report = Report(
        tidegate=__version__,
        command=command_line(),
        date=now(),
        machine=this_machine(before),
        url=base.url,
        model=learnt.model,
        load=how_requests_come(coming, arrivals_),
        workload=asked.words,
        slo=str(bounds or ""),
        bound_s=over,
        partial=runs.stopped,
        runs=done,
        intervals=summary.intervals(done),
        knee=knee([summary.step(one) for one in done if not one.partial])
        if coming.ramp is not None and any(not one.partial for one in done)
        else None,
        notes=[*replayed.notes, *learnt.notes],
    )
    print(text.table(report), end="")
    write(json_, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    write(markdown, text.markdown(report).encode())
    write(html, page.page(report).encode())
    if runs.stopped:
        raise typer.Exit(130)  # 128 + SIGINT, as shells say it
    if not any(one.answered for one in done):
        raise typer.Exit(1)


async def _measure(
    endpoint: Endpoint, asked: Asked, job: "partial[Job]", seed: int, timeout_s: float
) -> tuple[Runs, Learnt]:
    learnt = await learn(endpoint, asked, timeout_s)
    return await measure(endpoint, asked, learnt, job, seed, begun=stopped_by_signals), learnt
