"""What `tidegate bench` was asked for, read and checked, and told again in words."""

import datetime as dt
import platform
import resource
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tidegate import machine
from tidegate.bench import arrivals, lengths, trace, workload
from tidegate.bench.probe import base_url
from tidegate.bench.results import Machine
from tidegate.bench.running import Coming
from tidegate.errors import OperatorError, SettingError
from tidegate.http import Endpoint
from tidegate.http.tls import client_context

WORKLOADS: Final = {
    "reference": ("512", "256", "prose, 512 tokens in and 256 out"),
    "service": (
        None,
        "lognormal:48,0.5,256",
        "short Chinese questions to a customer service, answers of about 48 tokens",
    ),
    "short": ("lognormal:60,0.6,400", "lognormal:60,0.6,400", "prose, about 60 tokens in and 60 out, log-normal"),
}
"""Lengths of prompts (None: the questions that ship) and of answers, and both in words."""
SPARE_FILES: Final = 64
USUAL_S: Final = 30.0
NOTHING: Final = trace.Trace([], [])


def command_line() -> str:
    """The command that this process is."""
    return shlex.join(["tidegate", *sys.argv[1:]])


def now() -> str:
    """To a minute."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")


@dataclass(frozen=True)
class Asked:
    """What the workload is made of, as it was asked for."""

    model: str
    path: str
    stream: bool
    api_key: str
    extra: dict[str, object]
    prompt: lengths.Lengths | None
    output: lengths.Lengths
    classes: dict[str, float]
    prefix: workload.Prefix | None
    words: str


def coming_of(
    *,
    how: str = "poisson",
    rate: float | None = None,
    ramp: str = "",
    replayed: trace.Trace = NOTHING,
    users: int | None = None,
    seconds: float | None = None,
    requests: int | None = None,
    warmup_s: float = 0.0,
    repeats: int = 1,
) -> Coming:
    """How requests come, as it was typed. Raises SettingError, OperatorError."""
    if sum([rate is not None, bool(ramp), bool(replayed.arrivals), users is not None]) != 1:
        raise OperatorError(
            "say how requests come: exactly one of --rate, --ramp, --trace and --concurrency",
            hint="--rate 10 sends ten a second; --concurrency 8 keeps eight on their way",
        )
    if ramp and repeats > 1:
        raise SettingError("--repeats", "a ramp runs each rate once")
    if seconds is None and requests is None and not replayed.arrivals:
        seconds = USUAL_S
    if seconds is not None and warmup_s >= seconds:
        raise SettingError("--warmup", f"{warmup_s:g} s leave nothing of --seconds {seconds:g} to count")
    return Coming(
        arrivals=arrivals.parse(how),
        rate=rate,
        ramp=arrivals.Ramp.parse(ramp) if ramp else None,
        trace=tuple(replayed.arrivals),
        users=users,
        seconds=seconds,
        requests=requests,
        repeats=repeats,
        warmup_s=warmup_s,
    )


def asked_for(
    name: str,
    *,
    prompt: str = "",
    output: str = "",
    model: str = "",
    completions: bool = False,
    stream: bool = True,
    api_key_file: Path | None = None,
    extra: str = "",
    ignore_eos: bool = False,
    class_: Sequence[str] = (),
    shared_prefix: str = "",
) -> Asked:
    """What is asked, as it was typed. Raises SettingError."""
    if name not in WORKLOADS:
        raise SettingError("--workload", f"{name!r} is none of {', '.join(WORKLOADS)}")
    usual_prompt, usual_output, words = WORKLOADS[name]
    if prompt or output:
        words = f"{f'{prompt or usual_prompt} tokens in' if prompt or usual_prompt else 'Chinese questions'}, {output or usual_output} out at most"
    written = prompt or usual_prompt
    prefix = workload.Prefix.parse(shared_prefix) if shared_prefix else None
    classes = workload.classes(class_)
    if prefix is not None:
        words += f", {prefix.share:.0%} with one of {prefix.count} shared prefixes of {prefix.tokens} tokens"
    if classes:
        words += f", classes {', '.join(f'{name} {share:g}' for name, share in classes.items())}"
    words += f"; {'completions' if completions else 'chats'}, {'streamed' if stream else 'not streamed'}"
    return Asked(
        model=model,
        path=workload.COMPLETIONS if completions else workload.CHAT,
        stream=stream,
        api_key=_read_key(api_key_file),
        extra=_extra_fields(extra, ignore_eos=ignore_eos),
        prompt=lengths.parse("--input", written) if written else None,
        output=lengths.parse("--output", output or usual_output),
        classes=classes,
        prefix=prefix,
        words=words,
    )


def how_requests_come(coming: Coming, arrivals_: str) -> str:
    ends = [f"{coming.seconds:g} s"] if coming.seconds is not None else []
    ends += [f"{coming.requests:,} requests"] if coming.requests is not None else []
    if coming.users is not None:
        how = f"closed loop, {coming.users} at once"
    elif coming.trace:
        how = f"a trace of {len(coming.trace):,} requests"
    elif coming.ramp is not None:
        how = f"open loop ({arrivals_}), {coming.ramp.first:g} to {coming.ramp.last:g} requests/s in {coming.ramp.steps} steps"
    else:
        how = f"open loop ({arrivals_}), {coming.rate:g} requests/s"
    return ", ".join([how, *ends, *([f"{coming.repeats} times"] if coming.repeats > 1 else [])])


def _read_key(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        key = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError("--api-key-file", f"{file} cannot be read: {error}") from None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SettingError("--api-key-file", f"{file} does not hold a key on one line")
    return key


def _extra_fields(written: str, *, ignore_eos: bool) -> dict[str, object]:
    fields: dict[str, object] = {"ignore_eos": True} if ignore_eos else {}
    if not written:
        return fields
    try:
        return fields | msgspec.json.decode(written, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise SettingError("--extra", f"is not a JSON object: {error}") from None


def room(wanted: int) -> int:
    """Requests that can be on their way, each with a socket; as many files as the system lets this process open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in {soft, hard}:
        return wanted
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(1, min(wanted, hard - SPARE_FILES))


def writable(*files: Path | None) -> None:
    """Raises SettingError for a file that could not be written in the end, before the load and not after it."""
    for file in files:
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise SettingError("--json, --markdown, --html", f"{file} cannot be written: it is a folder, or has none")


def where(written: str, authorities: Path | None, *, insecure: bool) -> Callable[[], Endpoint]:
    """Makes endpoints for the server that was typed. Raises SettingError."""
    url = base_url(written)
    if url.startswith("https:"):
        if authorities is not None and insecure:
            raise SettingError("--insecure", "believes anybody; then --ca-file is for nothing")
        return partial(Endpoint, url, tls=client_context("--ca-file", authorities, verify=not insecure))
    if authorities is not None or insecure:
        raise SettingError("--ca-file, --insecure", f"are for https, and {url} is not")
    return partial(Endpoint, url)


def this_machine(load: float) -> Machine:
    return Machine(
        processor=_processor(),
        cores=machine.cores(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        load=load,
    )


def _processor(cpuinfo: Path = machine.CPUINFO) -> str:
    try:
        lines: Sequence[str] = cpuinfo.read_text("ascii", "replace").splitlines()
    except OSError:
        lines = ()
    named = next((line for line in lines if line.startswith("model name")), "")
    return named.partition(":")[2].strip() or platform.machine()
