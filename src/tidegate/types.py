"""What crosses a border between processes or packages: immutable, typed, and encodable by msgspec.

Units are in the names (`_s`, `_bytes`, `_tokens`). Times that cross processes are CLOCK_REALTIME seconds.
"""

from enum import StrEnum
from typing import Final

import msgspec


class DialectName(StrEnum):
    """How an engine is spoken to (see `tidegate.dialects`)."""

    VLLM = "vllm"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"


class ReplicaState(StrEnum):
    """Where a replica is in its life. Only `READY` is asked; `DRAINING` finishes what it has."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STUCK = "stuck"
    FAILED = "failed"
    STOPPED = "stopped"


class Outcome(StrEnum):
    """How a permit ends, exactly once."""

    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


BUILT_IN_CLASSES: Final = ("interactive", "standard", "batch", "long")
"""How urgent a request can be, where nobody has set up classes of their own."""


class ProcessId(msgspec.Struct, frozen=True):
    """A process that cannot be confused with a later one of the same pid."""

    pid: int
    started: int
    """Start time in clock ticks after boot (field 22 of /proc/PID/stat)."""


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Defaults put into a request that does not say otherwise; None leaves the engine's own default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None


class ModelView(msgspec.Struct, frozen=True):
    """A model as clients know it."""

    name: str
    aliases: tuple[str, ...] = ()
    defaults: Sampling = Sampling()
    context_tokens: int | None = None
    """Largest prompt plus answer, if known."""


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica as a gateway sees it."""

    id: str
    """`POOL-N`."""
    pool: str
    model: str
    """Name of its `ModelView`."""
    url: str
    """`http://HOST:PORT`, no path."""
    dialect: DialectName
    state: ReplicaState
    version: str = ""
    """Digest of weights, quantisation and template; equal versions may continue each other's answers."""
    served_name: str = ""
    """The model name this engine wants in a request; empty leaves the client's."""
    api_key: str = ""
    """The engine's own key, sent as a bearer token."""
    slots: int | None = None
    """Sequences it runs at once, if known."""
    context_tokens: int | None = None
    """Tokens of one request, if known."""
    embeddings: bool = False
    """Whether it answers /v1/embeddings."""
    tools: bool | None = None
    """Whether its chat template knows tools, if known."""
    continues: bool = True
    """Whether it goes on with a half-written answer as it would have gone on with its own."""
    pid: int | None = None
    """Its process, if that runs on this machine: CPU time is a sign of life."""
    priorities: bool = False
    """Whether it may be told how urgent a request is (vLLM's header X-Vllm-Priority)."""


class Load(msgspec.Struct, frozen=True):
    """What an engine says of itself at one moment. What it does not say is None; totals count from its start."""

    running: int | None = None
    """Sequences being computed."""
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache in use, 0..1."""
    prompt_tokens_total: int | None = None
    generation_tokens_total: int | None = None
    iterations_total: int | None = None
    preemptions_total: int | None = None
    kv_tokens: int | None = None
    """Tokens that the KV cache holds."""
    slots: int | None = None
    """Sequences it computes at once at most, if it says so."""
    prefill_s_total: float | None = None
    """Seconds spent on prompts."""
    started_at_s: float | None = None
    """Unix time of the start of its process."""


class KeyView(msgspec.Struct, frozen=True):
    """A key as a gateway knows it: never the key itself."""

    digest: str
    """SHA-256 of the key, hex."""
    name: str
    tenant: str
    service: bool = False
    """Service keys may act for other tenants and users."""
    expires_at_s: float | None = None
    models: tuple[str, ...] = ()
    """Models it may ask for, by their names; empty means all."""
    classes: tuple[str, ...] = ()
    """Classes it may ask for; empty means the built-in ones."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    """Prompt and completion together, by UTC day."""
    concurrent_streams: int | None = None


class GatewayOptions(msgspec.Struct, frozen=True):
    """The part of the settings that the data path needs; one field for each key of `[gateway]` it uses."""

    max_head_bytes: int = 32 * 1024
    max_headers: int = 100
    max_body_bytes: int = 16 * 1024 * 1024
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 75.0
    connect_timeout_s: float = 5.0
    write_timeout_s: float = 60.0
    """Longest time a client may read nothing while bytes wait for it."""
    max_connections: int = 20_000
    cors_origins: tuple[str, ...] = ()
    metrics_allow: tuple[str, ...] = ()
    """Networks, besides loopback, that may read /metrics."""
    metrics_tenants_max: int = 50
    """Tenants that have metrics of their own; the others are `other`."""
    extra_paths: tuple[str, ...] = ()
    """Engine paths allowed beyond the dialect's list."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, besides loopback and the listen address, that an anonymous listener answers to."""
    allow_anonymous: bool = False
    """Whether others than this machine are answered without a key, where none is required."""
    processes: int = 1
    """Data processes that share what a key may use."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of the proxies that are believed about their clients' addresses."""
    drain_timeout_s: float = 30.0
    stuck_s: float = 30.0
    """How long a replica with work may make no progress of any kind."""
    first_byte_timeout_s: float = 0.0
    stall_timeout_s: float = 60.0
    total_timeout_s: float = 0.0
    keepalive_after_s: float = 0.0
    keep_stream_bytes: int = 1024 * 1024
    keep_total_bytes: int = 64 * 1024 * 1024


