"""What is odd about classes, rules and keys that are valid each by itself. Pure; told by `check-config`, `doctor` and the log.

What makes settings unusable is refused when they are read (`config.class_checks`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tidegate.config import Settings
from tidegate.control.plan import with_defaults
from tidegate.dialects import DIALECTS
from tidegate.models import catalogue
from tidegate.types import BUILT_IN_CLASSES, ClassView, KeyView, ModelView, RuleView

LEAST_FIRST_TOKEN_S: Final = 0.02
"""No engine gives a first token sooner: two steps of a batch on the fastest GPUs take about that."""
OTHER_PATHS: Final = frozenset({"/tokenize", "/detokenize"})
"""Paths of the gateway's own, beside those of the dialects."""
UNNAMED: Final = "auto"
"""The model that takes the name of what is found for it."""


@dataclass(frozen=True)
class _Known:
    """What there is, as far as that is known."""

    pools: Mapping[str, str]
    """The model of each pool."""
    models: Mapping[str, str] | None
    """Each name and alias in lower case, with the name of its model; None where a model has no name yet."""


def concerns(
    settings: Settings,
    *,
    models: Sequence[ModelView] = (),
    keys: Sequence[KeyView] = (),
    floor_s: float | None = None,
) -> tuple[str, ...]:
    """Sentences that begin with a setting's name; positions count from 1, as a reader of the file counts.

    `models` are those of the plan, empty before there is one. `floor_s` is the shortest time to a first token that was
    measured here, as a median.
    """
    policy = settings.policy()
    given = tuple(rule for rule in policy.rules if rule.position)
    known = _known(with_defaults(settings), models)
    places = {one.name: f"class.{position}" for position, one in enumerate(settings.klass, 1)}
    paths = OTHER_PATHS.union(settings.gateway.extra_paths, *(dialect.paths for dialect in DIALECTS.values()))
    return (
        *_unmatched(given, known),
        *(sentence for rule in given for sentence in _unknown(rule, known, paths)),
        *(
            sentence
            for one in policy.classes
            if one.name in places
            for sentence in _pools(one, places[one.name], known)
        ),
        *(sentence for rule in given for sentence in _without_pool(rule, policy.classes, known)),
        *(sentence for one in policy.classes for sentence in _times(one, places.get(one.name), floor_s)),
        *(sentence for key in keys for sentence in _key(key, policy.classes, given, known)),
    )


def _known(settings: Settings, models: Sequence[ModelView]) -> _Known:
    """`settings` have defaults, so that their models are those of the plan, in its order."""
    own = {name: name for name in (model.name for model in settings.model)}
    if models:
        own = {model.name: view.name for model, view in zip(settings.model, models, strict=True)}
        names = {name.lower(): view.name for view in models for name in (view.name, *view.aliases)}
    elif UNNAMED in own:
        return _Known({pool.name: pool.model for pool in settings.pool}, None)
    else:
        names = {name.lower(): model.name for model in settings.model for name in (model.name, *model.aliases)}
        for model in settings.model:
            found = catalogue.find(model.name if model.source == UNNAMED else model.source)
            for name in found.names() if found is not None else ():
                names.setdefault(name.lower(), model.name)
    return _Known({pool.name: own[pool.model] for pool in settings.pool}, names)


def _unmatched(rules: Sequence[RuleView], known: _Known) -> Iterator[str]:
    """Rules that others before them leave nothing, and one that leaves nothing to the built-in ones."""
    plain = [_plain(rule, known) for rule in rules]
    for number, rule in enumerate(plain):
        before = plain[:number]
        whole = next((one for one in before if _covers(one, rule)), None)
        if whole is not None:
            yield f"rule.{rule.position}: can never match: rule.{whole.position} takes every request that it would"
        elif rule.stream is None and (halves := _halves(before, rule)):
            both = " and ".join(f"rule.{one.position}" for one in halves)
            yield f"rule.{rule.position}: can never match: {both} take every request that it would"
        elif _covers(rule, RuleView("")):
            yield (
                f"rule.{rule.position}: matches whatever comes to it, "
                "so that X-Request-Type and the size of a prompt decide nothing after it"
            )


def _plain(rule: RuleView, known: _Known) -> RuleView:
    if rule.model is None or known.models is None:
        return rule
    return msgspec.structs.replace(rule, model=known.models.get(rule.model.lower(), rule.model))


