"""What every part of the settings is made of: the section itself, and texts that are checked."""

import importlib.util
import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a network, as in 10.0.0.0/8") from None
    return value


def _origin(value: str) -> str:
    parts = urlsplit(value)
    if value != "*" and (not parts.scheme or not parts.netloc or value != f"{parts.scheme}://{parts.netloc}"):
        raise ValueError(f'{value!r} is not an origin, as in https://app.example, or "*" for all')
    return value


def _path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"{value!r} is not a path that begins with /")
    return value


def _engine_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme == "https":
        raise ValueError(f"{value!r}: engines are spoken to without TLS; put a proxy on the way, or use http://")
    if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{value!r} is not the URL of an engine, as in http://127.0.0.1:8100")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"{value!r}: a port is a number, and at most 65535") from None
    if parts.path.rstrip("/") not in {"", "/v1"}:
        raise ValueError(f"{value!r}: the URL of an engine ends with its port, and its API is below /v1")
    return value


def _header_value(value: str) -> str:
    if not (value.isascii() and value.isprintable() and value == value.strip() and 0 < len(value) <= 64):
        raise ValueError(f"{value!r} is not what a client can send: up to 64 printable ASCII characters")
    return value


def _redis_url(value: str) -> str:
    if urlsplit(value).scheme not in {"redis", "rediss", "unix"}:
        raise ValueError("is not the URL of a Redis, as in redis://redis.example:6379/0")
    if importlib.util.find_spec("redis") is None:
        raise ValueError("Redis needs the package redis, which is not installed: pip install 'tidegate[redis]'")
    return value


Network = Annotated[str, AfterValidator(_network)]
Origin = Annotated[str, AfterValidator(_origin)]
RedisUrl = Annotated[str, AfterValidator(_redis_url)]
HeaderValue = Annotated[str, AfterValidator(_header_value)]
UrlPath = Annotated[str, AfterValidator(_path)]
EngineUrl = Annotated[str, AfterValidator(_engine_url)]


class Section(BaseModel):
    """A part of the settings file. Unknown keys are errors, so that a typing mistake is never silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
