"""What the gateways are told, made from settings, plan, the state of each replica, and keys. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from tidegate.config import GatewaySettings, Policy, is_loopback
from tidegate.control.plan import Plan, ReplicaSpec
from tidegate.engines.base import EngineFacts
from tidegate.types import (
    DialectName,
    FleetSnapshot,
    GatewayOptions,
    KeyView,
    LineFileOptions,
    ModelView,
    RedisOptions,
    ReplicaState,
    ReplicaView,
    RuleView,
)

PENDING_URL = "http://127.0.0.1:0"
"""Of a replica that has no address yet; nothing can ever listen there, and only READY replicas are asked."""

SHARED_LIMITS = ("max_connections",)
"""Limits of the whole port, as against those of a request or a connection."""


@dataclass(frozen=True)
class ReplicaStatus:
    """What control knows of a replica at this moment."""

    state: ReplicaState = ReplicaState.STARTING
    url: str = PENDING_URL
    dialect: DialectName = DialectName.OPENAI
    api_key: str = ""
    facts: EngineFacts | None = None
    pid: int | None = None


@dataclass(frozen=True)
class Keys:
    """What the store says about keys; our own service key comes on top."""

    views: tuple[KeyView, ...] = ()
    required: bool = False


def build(
    number: int,
    *,
    settings: GatewaySettings,
    plan: Plan,
    status: Mapping[str, ReplicaStatus],
    keys: Keys,
    service: Sequence[KeyView] = (),
    access_log: LineFileOptions = LineFileOptions(),  # noqa: B008 - immutable
    trace: LineFileOptions = LineFileOptions(),  # noqa: B008 - immutable
    redis: RedisOptions = RedisOptions(),  # noqa: B008 - immutable
    policy: Policy = Policy(),  # noqa: B008 - immutable
    limits_set: Mapping[str, int] = MappingProxyType({}),
    elsewhere: int = 0,
) -> FleetSnapshot:
    """The snapshot `number`. A replica that is not there yet is in it too, so that a gateway can say it is coming.

    `limits_set` is what an operator set by hand; what it says of replicas that are not in the plan is left out.
    `elsewhere` is how many gateways of other hosts share the engines and what keys may use.
    """
    return FleetSnapshot(
        number=number,
        models=plan.models,
        replicas=tuple(_replica(spec, status.get(spec.id, ReplicaStatus())) for spec in plan.replicas),
        keys=(*keys.views, *service),
        keys_required=keys_required(settings, keys),
        options=msgspec.structs.replace(
            share_out(settings.options(), settings.processes), processes=settings.processes + elsewhere
        ),
        access_log=access_log,
        trace=trace,
        redis=redis,
        classes=policy.classes,
        rules=tuple(_rule(rule, plan.models) for rule in policy.rules),
        tenants=policy.tenants,
        limits=policy.limits,
        limits_set={spec.id: limits_set[spec.id] for spec in plan.replicas if spec.id in limits_set},
    )


def of_a_port(options: GatewayOptions) -> dict[str, int]:
    """The limits that each port has for itself, whole."""
    return {name: getattr(options, name) for name in SHARED_LIMITS}


def share_out(options: GatewayOptions, processes: int) -> GatewayOptions:
    """The part of each limit that one of so many data processes has; together they have the limit, rounded up."""
    if processes == 1:
        return options
    parts = {name: -(-getattr(options, name) // processes) for name in SHARED_LIMITS}
    return msgspec.structs.replace(options, **parts)


def keys_required(settings: GatewaySettings, keys: Keys) -> bool:
    """From the first key on, and wherever others than this machine can connect, unless that was asked for."""
    return keys.required or not (is_loopback(settings.listen) or settings.allow_anonymous)


def _rule(rule: RuleView, models: Sequence[ModelView]) -> RuleView:
    """The rule with its model's own name: the settings may use an alias, in whatever case."""
    if rule.model is None:
        return rule
    wanted = rule.model.lower()
    names = (model.name for model in models if wanted in map(str.lower, (model.name, *model.aliases)))
    return msgspec.structs.replace(rule, model=next(names, rule.model))


def _replica(spec: ReplicaSpec, status: ReplicaStatus) -> ReplicaView:
    facts = status.facts
    return ReplicaView(
        id=spec.id,
        pool=spec.pool,
        model=spec.model,
        url=status.url,
        dialect=status.dialect,
        state=status.state,
        version=(facts.version if facts else "") or (spec.files.digest if spec.files else ""),
        served_name=facts.served_name if facts else "",
        api_key=status.api_key,
        slots=facts.slots if facts else None,
        context_tokens=facts.context_tokens if facts else None,
        embeddings=facts.embeddings if facts else False,
        continues=facts.continues if facts else False,
        pid=status.pid,
        tools=facts.tools if facts else None,
        priorities=facts.priorities if facts else False,
    )
