"""Every setting, once: its type, its default, its bounds, and the docstring that the example file shows as its meaning."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tidegate.config.addresses import Address
from tidegate.config.classes import ClassSettings, LimitsSettings, Policy, RuleSettings, TenantSettings, make_policy
from tidegate.config.fleets import DnsSettings, RayNeeds, RaySettings, ScalingSettings
from tidegate.config.reports import ReportSettings
from tidegate.config.section import EngineUrl, Network, Origin, Section, UrlPath
from tidegate.types import GatewayOptions, LineFileOptions, Sampling


class GatewaySettings(Section):
    """The data port: the OpenAI API that clients use."""

    listen: Address = "127.0.0.1:8000"
    """Address and port; ":8000" listens on every address, which needs a key (or allow_anonymous)."""
    allow_anonymous: bool = False
    """Answer other machines too although there is no key."""
    processes: int = Field(1, ge=1, le=64)
    """Processes that serve the port, for more than one core; limits of the port are shared out among them."""
    tls_cert_file: Path | None = Field(None, examples=["/etc/tidegate/cert.pem"])
    """Certificate chain (PEM); with it the port speaks HTTPS. A path in this file is relative to this file."""
    tls_key_file: Path | None = Field(None, examples=["/etc/tidegate/key.pem"])
    """Private key of the certificate (PEM, no passphrase)."""
    max_head_bytes: int = Field(32 * 1024, ge=1024)
    """Largest request line and headers together; more gets 431."""
    max_headers: int = Field(100, ge=10)
    """Most headers of a request; more gets 431."""
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024)
    """Largest body of a request; more gets 413."""
    head_timeout_s: float = Field(10.0, gt=0)
    """Longest time from the first byte of a request to the end of its head."""
    body_timeout_s: float = Field(60.0, gt=0)
    """Longest time for the whole body of a request."""
    idle_timeout_s: float = Field(75.0, gt=0)
    """How long a connection without a request is kept open."""
    connect_timeout_s: float = Field(5.0, gt=0)
    """Longest time to connect to an engine."""
    write_timeout_s: float = Field(60.0, gt=0)
    """Longest time a client may read nothing while bytes wait for it."""
    max_connections: int = Field(20_000, ge=1)
    """Most connections of clients at once; the limit of open files (ulimit -n) must be higher."""
    cors_origins: tuple[Origin, ...] = ()
    """Web pages' origins that may call the API from a browser, such as "https://app.example"; "*" for all."""
    metrics_allow: tuple[Network, ...] = ()
    """Networks, besides loopback, that may read /metrics, such as "10.0.0.0/8"."""
    metrics_tenants_max: int = Field(50, ge=0)
    """Tenants that have metrics of their own; the others are added up as "other"."""
    extra_paths: tuple[UrlPath, ...] = ()
    """Engine paths allowed beyond those known to be harmless, such as "/v1/score"."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, besides loopback and the listen address, that are answered without a key."""
    trusted_proxies: tuple[Network, ...] = ()
    """Networks of proxies that are believed about their clients' addresses (X-Forwarded-For, Forwarded)."""
    first_byte_timeout_s: float = Field(0.0, ge=0)
    """Longest wait for the first byte of an answer; 0 for no end: a long prompt is not a fault."""
    stall_timeout_s: float = Field(60.0, gt=0)
    """Longest pause within a stream; past it the replica counts as dead for this stream, and another one continues."""
    total_timeout_s: float = Field(0.0, ge=0)
    """Longest time for a whole answer; 0 for no end."""
    keepalive_after_s: float = Field(0.0, ge=0)
    """After how long a wait for its first event a stream is begun with a comment, repeated every second; 0 for never.
    From then on errors come as events."""
    keep_stream_bytes: int = Field(1024 * 1024, ge=0)
    """How much of a stream is kept to be continued if its replica dies; a longer one can then not be continued."""
    keep_total_bytes: int = Field(64 * 1024 * 1024, ge=0)
    """How much of all streams together is kept; past it the largest can no longer be continued."""
    drain_timeout_s: float = Field(30.0, ge=0)
    """How long streams may take to finish at the end; then they are cut."""
    stuck_s: float = Field(30.0, ge=1)
    """How long an engine with work may make no progress of any kind; a long prompt is given longer by itself."""

    def options(self) -> GatewayOptions:
        """The part of this section that the data path is given."""
        return GatewayOptions(**{name: getattr(self, name) for name in GatewayOptions.__struct_fields__})


