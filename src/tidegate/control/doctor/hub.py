"""The hubs that models come from. That one cannot be reached is information, not a fault: there are other ways."""

import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpx

from tidegate.control.doctor.findings import Finding, note, ok, problem
from tidegate.models import catalogue, hubs

MOST_CLOCK_SKEW_S = 300.0
"""Past it, certificates and signed requests begin to fail."""


@dataclass(frozen=True)
class HubFacts:
    """What is known of one hub."""

    name: str
    base: str
    seconds: float | None = None
    """To its answer; None without one, and `fault` says why."""
    fault: str = ""
    clock_skew_s: float = 0.0
    """Our clock less the hub's."""


def gather(asked: Sequence[hubs.Hub], within_s: float = hubs.ANSWER_WITHIN_S) -> tuple[HubFacts, ...]:
    """Ask all hubs side by side for the reference model; this takes `within_s` at most, even if a name look-up hangs."""
    found: dict[int, HubFacts] = {}
    threads = []
    for position, hub in enumerate(asked):
        thread = threading.Thread(
            target=lambda p=position, h=hub: found.__setitem__(p, _ask(h, within_s)),
            daemon=True,
            name=f"hub-{hub.name}",
        )
        thread.start()
        threads.append(thread)
    deadline = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silent = f"no answer within {within_s:g} s"
    return tuple(found.get(p) or HubFacts(hub.name, hub.base, fault=silent) for p, hub in enumerate(asked))


def check(facts: Sequence[HubFacts], *, has_model: bool) -> Iterable[Finding]:
    """Findings; without a model a hub is wanted, but the demo model comes from the package registry."""
    reached = [fact for fact in facts if fact.seconds is not None]
    for fact in facts:
        if fact.seconds is not None:
            yield ok("hub", f"{fact.name} at {fact.base} answers in {fact.seconds * 1000:.0f} ms")
        else:
            last = not reached and fact is facts[-1]
            yield note(
                "hub", f"{fact.name} at {fact.base}: {fact.fault}", _other_ways(has_model=has_model) if last else ""
            )
    skews = [fact.clock_skew_s for fact in reached]
    if skews and min(map(abs, skews)) > MOST_CLOCK_SKEW_S:
        skew = min(skews, key=abs)
        yield problem(
            "clock",
            f"it is {abs(skew) / 60:.0f} minutes {'ahead of' if skew > 0 else 'behind'} the hub's",
            "set it, or run a time service",
        )


def _other_ways(*, has_model: bool) -> str:
    if has_model:
        return "the model that is here needs none"
    return (
        "`tidegate up` takes the demo model instead; for others set TIDEGATE_HUB or HF_ENDPOINT to a mirror, "
        "HTTPS_PROXY to a proxy, or copy a GGUF file into the models folder"
    )


def _ask(hub: hubs.Hub, within_s: float) -> HubFacts:
    repositories = dict(catalogue.ERNIE.safetensors)
    begun = time.monotonic()
    try:
        with hubs.client(hub, timeout_s=within_s) as http:
            answer = http.get(hub.listing_url(repositories[hub.name]))
    except httpx.HTTPError as error:
        fault = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        return HubFacts(hub.name, hub.base, fault=fault)
    if answer.status_code >= 500:
        return HubFacts(hub.name, hub.base, fault=f"HTTP {answer.status_code}")
    skew = 0.0
    try:
        skew = time.time() - parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        skew = 0.0  # it does not say the time
    return HubFacts(hub.name, hub.base, time.monotonic() - begun, clock_skew_s=skew)
