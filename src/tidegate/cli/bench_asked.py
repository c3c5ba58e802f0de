"""What `tidegate bench` was asked for, read and checked, and told again in words."""

import platform
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tidegate import machine
from tidegate.bench import lengths, workload
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


def check(coming: Coming) -> None:
    given = [coming.rate is not None, coming.ramp is not None, bool(coming.trace), coming.users is not None]
    if sum(given) != 1:
        raise OperatorError(
            "say how requests come: exactly one of --rate, --ramp, --trace and --concurrency",
            hint="--rate 10 sends ten a second; --concurrency 8 keeps eight on their way",
        )
    if coming.ramp is not None and coming.repeats > 1:
        raise SettingError("--repeats", "a ramp runs each rate once")
    if coming.seconds is not None and coming.warmup_s >= coming.seconds:
        raise SettingError("--warmup", f"{coming.warmup_s:g} s leave nothing of --seconds {coming.seconds:g} to count")


def asked_for(
    name: str,
    prompt: str,
    output: str,
    model: str,
    path: str,
    *,
    stream: bool,
    api_key: str,
    extra: dict[str, object],
    classes: dict[str, float],
    prefix: workload.Prefix | None,
) -> Asked:
    if name not in WORKLOADS:
        raise SettingError("--workload", f"{name!r} is none of {', '.join(WORKLOADS)}")
    usual_prompt, usual_output, words = WORKLOADS[name]
    if prompt or output:
        words = f"{f'{prompt or usual_prompt} tokens in' if prompt or usual_prompt else 'Chinese questions'}, {output or usual_output} out at most"
    written = prompt or usual_prompt
    if prefix is not None:
        words += f", {prefix.share:.0%} with one of {prefix.count} shared prefixes of {prefix.tokens} tokens"
    if classes:
        words += f", classes {', '.join(f'{name} {share:g}' for name, share in classes.items())}"
    words += f"; {'chats' if path == workload.CHAT else 'completions'}, {'streamed' if stream else 'not streamed'}"
    return Asked(
        model=model,
        path=path,
        stream=stream,
        api_key=api_key,
        extra=extra,
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


def read_key(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        key = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError("--api-key-file", f"{file} cannot be read: {error}") from None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SettingError("--api-key-file", f"{file} does not hold a key on one line")
    return key


def extra_fields(written: str, *, ignore_eos: bool) -> dict[str, object]:
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
