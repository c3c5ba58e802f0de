"""What valid settings mean: who can reach what, and what is written but does nothing. Pure."""

from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from urllib.parse import urlsplit

from tidegate.config.addresses import is_loopback
from tidegate.config.loading import Explained
from tidegate.config.sections import LlamaCppOptions, Settings

THRESHOLD = ("wait_high_s", "cache_low", "raise_by", "cache_high", "wait_low_s", "lower_by", "every_s")
OF_A_KIND = {"token_s": "adaptive"} | dict.fromkeys(THRESHOLD, "threshold")
"""Settings of limits of one kind only."""


def advice(explained: Explained) -> tuple[str, ...]:
    """Sentences for an operator, the gravest first."""
    settings, origins = explained.settings, explained.origins
    return (*_reach(settings), *_secrets(settings), *_idle(settings, origins), *_variables(explained))


def _reach(settings: Settings) -> Iterator[str]:
    gateway = settings.gateway
    if not is_loopback(gateway.listen):
        if gateway.allow_anonymous:
            yield f"gateway.allow_anonymous: whoever reaches {gateway.listen} can use the models without a key"
        else:
            yield f"gateway.listen: {gateway.listen} can be reached by other machines, so that every request needs a key"
        if gateway.tls_cert_file is None:
            yield "gateway.tls_cert_file: without TLS, keys and questions cross the network in the clear"
    for name in ("admin", "chat"):
        listen = getattr(settings, name).listen
        if not is_loopback(listen) and (name == "admin" or settings.chat.enabled):
            yield f"{name}.listen: {listen} can be reached by other machines, without TLS"
    for network in gateway.metrics_allow:
        if ip_network(network).prefixlen == 0:
            yield f"gateway.metrics_allow: {network} lets everybody read the metrics"


def _secrets(settings: Settings) -> Iterator[str]:
    if settings.store.url and urlsplit(settings.store.url).password:
        yield "store.url: holds a password; keep it in a file of its own, named by store.password_file"
    if settings.limits.redis_url and urlsplit(settings.limits.redis_url).password:
        yield "limits.redis_url: holds a password; keep it in a file of its own, named by limits.redis_password_file"


def _idle(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    if settings.gateway.allow_anonymous and is_loopback(settings.gateway.listen):
        yield "gateway.allow_anonymous: does nothing while gateway.listen is this machine's alone"
    if not settings.chat.enabled:
        for name in origins:
            if name.startswith("chat.") and name != "chat.enabled":
                yield f"{name}: does nothing while chat.enabled is false"
    if settings.store.password_file is not None and settings.store.url is None:
        yield "store.password_file: does nothing without store.url"
    if settings.limits.redis_password_file is not None and settings.limits.redis_url is None:
        yield "limits.redis_password_file: does nothing without limits.redis_url"
    yield from _idle_limits(settings, origins)
    for position, pool in enumerate(settings.pool, 1):
        if pool.engine == "external" and f"pool.{position}.replicas" in origins:
            yield f"pool.{position}.replicas: does nothing for external engines, which are as many as urls"
        options = pool.engine_options()
        if isinstance(options, LlamaCppOptions) and options.micro_batch_tokens > options.batch_tokens:
            yield f"pool.{position}.options.micro_batch_tokens: is cut to batch_tokens ({options.batch_tokens})"


def _idle_limits(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    for name, kind in OF_A_KIND.items():
        if f"limits.{name}" in origins and settings.limits.kind != kind:
            yield f'limits.{name}: does nothing unless limits.kind is "{kind}"'


def _variables(explained: Explained) -> Iterator[str]:
    for name in explained.unread:
        yield f"${name}: is no setting, and ignored (two underscores stand between section and key)"