class AdminSettings(Section):
    """The admin port: status and orders, for those who hold the token in run/admin.json."""

    listen: Address = "127.0.0.1:8001"
    """Address and port."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, besides loopback and the listen address, that it answers to."""


class ChatSettings(Section):
    """The chat page."""

    enabled: bool = True
    """Whether there is one."""
    listen: Address = "127.0.0.1:8080"
    """Address and port."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, besides loopback and the listen address, that it answers to."""
    language: Literal["auto", "en-US", "zh-CN"] = "auto"
    """Language of the page: "en-US", "zh-CN", or "auto" for the browser's."""
    system_prompt: str = ""
    """What the model is told before every conversation."""
    history_tokens: int = Field(1536, ge=64)
    """About how much of a conversation goes with each question; the oldest turns are left out first."""


class StoreSettings(Section):
    """Where state is kept."""

    home: Path | None = Field(None, examples=["/srv/tidegate"])
    """The data folder; TIDEGATE_HOME is short for it. Default: ~/.local/share/tidegate."""
    url: str | None = Field(None, examples=["postgresql://tidegate@db.example/tidegate"])
    """SQLAlchemy URL of the database. Default: SQLite, in state.db in the data folder."""
    password_file: Path | None = Field(None, examples=["/etc/tidegate/db-password"])
    """File that holds the database's password, so that the URL need not."""


class LogSettings(Section):
    """The log on the terminal and in logs/tidegate.log."""

    format: Literal["text", "json"] = "text"
    """"text" ([time] LEVEL event key=value) or "json" (one object a line)."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is told: "debug", "info", "warning" or "error"."""
    max_bytes: int = Field(20 * 1024 * 1024, ge=64 * 1024)
    """Size at which the file is put aside and a new one begun."""
    backups: int = Field(5, ge=0)
    """How many of the files put aside are kept."""
    access: bool = True
    """Whether logs/access.log gets a line for each request: who, what, how long, how many tokens; never content."""
    access_max_bytes: int = Field(100 * 1024 * 1024, ge=64 * 1024)
    """Size at which the access log is put aside and a new one begun."""
    access_backups: int = Field(5, ge=0)
    """How many access logs put aside are kept."""
    trace: bool = False
    """Whether traces/trace.jsonl gets a line for each request: when it came, class, tokens, outcome; nothing of who or
    what. `tidegate bench run --trace` sends such load again. docs/bench.md explains."""
    trace_max_bytes: int = Field(20 * 1024 * 1024, ge=64 * 1024)
    """Size at which the trace is put aside and a new one begun; so it is every day (UTC), too."""
    trace_backups: int = Field(30, ge=0)
    """How many traces put aside are kept."""

    def access_log(self) -> LineFileOptions:
        """What gateways are told about the access log."""
        return LineFileOptions(self.access, self.access_max_bytes, self.access_backups)

    def traced(self) -> LineFileOptions:
        """What gateways are told about the trace."""
        return LineFileOptions(self.trace, self.trace_max_bytes, self.trace_backups)


class SamplingSettings(Section):
    """Put into requests that do not say otherwise; what is not given here is the engine's own default."""

    max_tokens: int | None = Field(None, ge=1, examples=[512])
    """Longest answer."""
    temperature: float | None = Field(None, ge=0, le=2, examples=[0.7])
    """0 always takes the likeliest token."""
    top_p: float | None = Field(None, gt=0, le=1, examples=[0.9])
    """Take from the likeliest tokens that together have this probability."""
    top_k: int | None = Field(None, ge=0, examples=[40])
    """Take from this many of the likeliest tokens."""
    repetition_penalty: float | None = Field(None, gt=0, examples=[1.05])
    """Above 1, tokens that were used already become less likely."""

    def sampling(self) -> Sampling:
        return Sampling(**self.model_dump())


