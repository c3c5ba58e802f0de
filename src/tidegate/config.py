"""The settings: frozen, checked at the start, and the only reader of the environment.

A setting comes, in this order of precedence, from a command-line flag, an environment variable
(`TIDEGATE_GATEWAY__LISTEN` is `gateway.listen`), the settings file, its default. Lists (`[[model]]`, `[[pool]]`) come
from the file or, as JSON, from one variable (`TIDEGATE_MODEL`). Secrets are never settings: only `*_file` is.

`tidegate.example.toml` shows every key; a test holds it to this module.
"""

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from tidegate.errors import SettingError
from tidegate.types import GatewayOptions, Sampling

FILE_NAME = "tidegate.toml"


def split_address(value: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPV6]:PORT` as host and port; ValueError says what is wrong."""
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{value!r} is not HOST:PORT, as in 127.0.0.1:8000")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{value!r}: an IPv6 address is written [::1]:8000")
    return host or "0.0.0.0", int(port)  # noqa: S104 - ":8000" means every address, as everywhere


def is_loopback(value: str) -> bool:
    """Whether only this machine can connect to the address `HOST:PORT`."""
    host, _ = split_address(value)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _address(value: str) -> str:
    split_address(value)
    return value


Address = Annotated[str, AfterValidator(_address)]


class Section(BaseModel):
    """A part of the settings file. Unknown keys are errors, so that a typing mistake is never silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GatewaySettings(Section):
    """`[gateway]`: the data port."""

    listen: Address = "127.0.0.1:8000"
    allow_anonymous: bool = False
    """Listen on more than loopback although there is no key."""
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    max_head_bytes: int = Field(32 * 1024, ge=1024)
    max_headers: int = Field(100, ge=10)
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024)
    head_timeout_s: float = Field(10.0, gt=0)
    body_timeout_s: float = Field(60.0, gt=0)
    idle_timeout_s: float = Field(75.0, gt=0)
    connect_timeout_s: float = Field(5.0, gt=0)
    write_timeout_s: float = Field(60.0, gt=0)
    max_connections: int = Field(20_000, ge=1)
    cors_origins: tuple[str, ...] = ()
    metrics_allow: tuple[str, ...] = ()
    extra_paths: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    drain_timeout_s: float = Field(30.0, ge=0)

    def options(self) -> GatewayOptions:
        """The part of this section that the data path is given."""
        return GatewayOptions(**{name: getattr(self, name) for name in GatewayOptions.__struct_fields__})


class AdminSettings(Section):
    """`[admin]`: the admin port."""

    listen: Address = "127.0.0.1:8001"
    allowed_hosts: tuple[str, ...] = ()


class ChatSettings(Section):
    """`[chat]`: the chat page."""

    enabled: bool = True
    listen: Address = "127.0.0.1:8080"
    allowed_hosts: tuple[str, ...] = ()
    language: Literal["auto", "en-US", "zh-CN"] = "auto"
    system_prompt: str = ""
    history_tokens: int = Field(1536, ge=64)


class StoreSettings(Section):
    """`[store]`: where state is kept."""

    home: Path | None = None
    """The data folder; TIDEGATE_HOME is short for it."""
    url: str | None = None
    """SQLAlchemy URL of the database; SQLite in the data folder by default."""


class LogSettings(Section):
    """`[log]`: terminal and `logs/tidegate.log`."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    max_bytes: int = Field(20 * 1024 * 1024, ge=64 * 1024)
    backups: int = Field(5, ge=0)


class SamplingSettings(Section):
    """`[model.defaults]`: put into requests that do not say otherwise."""

    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    repetition_penalty: float | None = Field(None, gt=0)

    def sampling(self) -> Sampling:
        return Sampling(**self.model_dump())


class ModelSettings(Section):
    """`[[model]]`: a name clients ask for, and where its files come from."""

    name: str = Field(min_length=1)
    aliases: tuple[str, ...] = ()
    source: str = "auto"
    """`auto`, `demo`, a name of the catalogue, `ORG/NAME` on a hub, or a path."""
    quantisation: Literal["auto", "Q8_0", "Q4_0", "BF16"] = "auto"
    defaults: SamplingSettings = SamplingSettings()


class LlamaCppOptions(Section):
    """`[pool.options]` of a llama.cpp pool; what is not given follows from the machine."""

    slots: int | None = Field(None, ge=1, le=256)
    """Sequences at once."""
    context_tokens: int | None = Field(None, ge=128)
    """Prompt plus answer of one request."""
    threads: int | None = Field(None, ge=1)
    batch_tokens: int = Field(512, ge=16)
    micro_batch_tokens: int = Field(256, ge=16)
    memory_fraction: float = Field(0.9, gt=0, le=1)
    """Share of the free memory that weights and KV cache may take."""


class FakeOptions(Section):
    """`[pool.options]` of a pool of fake engines."""

    slots: int = Field(32, ge=1)
    tokens: int = Field(64, ge=1)
    gap_ms: float = Field(10.0, ge=0)
    first_ms: float = Field(0.0, ge=0)


class ExternalOptions(Section):
    """`[pool.options]` of a pool of URLs."""

    dialect: Literal["auto", "vllm", "llamacpp", "openai"] = "auto"
    served_name: str = ""
    api_key_file: Path | None = None
    slots: int | None = Field(None, ge=1)


class PoolSettings(Section):
    """`[[pool]]`: replicas of one model on one kind of engine."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,30}$")
    model: str
    engine: Literal["llamacpp", "external", "fake"] = "llamacpp"
    replicas: int = Field(1, ge=1, le=64)
    urls: tuple[str, ...] = ()
    options: dict[str, Any] = {}

    OPTIONS: ClassVar[Mapping[str, type[Section]]] = {
        "llamacpp": LlamaCppOptions,
        "external": ExternalOptions,
        "fake": FakeOptions,
    }

    def engine_options(self) -> Section:
        """`options`, checked against what the engine knows."""
        return self.OPTIONS[self.engine](**self.options)


class Settings(BaseSettings):
    """All settings. Make one with `load`."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_", env_nested_delimiter="__", frozen=True, extra="forbid", nested_model_default_partial_update=True
    )

    gateway: GatewaySettings = GatewaySettings()
    admin: AdminSettings = AdminSettings()
    chat: ChatSettings = ChatSettings()
    store: StoreSettings = StoreSettings()
    log: LogSettings = LogSettings()
    model: tuple[ModelSettings, ...] = ()
    pool: tuple[PoolSettings, ...] = ()


@dataclass(frozen=True)
class HubEnvironment:
    """What the environment says about hubs of models. Empty: not said."""

    hub: str = ""
    """$TIDEGATE_HUB: `hf`, `modelscope`, or a URL."""
    hf_endpoint: str = ""
    """$HF_ENDPOINT, the Hugging Face libraries' own variable."""
    hf_token: str = ""
    """$HF_TOKEN, sent to Hugging Face only."""


def hub_environment(environ: Mapping[str, str] = os.environ) -> HubEnvironment:
    """Which hubs to ask."""
    return HubEnvironment(
        hub=environ.get("TIDEGATE_HUB", "").strip(),
        hf_endpoint=environ.get("HF_ENDPOINT", "").strip(),
        hf_token=environ.get("HF_TOKEN", "").strip(),
    )


def terminal_language(environ: Mapping[str, str] = os.environ) -> Literal["en", "zh"]:
    """The terminal's language, by the locale's own order: LC_ALL, LC_MESSAGES, LANG. Chinese or English."""
    locale = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "")
    return "zh" if locale.lower().startswith("zh") else "en"


def find_file(explicit: Path | None, home: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The settings file: the one given, else $TIDEGATE_CONFIG, else ./tidegate.toml, else the data folder's."""
    if explicit is None and environ.get("TIDEGATE_CONFIG"):
        explicit = Path(environ["TIDEGATE_CONFIG"])
    if explicit is not None:
        if not explicit.is_file():
            raise SettingError("--config", f"{explicit} is not a file")
        return explicit
    return next((path for path in (Path(FILE_NAME), home / FILE_NAME) if path.is_file()), None)


def load(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings from flags (nested like the file), the environment, and `file`.

    Raises SettingError that names the setting, the place it came from, and what is wrong with it.
    """

    class Loader(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, file)

    try:
        loaded = Loader(**(flags or {}))
        for pool in loaded.pool:
            pool.engine_options()
    except ValidationError as error:
        raise _setting_error(error, file) from None
    except SettingsError as error:
        raise SettingError("environment", str(error), hint="lists are written as JSON in a variable") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(str(file), f"is not TOML: {error}") from None
    settings = Settings.model_construct(**{name: getattr(loaded, name) for name in Settings.model_fields})
    check(settings)
    return settings


def _setting_error(error: ValidationError, file: Path | None) -> SettingError:
    first = error.errors()[0]
    where = [str(part + 1) if isinstance(part, int) else part for part in first["loc"]]
    name = ".".join(where) or "settings"
    variable = "TIDEGATE_" + "__".join(where).upper()
    source = f"in ${variable}" if variable in os.environ else f"in {file}" if file else ""
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where[-1], _known_keys(where[:-1]), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "tidegate.example.toml lists every setting"
        return SettingError(name, f"there is no such setting {source}".rstrip(), hint=hint)
    got = "" if first["type"] == "missing" else f", got {first['input']!r}"
    message = first["msg"].removeprefix("Value error, ")
    return SettingError(name, f"{message[0].lower()}{message[1:]}{got} {source}".rstrip())


def _known_keys(path: list[str]) -> list[str]:
    model: Any = Settings
    for part in path:
        if part.isdigit():
            continue
        field = model.model_fields.get(part)
        if field is None:
            return []
        inner = [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next((a for a in inner if isinstance(a, type) and issubclass(a, BaseModel)), None)
        if model is None:
            return []
    return list(model.model_fields)


def check(settings: Settings) -> None:
    """What no single setting can know: names that must exist, ports that must differ. Raises SettingError."""
    ports: dict[tuple[str, int], str] = {}
    for name in ("gateway", "admin", "chat"):
        address = split_address(getattr(settings, name).listen)
        other = ports.setdefault(address, f"{name}.listen") if address[1] else f"{name}.listen"
        if other != f"{name}.listen":
            raise SettingError(f"{name}.listen", f"is the same address as {other}: {address[0]}:{address[1]}")
    if (settings.gateway.tls_cert_file is None) != (settings.gateway.tls_key_file is None):
        raise SettingError("gateway.tls_cert_file", "needs gateway.tls_key_file, and the other way round")
    names: dict[str, int] = {}
    for position, model in enumerate(settings.model, 1):
        for name in (model.name, *model.aliases):
            owner = names.setdefault(name.lower(), position)
            if owner != position:
                raise SettingError(f"model.{position}.name", f"{name!r} is already a name of model {owner}")
    pools: set[str] = set()
    for position, pool in enumerate(settings.pool, 1):
        if pool.name in pools:
            raise SettingError(f"pool.{position}.name", f"there are two pools named {pool.name!r}")
        pools.add(pool.name)
        if settings.model and pool.model not in {model.name for model in settings.model}:
            raise SettingError(f"pool.{position}.model", f"there is no [[model]] named {pool.model!r}")
        if (pool.engine == "external") != bool(pool.urls):
            raise SettingError(f"pool.{position}.urls", "belong to pools with engine = \"external\", and only to those")
