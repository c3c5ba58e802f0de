"""`tidegate doctor`: look for faults, each with what to do. Exit code 1 if there is a problem."""

import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidegate.cli.admin import ask
from tidegate.cli.own_store import OwnStore
from tidegate.config import Settings, explain, find_file, hub_environment
from tidegate.control.doctor import (
    Finding,
    Level,
    classes,
    disk,
    faults_gpu,
    faults_logs,
    faults_model,
    faults_settings,
    faults_system,
    folder,
    gpu,
    hub,
    listeners,
    machine,
    models,
    reading,
)
from tidegate.control.doctor.findings import note, ok, problem
from tidegate.control.report import schedule, weekly
from tidegate.control.state import read_admin
from tidegate.control.steering import Top
from tidegate.engines import environments, model_facts
from tidegate.engines.llamacpp_fit import Machine
from tidegate.errors import OperatorError
from tidegate.home import Home, find_home
from tidegate.models import catalogue, library
from tidegate.models.hubs import hubs_for

app = typer.Typer(add_completion=False)

MOST_READ_CHARS = 4 << 20
"""Of a file that is read; what starts an engine is shorter."""
SIGNS = {Level.OK: "ok     ", Level.NOTE: "note   ", Level.PROBLEM: "PROBLEM"}


@app.command()
def doctor(
    read: Annotated[
        Path | None,
        typer.Option(help="Look at this instead: a file that starts vLLM (compose, script …), or an engine's log."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Look at this machine, the data folder and the network; says what to do about whatever it finds."""
    found = []
    for finding in findings() if read is None else reading.check(_text(read), read.name):
        found.append(finding)
        if not as_json:
            print("\n".join(_lines(finding)), flush=True)
    problems = sum(finding.level is Level.PROBLEM for finding in found)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print(f"\n{problems or 'No'} problem{'' if problems == 1 else 's'} found.")
    sys.exit(1 if problems else 0)


def _text(file: Path) -> str:
    try:
        if str(file) == "-":
            return sys.stdin.read(MOST_READ_CHARS)
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(MOST_READ_CHARS)
    except OSError as error:
        raise OperatorError(f"{file} cannot be read: {error.strerror}") from None


def findings() -> Iterator[Finding]:
    """Every finding, as it comes: hubs and disk, which take seconds, last. A mistake in the settings is a finding too."""
    try:
        explained = explain(find_file(None, find_home().path))
        settings = explained.settings
        yield ok("settings", f"valid ({explained.file or 'the defaults, no file'})")
    except OperatorError as error:
        settings = Settings()
        yield problem("settings", str(error), error.hint or "`tidegate check-config` explains them")
    home = find_home(settings.store.home)
    with ThreadPoolExecutor(1) as pool:
        try:
            answers = pool.submit(hub.gather, hubs_for(hub_environment()))
        except OperatorError as error:
            answers = None
            yield problem("hub", str(error), error.hint)
        facts = machine.gather()
        yield from machine.check(facts, settings.gateway.max_connections)
        cards = gpu.gather()
        yield from gpu.check(cards)
        state = folder.gather(home)
        yield from folder.check(state)
        yield from _engines(settings, home, cards, state.ours)
        yield from listeners.check(
            listeners.gather({f"{name}.listen": at for name, at in settings.listeners().items()}), state.ours
        )
        yield from _classes(settings, home)
        yield from _calibration(home)
        known = models.gather(home.models)
        yield from models.check(known, Machine(facts.cores, facts.available_bytes), running=bool(state.alive))
        compute = min((card.compute for card in cards.usable if card.compute), default=None)
        for stored in library.stored(home.models):
            if stored.variant == library.SAFETENSORS:
                yield from faults_model.check(faults_model.gather(stored.path), compute=compute)
        has_model = any(not model.fault for model in known)
        yield from disk.check(disk.gather(home.models), has_model=has_model)
        if answers is not None:
            yield from hub.check(answers.result(), has_model=has_model)


def _engines(settings: Settings, home: Home, cards: gpu.GpuFacts, ours: frozenset[int]) -> Iterator[Finding]:
    """What keeps vLLM from this machine, and what the engines' logs say."""
    kinds = {one.made.kind for one in environments.installed(home.engines)}
    usable = cards.usable
    yield from faults_gpu.check(
        usable,
        cards.driver,
        faults_gpu.gather(usable),
        ours=ours,
        installed="cuda" in kinds,
        model=model_facts.from_config(model_facts.ERNIE_CONFIG, name=catalogue.ERNIE.name),
    )
    wanted = bool(kinds) or any(pool.engine == "vllm" for pool in settings.pool)
    yield from faults_system.check(faults_system.gather(), vllm=wanted, gpu=bool(usable))
    yield from faults_settings.check(settings.pool)
    yield from faults_logs.check(faults_logs.gather(home.logs))


def _classes(settings: Settings, home: Home) -> Iterator[Finding]:
    try:
        with OwnStore(settings, home) as store:
            keys = store.keys().views
    except OperatorError as error:
        keys = ()
        yield problem("store", str(error), error.hint)
    floors = [classes.gather(home.logs / "access.log"), _reported(home)]
    yield from classes.check(settings, keys, min((one for one in floors if one is not None), default=None))


def _calibration(home: Home) -> Iterator[Finding]:
    try:
        done = weekly.last_done(home)
    except OSError as error:
        yield problem("reports", f"{home.reports} cannot be read: {error.strerror}", "give it to the user of Tidegate")
        return
    if done is not None and schedule.proposed(done, time.time()):
        yield note("calibration", "a new one is proposed", weekly.CALIBRATE)


def _reported(home: Home) -> float | None:
    """What the gateways of a control that runs here say of first tokens; None where nobody says anything."""
    address = read_admin(home)
    if address is None:
        return None
    try:
        top = msgspec.json.decode(ask(address, "GET", "/admin/v1/top"), type=Top)
    except (OperatorError, msgspec.DecodeError):  # what it is that does not answer, `processes` tells
        return None
    return classes.floor_reported(top.sums.classes)


def _lines(finding: Finding) -> Iterable[str]:
    yield f"{SIGNS[finding.level]}  {finding.subject:<11}  {finding.text}"
    if finding.advice:
        yield f"{'':<22}-> {finding.advice}"