class ModelSettings(Section):
    """A name clients ask for, and where its files come from. Without any [[model]], the best one to be had is served."""

    name: str = Field(min_length=1, examples=["ernie-4.5-0.3b"])
    """The name."""
    aliases: tuple[str, ...] = ()
    """Other names for it."""
    source: str = "auto"
    """"auto", "demo", a name of the catalogue (`tidegate models list`), "ORG/NAME" on a hub, or a path."""
    quantisation: Literal["auto", "Q8_0", "Q4_0", "BF16"] = "auto"
    """Precision of the weights: "Q8_0", "Q4_0", "BF16", or "auto" for the best that this machine runs well."""
    defaults: SamplingSettings = Field(default_factory=SamplingSettings)


class LlamaCppOptions(Section):
    """For engine = "llamacpp"; what is not given follows from the machine."""

    slots: int | None = Field(None, ge=1, le=256, examples=[4])
    """Sequences at once."""
    context_tokens: int | None = Field(None, ge=128, examples=[4096])
    """Prompt plus answer of one request."""
    threads: int | None = Field(None, ge=1, examples=[2])
    """Threads of one engine."""
    batch_tokens: int = Field(512, ge=16)
    """Most tokens of all sequences in one step."""
    micro_batch_tokens: int = Field(256, ge=16)
    """Tokens computed together; more is faster on prompts and makes the others' next token wait longer."""
    memory_fraction: float = Field(0.9, gt=0, le=1)
    """Share of the free memory that weights and KV cache may take."""


class VllmOptions(Section):
    """For engine = "vllm". Without python and command, the vLLM of `tidegate engines install vllm` is started."""

    version: str = Field("", pattern=r"^[\w.+]*$")
    """Which of the installed versions; empty for the newest."""
    python: Path | None = Field(None, examples=["/opt/vllm/bin/python"])
    """Python of an environment of your own that has vLLM."""
    command: tuple[str, ...] = Field((), examples=[["/opt/vllm/bin/vllm", "serve"]])
    """A command of your own that starts vLLM's server; the model's folder and flags are added to it."""
    preset: str = "default"
    """What its flags are chosen for: "default", "balanced", "production" … (`tidegate engines plan`)."""
    slots: int | None = Field(None, ge=1, le=4096, examples=[128])
    """Sequences at once (--max-num-seqs); what is not given follows from the preset, as the next three do."""
    context_tokens: int | None = Field(None, ge=128, examples=[8192])
    """Prompt plus answer of one request (--max-model-len)."""
    memory_share: float | None = Field(None, gt=0, le=1, examples=[0.9])
    """Share of the GPU's memory, or of what is available of the machine's."""
    fp8: Literal["none", "weights", "kv", "both"] = "none"
    """What is kept in 8 bits, on GPUs of compute capability 8.9 and newer."""
    args: tuple[str, ...] = Field((), examples=[["--max-num-batched-tokens", "4096"]])
    """Further flags of vLLM's, one word each; they win over those that Tidegate chooses."""
    env: dict[str, str] = Field({})
    """Further environment variables of the engine, such as { CUDA_VISIBLE_DEVICES = "1" }."""
    threads: int | None = Field(None, ge=1, examples=[8])
    """On a CPU: threads of one replica; what is not given is the machine's cores, shared out among the pool's replicas."""
    shutdown_timeout_s: int = Field(3, ge=0, le=3600)
    """How long a replica that is stopped may finish what it has, after it was drained."""
    start_timeout_s: float = Field(1800.0, gt=0)
    """Longest time until it answers: weights are loaded, and a GPU's kernels compiled."""


class FakeOptions(Section):
    """For engine = "fake", an engine without a model, for trials of everything around it."""

    slots: int = Field(32, ge=1)
    """Sequences at once."""
    tokens: int = Field(64, ge=1)
    """Tokens of an answer."""
    gap_ms: float = Field(10.0, ge=0)
    """Time between two tokens."""
    first_ms: float = Field(0.0, ge=0)
    """Time to the first token."""


class ExternalOptions(Section):
    """For engine = "external", engines that run already at `urls`."""

    dialect: Literal["auto", "vllm", "llamacpp", "openai"] = "auto"
    """What they are: "vllm", "llamacpp", "openai" for any other, or "auto" to find out."""
    served_name: str = ""
    """The model name they want in a request; empty for the one they report."""
    api_key_file: Path | None = Field(None, examples=["/etc/tidegate/engine-key"])
    """File that holds the key they want."""
    slots: int | None = Field(None, ge=1, examples=[64])
    """Sequences that one of them runs at once, if it does not say."""


