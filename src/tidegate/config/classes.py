"""Classes, rules, tenants and limits: as settings, and as gateways are told of them.

What is not given is None here, so that a `[[class]]` of a built-in name changes only what it says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
from pydantic import Field

from tidegate.config.section import HeaderValue, RedisUrl, Section, UrlPath
from tidegate.types import (
    CLASSES,
    LONG_FROM_TOKENS,
    RULES,
    ClassView,
    LimitOptions,
    RedisOptions,
    RuleView,
    TenantView,
)

NAME = r"^[a-z0-9][a-z0-9_-]{0,30}$"
"""Class names stand in headers and labels of metrics."""


class LimitsSettings(Section):
    """How much work an engine may have at once, and how much may wait; and where the quotas of keys are counted."""

    kind: Literal["adaptive", "threshold", "fixed"] = "adaptive"
    """How the limit of a replica is found: "adaptive" learns what its engine computes at once and goes lower only when it
    is pressed; "threshold" follows the numbers below; "fixed" is `sequences`."""
    sequences: int | None = Field(None, ge=1, le=100_000, examples=[64])
    """Sequences of one replica at once: the limit itself ("fixed"), where it begins ("threshold"), or its ceiling
    ("adaptive"). Default: what the engine says of itself."""
    kv_share: float = Field(0.95, gt=0, le=1)
    """Most of an engine's KV cache that the requests it has may add up to, as far as their size is known."""
    token_s: float = Field(0.5, gt=0)
    """"adaptive": an engine that takes longer than this for one token of each answer is given fewer at once."""
    queue_requests: int = Field(2000, ge=1)
    """Most requests that wait in one gateway process; more get 429."""
    queue_bytes: int = Field(64 * 1024 * 1024, ge=1024)
    """Most bytes of requests that wait in one gateway process; more get 429."""
    wait_high_s: float = Field(0.2, ge=0)
    """"threshold": the limit is raised where requests wait longer than this (in the gateway and the engine) …"""
    cache_low: float = Field(0.7, gt=0, le=1)
    """… while less than this share of the KV cache is in use …"""
    raise_by: float = Field(1.25, gt=1, le=10)
    """… by this factor, up to the engine's own maximum."""
    cache_high: float = Field(0.85, gt=0, le=1)
    """"threshold": the limit is lowered where more than this share of the KV cache is in use …"""
    wait_low_s: float = Field(0.1, ge=0)
    """… while requests wait shorter than this …"""
    lower_by: float = Field(0.85, gt=0, lt=1)
    """… by this factor."""
    every_s: float = Field(30.0, ge=1)
    """"threshold": how often this is looked at."""
    long_from_tokens: int = Field(LONG_FROM_TOKENS, ge=1)
    """Prompts from this size on are of class "long", where no rule and no X-Request-Type says otherwise."""
    redis_url: RedisUrl | None = Field(None, examples=["redis://redis.example:6379/0"])
    """Redis in which several gateways share the quotas of keys. Default: each gateway counts for itself."""
    redis_password_file: Path | None = Field(None, examples=["/etc/tidegate/redis-password"])
    """File that holds Redis's password, so that the URL need not."""

    def redis(self) -> RedisOptions:
        """What gateways are told about Redis."""
        return RedisOptions(self.redis_url or "", str(self.redis_password_file or ""))

    def options(self) -> LimitOptions:
        """What gateways are told about limits."""
        return LimitOptions(**{name: getattr(self, name) for name in LimitOptions.__struct_fields__})


class ClassSettings(Section):
    """How urgent requests are, and what they may take of the engines. Built in are interactive, standard, batch and long:
    a [[class]] of such a name changes only what it gives; another name adds a class. Shares are 0 to 1. docs/classes.md
    explains.
    """

    name: str = Field(pattern=NAME, examples=["premium"])
    """The name, which clients ask for in X-Request-Type, and read in x-tidegate-class."""
    pools: tuple[str, ...] = ()
    """Pools in order of preference, each tried when the one before has no room. None named: all of the model's."""
    weight: float | None = Field(None, gt=0, le=1000, examples=[4.0])
    """Share of the engines against other classes, where all have work waiting."""
    max_wait_s: float | None = Field(None, ge=0, examples=[30.0])
    """Longest wait in the queue; a longer one that is foreseen gets 429 at once."""
    first_token_s: float | None = Field(None, ge=0, examples=[0.5])
    """Target for the first token, beside what its own prompt takes; 0 for none."""
    most_share: float | None = Field(None, gt=0, le=1, examples=[1.0])
    """Most of the engines' room that it may have at once."""
    least_share: float | None = Field(None, ge=0, le=1, examples=[0.05])
    """What it is given in any case while it has work waiting."""
    yields: bool | None = Field(None, examples=[False])
    """Whether it has only the room that the others' demand leaves, so that they never wait for its long answers."""
    max_tokens: int | None = Field(None, ge=1, examples=[512])
    """Longest answer where the client does not say. Default: the model's."""
    max_tokens_most: int | None = Field(None, ge=1, examples=[4096])
    """Longest answer that a client may ask for; more is cut to it."""
    first_byte_timeout_s: float | None = Field(None, ge=0, examples=[30.0])
    """In place of gateway.first_byte_timeout_s."""
    stall_timeout_s: float | None = Field(None, gt=0, examples=[60.0])
    """In place of gateway.stall_timeout_s."""
    total_timeout_s: float | None = Field(None, ge=0, examples=[600.0])
    """In place of gateway.total_timeout_s."""
    priority: int | None = Field(None, ge=-1_000_000, le=1_000_000, examples=[0])
    """What vLLM is told, where it schedules by priority: the lower, the sooner. It decides inside a full engine."""

    def view(self) -> ClassView:
        """The class, with what is built in where nothing is given."""
        base = next((one for one in CLASSES if one.name == self.name), ClassView(self.name))
        given = {name: value for name in ClassView.__struct_fields__ if (value := getattr(self, name)) is not None}
        if self.first_token_s == 0:
            given["first_token_s"] = None
        return msgspec.structs.replace(base, **given)