class ClassView(msgspec.Struct, frozen=True):
    """A class of requests: how urgent they are, and what they may take of the engines."""

    name: str
    pools: tuple[str, ...] = ()
    """Pools in order of preference, each tried when the one before has no room; none named means all of the model's."""
    weight: float = 4.0
    """Share of the engines against other classes, where all of them have work waiting."""
    max_wait_s: float = 30.0
    """Longest wait in the queue; a longer one that is foreseen is refused at once."""
    first_token_s: float | None = None
    """Target for the first token, beside what its own prompt takes."""
    most_share: float = 1.0
    """Most of the engines' room that it may have at once, 0..1."""
    least_share: float = 0.0
    """What it is given in any case while it has work waiting, 0..1."""
    yields: bool = False
    """Whether it has only the room that the demand of the others leaves, so that they never wait for its long answers."""
    max_tokens: int | None = None
    """Longest answer where the client does not say; None leaves the model's default."""
    max_tokens_most: int | None = None
    """Longest answer that a client may ask for; more is cut to it."""
    first_byte_timeout_s: float | None = None
    """In place of the gateway's; so are the next two."""
    stall_timeout_s: float | None = None
    total_timeout_s: float | None = None
    priority: int = 0
    """What engines are told that take priorities: the lower, the sooner."""


class RuleView(msgspec.Struct, frozen=True):
    """A request that is all of this is of this class. What is None does not matter."""

    klass: str
    request_type: str | None = None
    """Value of the header X-Request-Type."""
    stream: bool | None = None
    tenant: str | None = None
    model: str | None = None
    path: str | None = None
    prompt_tokens_from: int | None = None
    """From so many tokens of the prompt on, estimated from its bytes."""
    max_tokens_from: int | None = None
    """From so many tokens asked for on; a request that does not say asks for none."""
    position: int = 0
    """Of the [[rule]] in the file, from 1; 0 for those that are built in."""


LONG_FROM_TOKENS: Final = 4096
"""Prompts from this size on are `long`, where no rule says otherwise."""

CLASSES: Final = (
    ClassView("interactive", weight=16.0, max_wait_s=0.4, first_token_s=0.5),
    ClassView("standard", weight=4.0, max_wait_s=30.0, priority=1),
    ClassView("batch", weight=1.0, max_wait_s=60.0, least_share=0.05, yields=True, priority=10),
    ClassView("long", weight=1.0, max_wait_s=60.0, least_share=0.05, yields=True, priority=10),
)
"""The classes that are built in; a [[class]] of the same name changes one, another name adds one."""

RULES: Final = (
    RuleView("interactive", request_type="streaming"),
    *(RuleView(one.name, request_type=one.name) for one in CLASSES),
    RuleView("long", prompt_tokens_from=LONG_FROM_TOKENS),
)
"""The rules that come after those of the settings; what none of them matches is `standard`."""


class TenantView(msgspec.Struct, frozen=True):
    """What is set for one tenant."""

    name: str
    weight: float = 1.0
    """Its share of a class against other tenants."""
    max_tokens: int | None = None
    max_tokens_most: int | None = None
    """As for a class; of two that are set the smaller holds."""


class LimitOptions(msgspec.Struct, frozen=True):
    """How much work a replica may have at once."""

    kind: str = "adaptive"
    """`adaptive`, `threshold` or `fixed`."""
    sequences: int | None = None
    """Sequences of a replica at once: the limit itself (`fixed`), where it begins (`threshold`), or its ceiling."""
    kv_share: float = 0.95
    """Most of the KV cache's tokens that requests in flight may add up to, as far as their size is known."""
    token_s: float = 0.5
    """Adaptive: an engine that takes longer for one token of each answer has too many of them."""
    queue_requests: int = 2000
    """Most requests that wait at once in one gateway; more are refused."""
    queue_bytes: int = 64 * 1024 * 1024
    """Most bytes of requests that wait."""
    wait_high_s: float = 0.2
    cache_low: float = 0.7
    raise_by: float = 1.25
    """Threshold: waiting longer than `wait_high_s` while less than `cache_low` of the cache is in use."""
    cache_high: float = 0.85
    wait_low_s: float = 0.1
    lower_by: float = 0.85
    """Threshold: more than `cache_high` in use, and waiting less than `wait_low_s`."""
    every_s: float = 30.0