def _halves(before: Sequence[RuleView], rule: RuleView) -> tuple[RuleView, ...]:
    """The rules that take the rule's streams, and all else of it; empty if one of both is left."""
    found = []
    for stream in (True, False):
        half = msgspec.structs.replace(rule, stream=stream)
        one = next((one for one in before if _covers(one, half)), None)
        if one is None:
            return ()
        found.append(one)
    return tuple(sorted(found, key=lambda one: one.position))


def _covers(one: RuleView, other: RuleView) -> bool:
    """Whether whatever matches `other` matches `one`."""
    exact = ("request_type", "stream", "tenant", "model", "path")
    least = ("prompt_tokens_from", "max_tokens_from")
    return all(getattr(one, name) in {None, getattr(other, name)} for name in exact) and all(
        getattr(one, name) is None or (getattr(other, name) is not None and getattr(one, name) <= getattr(other, name))
        for name in least
    )


def _unknown(rule: RuleView, known: _Known, paths: frozenset[str]) -> Iterator[str]:
    place = f"rule.{rule.position}"
    if rule.model is not None and known.models is not None and rule.model.lower() not in known.models:
        names = ", ".join(dict.fromkeys(known.models.values()))
        yield f"{place}.model: there is no model named {rule.model!r}, so that it can never match; there are: {names}"
    if rule.path is not None and rule.path not in paths:
        yield (
            f"{place}.path: {rule.path} is no path of an engine, so that it can never match; "
            "gateway.extra_paths can add it"
        )


def _pools(one: ClassView, place: str, known: _Known) -> Iterator[str]:
    for name in dict.fromkeys(one.pools):
        if one.pools.count(name) > 1:
            yield f"{place}.pools: {name!r} is named {one.pools.count(name)} times; only the first has an effect"
        if name not in known.pools:
            yield f"{place}.pools: there is no pool named {name!r}; there are: {', '.join(known.pools)}"
    served = {known.pools[name] for name in one.pools if name in known.pools}
    if one.pools:
        for model in dict.fromkeys(known.pools.values()):
            if model not in served:
                yield f"{place}.pools: none of them serves {_model(model)}, for which this class then has no pool"


def _without_pool(rule: RuleView, classes: Sequence[ClassView], known: _Known) -> Iterator[str]:
    if rule.model is None or known.models is None:
        return
    model = known.models.get(rule.model.lower())
    pools = next(one.pools for one in classes if one.name == rule.klass)
    if model is not None and pools and model not in {known.pools.get(name) for name in pools}:
        yield (
            f"rule.{rule.position}: is for {_model(model)}, and class {rule.klass!r} "
            f"has pools of other models only ({', '.join(pools)})"
        )


def _model(name: str) -> str:
    return "the model" if name == UNNAMED else f"the model {name!r}"


def _times(one: ClassView, place: str | None, floor_s: float | None) -> Iterator[str]:
    """`place` is None for a class that is nowhere in the file."""
    target = one.first_token_s
    if target is not None:
        name = f"{place}.first_token_s" if place else f"class {one.name!r} (built in)"
        told = f"{name}: a first token within {target * 1000:g} ms"
        if target < LEAST_FIRST_TOKEN_S:
            yield f"{told} cannot be: no engine takes less than {LEAST_FIRST_TOKEN_S * 1000:g} ms"
        elif floor_s is not None and target < floor_s:
            yield f"{told} is not to be had: here it takes {floor_s * 1000:.0f} ms at the least (median, prompt included)"
    if place is None:
        return
    if one.max_wait_s == 0 and one.yields:
        yield f"{place}.max_wait_s: 0 with yields refuses all of its requests as soon as others need the engines"
    if one.max_tokens is not None and one.max_tokens_most is not None and one.max_tokens > one.max_tokens_most:
        yield f"{place}.max_tokens: {one.max_tokens} is cut to max_tokens_most ({one.max_tokens_most})"


def _key(key: KeyView, classes: Sequence[ClassView], rules: Sequence[RuleView], known: _Known) -> Iterator[str]:
    there = {one.name for one in classes}
    for name in key.classes:
        if name not in there:
            yield f"key {key.name!r}: may ask for the class {name!r}, which does not exist; there are: {', '.join(sorted(there))}"
    for name in key.models:
        if known.models is not None and name.lower() not in known.models:
            yield f"key {key.name!r}: may ask for the model {name!r}, which does not exist"
    allowed = key.classes or BUILT_IN_CLASSES
    for rule in rules:
        if rule.tenant == key.tenant and rule.request_type is not None and rule.klass not in allowed:
            yield (
                f"key {key.name!r}: rule.{rule.position} is for its tenant, but it may not ask for the class {rule.klass!r}, "
                "so that its requests are standard; `tidegate keys create --class` allows one"
            )