class PoolSettings(Section):
    """Replicas of one model on one kind of engine. Without any [[pool]], each model gets one replica on llama.cpp, or,
    on a machine with a GPU, on vLLM where that is installed.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,30}$", examples=["default"])
    """The name; its replicas are called NAME-0, NAME-1 …"""
    model: str = Field(min_length=1, examples=["ernie-4.5-0.3b"])
    """Name of a [[model]], or of the catalogue."""
    engine: Literal["llamacpp", "vllm", "external", "fake"] = "llamacpp"
    """"llamacpp" or "vllm" (run here), "external" (runs already, at `urls`) or "fake"."""
    fleet: Literal["local", "ray", "dns"] = "local"
    """Where its replicas are: "local" (this machine, or `urls`), "ray" (a Ray cluster, which starts them), or "dns"
    (external engines at all addresses of a name)."""
    replicas: int = Field(1, ge=1, le=64)
    """How many engines are started; external ones are as many as `urls`, or as the name has addresses."""
    replicas_min: int | None = Field(None, ge=1, le=64, examples=[1])
    """With replicas_max: engines are added and taken away by how long requests wait, and are never fewer than this."""
    replicas_max: int | None = Field(None, ge=1, le=64, examples=[4])
    """Most engines that are started while requests wait."""
    gpus: tuple[Annotated[int, Field(ge=0)], ...] = Field((), examples=[[0, 1]])
    """GPUs of this machine that replicas of vLLM get, one each in this order, by their numbers (nvidia-smi); none named
    means any that is free."""
    urls: tuple[EngineUrl, ...] = ()
    """Where external engines are, such as "http://10.0.0.5:8000"."""
    scaling: ScalingSettings = Field(default_factory=ScalingSettings)
    ray: RayNeeds = Field(default_factory=RayNeeds)
    dns: DnsSettings = Field(default_factory=DnsSettings)
    options: dict[str, Any] = Field(default_factory=dict)

    OPTIONS: ClassVar[Mapping[str, type[Section]]] = {
        "llamacpp": LlamaCppOptions,
        "vllm": VllmOptions,
        "external": ExternalOptions,
        "fake": FakeOptions,
    }

    def engine_options(self) -> Section:
        """`options`, checked against what the engine knows. Raises pydantic's ValidationError."""
        return self.OPTIONS[self.engine].model_validate(self.options)


class EnginesSettings(Section):
    """How engines are installed (`tidegate engines install`)."""

    pip_args: tuple[str, ...] = Field((), examples=[["--extra-index-url", "https://wheels.example/simple"]])
    """Further arguments of pip, which reads its own settings (pip.conf, PIP_* variables) all the same."""
    python: Path | None = Field(None, examples=["/usr/bin/python3.12"])
    """Python that environments are made with. Default: the one that runs Tidegate."""
    stage_to: Path | None = Field(None, examples=["/nvme/tidegate"])
    """Folder on a fast disk, or in memory (/dev/shm/tidegate), that weights are copied to once, checked, and loaded
    from; `tidegate models stage` does it by hand."""


class Settings(Section):
    """All settings. `load` makes them from flags, environment and file."""

    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    admin: AdminSettings = Field(default_factory=AdminSettings)
    chat: ChatSettings = Field(default_factory=ChatSettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    engines: EnginesSettings = Field(default_factory=EnginesSettings)
    ray: RaySettings = Field(default_factory=RaySettings)
    limits: LimitsSettings = Field(default_factory=LimitsSettings)
    report: ReportSettings = Field(default_factory=ReportSettings)
    klass: tuple[ClassSettings, ...] = Field((), alias="class")
    rule: tuple[RuleSettings, ...] = ()
    tenant: tuple[TenantSettings, ...] = ()
    model: tuple[ModelSettings, ...] = ()
    pool: tuple[PoolSettings, ...] = ()

    def listeners(self) -> dict[str, str]:
        """Every address that is listened on, by the section whose `listen` names it."""
        listeners = {"gateway": self.gateway.listen, "admin": self.admin.listen}
        return {**listeners, "chat": self.chat.listen} if self.chat.enabled else listeners

    def policy(self) -> Policy:
        """Classes, rules, tenants and limits as gateways are told of them."""
        return make_policy(self.klass, self.rule, self.tenant, self.limits)
