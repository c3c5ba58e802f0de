"""What runs have shown: the document that `--json` writes. Times in seconds, from when a request was to be sent."""

import msgspec

from tidegate.bench.figures import Interval, Spread
from tidegate.bench.knee import Knee


class Use(msgspec.Struct, frozen=True):
    """What the server's processes and the machine's GPUs used meanwhile; None where that was not to be seen."""

    pid: int | None = None
    most_resident_bytes: int | None = None
    mean_cores: float | None = None
    gpus: dict[str, float] = {}
    """Mean share of the time that it was busy, by name and id."""
    gpu_memory_bytes: dict[str, int] = {}
    """The most that was used of it."""


class Second(msgspec.Struct, frozen=True):
    """One step of the time line; answers and failures by when they ended."""

    at_s: float
    sent_per_s: float
    answered_per_s: float
    failed_per_s: float
    p50_s: float | None
    p99_s: float | None


class Part(msgspec.Struct, frozen=True):
    """The answers of one class."""

    requests: int
    answered: int
    queries_per_s: float
    latency_s: Spread | None
    first_token_s: Spread | None
    within_slo: float | None


class Run(msgspec.Struct, frozen=True):
    """One run. Shares are of the requests that were measured."""

    name: str
    offered_per_s: float | None
    """None in a closed loop."""
    partial: bool
    """Whether it was interrupted."""
    requests: int
    answered: int
    failed: dict[str, int]
    """By kind."""
    explained: dict[str, str]
    """What the first of a kind said."""
    unfinished: int
    seconds: float
    """From the first request to the end of the last answer."""
    sending_s: float
    """From when the first request was to be sent to the last one."""
    queries_per_s: float
    latency_s: Spread | None
    first_token_s: Spread | None
    per_output_token_s: Spread | None
    inter_token_s: Spread | None
    over_bound: float
    """Share of the answers that took longer than `Report.bound_s`."""
    prompt_tokens: int
    output_tokens: int
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    within_slo: float | None
    """Share of all requests, the failed ones too."""
    goodput_per_s: float | None
    sent_late_s: Spread | None
    """How late the load generator itself sent; where it is not small, the figures are its own and not the server's."""
    most_in_flight: int
    classes: dict[str, Part]
    time_line: list[Second]
    curves: dict[str, list[float]]
    """Quantiles 0, 1, …, 100 of latency, first token and time per output token."""
    use: Use


class Machine(msgspec.Struct, frozen=True):
    """Where the load came from."""

    processor: str
    cores: int
    system: str
    python: str
    load: float
    """Of the last minute, before the first run."""


class Report(msgspec.Struct, frozen=True):
    """All runs of one command."""

    tidegate: str
    command: str
    date: str
    machine: Machine
    url: str
    model: str
    load: str
    """How requests come, in words."""
    workload: str
    """What is asked, in words."""
    slo: str
    bound_s: float
    partial: bool
    runs: list[Run]
    intervals: dict[str, dict[str, Interval]] = {}
    """By the name of runs that were repeated, and by figure: over the repeats, 95 %."""
    knee: Knee | None = None
    notes: list[str] = []