class LineFileOptions(msgspec.Struct, frozen=True):
    """How a file of lines about requests is kept."""

    enabled: bool = False
    max_bytes: int = 100 * 1024 * 1024
    backups: int = 5


class RedisOptions(msgspec.Struct, frozen=True):
    """Where quotas stand that several gateways share; without a URL each gateway keeps its own."""

    url: str = ""
    password_file: str = ""


class FleetSnapshot(msgspec.Struct, frozen=True):
    """Everything control tells a gateway, whole and numbered; a gateway swaps one for the next in a single step."""

    number: int
    models: tuple[ModelView, ...] = ()
    replicas: tuple[ReplicaView, ...] = ()
    keys: tuple[KeyView, ...] = ()
    keys_required: bool = False
    """False: requests are anonymous and whatever key they carry is ignored."""
    options: GatewayOptions = GatewayOptions()
    access_log: LineFileOptions = LineFileOptions()
    trace: LineFileOptions = LineFileOptions()
    redis: RedisOptions = RedisOptions()
    classes: tuple[ClassView, ...] = CLASSES
    rules: tuple[RuleView, ...] = RULES
    """In order; the first that matches holds."""
    tenants: tuple[TenantView, ...] = ()
    limits: LimitOptions = LimitOptions()
    limits_set: dict[str, int] = {}
    """Limits that an operator has set by hand, by replica: each for all gateways together."""
    draining: bool = False


class ReplicaReport(msgspec.Struct, frozen=True):
    """What a gateway knows of one replica."""

    id: str
    in_flight: int
    requests: int
    failures: int
    reachable: bool
    health: str = ""
    """Why it is not asked (see `tidegate.gateway.health.Failure`); empty while it is."""
    outs: dict[str, int] = {}
    """How often it was taken out, by reason."""
    limit: int | None = None
    """Most requests it may have at once; None while nothing bounds it."""
    by_class: dict[str, int] = {}
    """Requests it has now, by class."""
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """As the engine says itself."""


class ClassReport(msgspec.Struct, frozen=True):
    """What waits in one class of one gateway. Counters count from the gateway's start."""

    name: str
    queued: int = 0
    wait_s: float = 0.0
    """What a request that came now would wait."""
    in_flight: int = 0
    refused: int = 0
    """Requests that were told to come again later."""
    done: int = 0
    tokens: int = 0
    """Of the answers."""
    first_token_s: tuple[float, ...] = ()
    """Times to the first token of the last second, at most 200."""


class GpuReport(msgspec.Struct, frozen=True):
    """A GPU at one moment, as its driver tells; what it does not tell is None."""

    id: str
    """The driver's own, which no other GPU has."""
    name: str = ""
    use: float | None = None
    """Share of the last second in which it computed, 0..1."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None


class UsageCount(msgspec.Struct, frozen=True):
    """What was used since the last report, for one combination of labels."""

    day: str
    """UTC, `YYYY-MM-DD`."""
    tenant: str
    klass: str
    model: str
    outcome: Outcome
    requests: int
    prompt_tokens: int
    completion_tokens: int
    engine_s: float = 0.0
    """Seconds that the requests were with engines, added up."""


class Spread(msgspec.Struct, frozen=True):
    """How the requests of a class spread that ended since the last report: how many there were up to each bound.

    The bounds are `BUCKETS_S` and `BUCKETS_TOKENS` of `tidegate.gateway.metrics`; one count more is of what is above all.
    """

    klass: str
    first_s: tuple[int, ...]
    """To the first byte."""
    duration_s: tuple[int, ...]
    """To the last byte."""
    queue_s: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    answer_tokens: tuple[int, ...]
    refused: int = 0
    """Requests that were told to come again later."""


class DataReport(msgspec.Struct, frozen=True):
    """What a gateway tells control every second. Counters count from the gateway's start."""

    process: ProcessId
    snapshot: int
    """Number of the snapshot it works with."""
    connections: int
    in_flight: int
    requests: dict[str, int]
    """By outcome."""
    replicas: tuple[ReplicaReport, ...]
    usage: tuple[UsageCount, ...] = ()
    spreads: tuple[Spread, ...] = ()
    """Told once, as usage is."""
    gpus: tuple[GpuReport, ...] = ()
    """Of its machine, where no control reads them."""
    classes: tuple[ClassReport, ...] = ()


class Hello(msgspec.Struct, frozen=True):
    """A gateway's first message to control; the listening socket travels with it as ancillary data."""

    process: ProcessId
    listen: str
    """`HOST:PORT` that the socket is bound to."""
    code_version: str
