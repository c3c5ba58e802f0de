"""`tidegate bench`: load against any OpenAI server, and what it shows."""

import asyncio
import datetime as dt
import os
import shlex
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
import uvloop

from tidegate import __version__
from tidegate.bench import arrivals, lengths, page, probe, summary, text, trace, use, workload
from tidegate.bench.knee import knee
from tidegate.bench.prompts import Sizes
from tidegate.bench.results import Report
from tidegate.bench.running import Coming, Job, Runs
from tidegate.bench.slo import Slo
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
from tidegate.http import Endpoint

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Load against any OpenAI server."
)

PROGRESS_S: Final = 0.5


@app.callback()
def bench() -> None:
    """Load against any OpenAI server."""


@app.command()
def run(  # noqa: PLR0917 - typer reads options from the signature
    url: Annotated[str, typer.Argument(help="Of the server: http://HOST:PORT or https://HOST.")],
    rate: Annotated[float | None, typer.Option(min=0.001, help="Requests a second, whatever the answers do.")] = None,
    arrivals_: Annotated[str, typer.Option("--arrivals", help="poisson, steady or bursts:SIZE.")] = "poisson",
    ramp: Annotated[str, typer.Option(help="FROM:TO[:STEPS] requests a second, a run each, to find the knee.")] = "",
    trace_: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="Recorded arrivals: JSON lines, a folder of a gateway's traces, or an access log."
        ),
    ] = None,
    speed: Annotated[float, typer.Option(min=0.001, help="With --trace: how much faster than recorded.")] = 1.0,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=60_000, help="So many requests at once, the next when one ends.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="How long to send; 30 if nothing else ends it.")
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="How many to send.")] = None,
    warmup: Annotated[float, typer.Option(min=0, help="Seconds at the start that are not counted.")] = 0.0,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Runs; two or more give intervals.")] = 1,
    workload_: Annotated[
        str, typer.Option("--workload", help="reference (512 in, 256 out), service (Chinese, short) or short.")
    ] = "reference",
    input_: Annotated[str, typer.Option("--input", help=f"Tokens of a prompt: {lengths.FORMS}.")] = "",
    output: Annotated[str, typer.Option(help="Most tokens of an answer, in the same forms.")] = "",
    shared_prefix: Annotated[
        str, typer.Option(help="SHARE:TOKENS[xCOUNT]: so many prompts begin with one of COUNT texts.")
    ] = "",
    class_: Annotated[
        list[str] | None, typer.Option("--class", help="NAME=SHARE of requests, sent as X-Request-Type; often.")
    ] = None,
    completions: Annotated[bool, typer.Option("--completions", help="Text completions instead of chats.")] = False,
    stream: Annotated[bool, typer.Option(help="Stream answers.")] = True,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Answers as long as asked (vLLM, llama.cpp).")
    ] = False,
    extra: Annotated[str, typer.Option(help="More fields of each request, as a JSON object.")] = "",
    model: Annotated[str, typer.Option(help="Its name; else the first that the server lists.")] = "",
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds the key.")] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="Who signs the certificates of https (PEM); else the system's.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Believe any certificate.")] = False,
    slo: Annotated[str, typer.Option(help="Bounds of a good answer: ttft=500ms,tpot=50ms,latency=3s.")] = "",
    over: Annotated[float, typer.Option(min=0.001, help="Tell the share of answers over so many seconds.")] = 1.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which an answer is given up.")] = 120.0,
    max_in_flight: Annotated[
        int, typer.Option(min=1, max=60_000, help="More at once are not sent, and fail.")
    ] = 10_000,
    count_events: Annotated[
        bool, typer.Option("--count-events", help="Take events for tokens where the server does not count.")
    ] = False,
    pid: Annotated[
        int | None, typer.Option(min=1, help="Process to watch; else whoever listens at a local URL.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 1,
    json_: Annotated[Path | None, typer.Option("--json", help="Write everything there.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table there.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots there.")] = None,
) -> None:
    """Send requests, and tell how they were answered.

    Give one of --rate, --ramp, --trace and --concurrency. Times count from when a request was to be sent. Ctrl-C ends
    the run and tells what there is. Exit code 1 when nothing was answered, 130 when it was interrupted.
    """
    endpoint = where(url, ca_file, insecure=insecure)
    base = endpoint()
    replayed = trace.load(trace_, speed) if trace_ is not None else trace.Trace([], [])
    coming = Coming(
        arrivals=arrivals.parse(arrivals_),
        rate=rate,
        ramp=arrivals.Ramp.parse(ramp) if ramp else None,
        trace=tuple(replayed.arrivals),
        users=concurrency,
        seconds=30.0 if seconds is None and requests is None and not replayed.arrivals else seconds,
        requests=requests,
        repeats=repeats,
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
    runs, name, notes = uvloop.run(_measure(base, asked, job, seed, timeout))
    if watch is not None:
        watch.end()
    done = runs.done
    report = Report(
        tidegate=__version__,
        command=shlex.join(["tidegate", "bench", *sys.argv[2:]]),
        date=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=this_machine(before),
        url=base.url,
        model=name,
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
        notes=replayed.notes + notes,
    )
    print(text.table(report), end="")
    _write(json_, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    _write(markdown, text.markdown(report).encode())
    _write(html, page.page(report).encode())
    if runs.stopped:
        raise typer.Exit(130)  # 128 + SIGINT, as shells say it
    if not any(one.answered for one in done):
        raise typer.Exit(1)


async def _measure(
    endpoint: Endpoint, asked: Asked, job: "partial[Job]", seed: int, timeout_s: float
) -> tuple[Runs, str, list[str]]:
    """The runs, the model's name, and what is to be noted of the prompts."""
    notes: list[str] = []
    try:
        name = asked.model or await probe.model_name(endpoint, asked.api_key, timeout_s)
        wire = workload.Wire(
            endpoint.host_header, name, asked.path, stream=asked.stream, api_key=asked.api_key, extra=asked.extra
        )
        sizes = await probe.sizes(endpoint, wire, timeout_s)
        if sizes is None:
            sizes = Sizes()
            notes.append(
                f"The server's counts of tokens tell nothing of prompts: these are made of {sizes.per_character:g} a character."
            )
    finally:
        for connection in list(endpoint.connections):
            connection.abort()
        await asyncio.sleep(0)  # sockets close in the turn after

    def drawn(number: int) -> workload.Workload:
        return workload.Workload(
            wire,
            prompt=asked.prompt,
            output=asked.output,
            sizes=sizes,
            classes=asked.classes,
            prefix=asked.prefix,
            seed=seed + number,
        )

    runs = Runs(job(workload=drawn))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, runs.stop)
    loop.add_signal_handler(signal.SIGTERM, runs.stop)
    telling = loop.create_task(_progress(runs)) if sys.stderr.isatty() else None
    try:
        await runs.run()
    finally:
        if telling is not None:
            telling.cancel()
            sys.stderr.write("\r\x1b[K")
    return runs, name, notes


async def _progress(runs: Runs) -> None:
    """One line, for as long as it runs."""
    before, at = 0, 0.0
    while True:
        await asyncio.sleep(PROGRESS_S)
        driver = runs.driver
        if driver is None:
            before, at = 0, 0.0
            continue
        loop_s = driver.elapsed_s
        answered = driver.kinds[""]
        pace = (answered - before) / max(loop_s - at, 1e-9)
        before, at = answered, loop_s
        failed = sum(driver.kinds.values()) - answered
        sys.stderr.write(
            f"\r\x1b[K{runs.name}: {loop_s:.0f} s, {driver.sent:,} sent, {driver.in_flight:,} on their way, "
            f"{answered:,} answered ({pace:,.0f}/s), {failed:,} failed"
        )
        sys.stderr.flush()


def _write(file: Path | None, content: bytes) -> None:
    if file is None:
        return
    try:
        file.write_bytes(content)
    except OSError as error:
        print(f"tidegate: {file} cannot be written: {error.strerror}", file=sys.stderr)