class RuleSettings(Section):
    """Which requests are of which class: the first rule of which everything fits. After those given here come the built-in
    ones: X-Request-Type with the name of a class (or "streaming", for interactive), then long prompts; everything else is
    standard. A key that may not have the class gets standard.
    """

    klass: str = Field(alias="class", examples=["interactive"])
    """The class; a built-in one, or the name of a [[class]]."""
    request_type: HeaderValue | None = Field(None, examples=["urgent"])
    """Value of the header X-Request-Type, in whatever case."""
    stream: bool | None = Field(None, examples=[True])
    """Whether the answer is asked for as a stream."""
    tenant: str | None = Field(None, min_length=1, examples=["sales"])
    """The tenant of the key."""
    model: str | None = Field(None, min_length=1, examples=["ernie-4.5-0.3b"])
    """A model, by its name or an alias."""
    path: UrlPath | None = Field(None, examples=["/v1/embeddings"])
    """The path of the request."""
    prompt_tokens_from: int | None = Field(None, ge=1, examples=[8192])
    """Prompts of so many tokens or more, estimated from their bytes."""
    max_tokens_from: int | None = Field(None, ge=1, examples=[2048])
    """Requests that ask for so many tokens or more; one that does not say is none of them."""

    def view(self, position: int) -> RuleView:
        """The rule at this place of the file."""
        given = {name: getattr(self, name) for name in RuleView.__struct_fields__ if name != "position"}
        request_type = self.request_type.lower() if self.request_type is not None else None
        return RuleView(**given | {"request_type": request_type, "position": position})


class TenantSettings(Section):
    """What is set for one tenant, the owner of keys. Tenants need not be listed here."""

    name: str = Field(min_length=1, max_length=200, examples=["sales"])
    """The name, as in `tidegate keys create --tenant`."""
    weight: float = Field(1.0, gt=0, le=1000)
    """Its share of a class against other tenants, where both have work waiting."""
    max_tokens: int | None = Field(None, ge=1, examples=[512])
    """Longest answer where the client does not say. Of this and the class's the smaller holds."""
    max_tokens_most: int | None = Field(None, ge=1, examples=[4096])
    """Longest answer that a client may ask for; more is cut to it. Of this and the class's the smaller holds."""

    def view(self) -> TenantView:
        return TenantView(**{name: getattr(self, name) for name in TenantView.__struct_fields__})


def built_in(setting: str) -> str:
    """What the built-in classes, and then all others, have where a `[[class]]` does not say; empty where it is nothing."""
    other = getattr(ClassView(""), setting)
    values = {one.name: getattr(one, setting) for one in CLASSES}
    own = [f"{name} {_shown(value)}" for name, value in values.items() if value != other]
    if (other is None and not own) or other == ():
        return ""
    return f"Default: {', '.join([*own, f'others {_shown(other)}' if own else _shown(other)])}."


def _shown(value: float | None) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else f"{value:g}"


@dataclass(frozen=True)
class Policy:
    """Who comes first, and how much may be under way."""

    classes: tuple[ClassView, ...] = CLASSES
    rules: tuple[RuleView, ...] = RULES
    tenants: tuple[TenantView, ...] = ()
    limits: LimitOptions = field(default_factory=LimitOptions)


def make_policy(
    classes: Sequence[ClassSettings],
    rules: Sequence[RuleSettings],
    tenants: Sequence[TenantSettings],
    limits: LimitsSettings,
) -> Policy:
    """Built-in classes come first. Rules: those given, then the names of classes that were added, then the built-in ones."""
    merged = {one.name: one for one in CLASSES} | {one.name: one.view() for one in classes}
    added = list(merged)[len(CLASSES) :]
    return Policy(
        classes=tuple(merged.values()),
        rules=(
            *(rule.view(position) for position, rule in enumerate(rules, 1)),
            *(RuleView(name, request_type=name) for name in added),
            *(_with_size(rule, limits.long_from_tokens) for rule in RULES),
        ),
        tenants=tuple(tenant.view() for tenant in tenants),
        limits=limits.options(),
    )


def _with_size(rule: RuleView, long_from_tokens: int) -> RuleView:
    if rule.prompt_tokens_from is None:
        return rule
    return msgspec.structs.replace(rule, prompt_tokens_from=long_from_tokens)
