"""What a request may cost its key, and the lease on that."""

from typing import Final

from tidegate.gateway.auth import Admitted
from tidegate.gateway.intake import CHAT, COMPLETIONS, Intake
from tidegate.gateway.quotas import ANSWER_TOKENS, BYTES_PER_TOKEN, Lease, Quota
from tidegate.http import Exchange, as_lines

ANSWERING: Final = frozenset((CHAT, COMPLETIONS, "/v1/responses"))
_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_MOST_DIGITS: Final = 9


def admit(exchange: Exchange, admitted: Admitted, intake: Intake) -> Lease | None:
    """Let an understood request in: its model is allowed, and what it may cost is there.

    The answer, whatever it becomes, tells its class and what is left. Raises Forbidden, RateLimited.
    """
    headers = admitted.headers
    if admitted.models is not None:
        admitted.check_model(intake.model)
    quota = admitted.quota
    if quota is None:
        exchange.extra_headers = as_lines(exchange.extra_headers) + headers if exchange.extra_headers else headers
        return None
    try:
        return _enter(quota, intake)
    finally:
        exchange.extra_headers = as_lines(exchange.extra_headers) + headers + quota.headers()


def _enter(quota: Quota, intake: Intake) -> Lease:
    if not quota.counts_tokens:
        return quota.enter()
    return quota.enter(len(intake.body) // BYTES_PER_TOKEN + 1, _answer_tokens(intake))


def _answer_tokens(intake: Intake) -> int:
    """The most tokens that a request's answers may have, as far as it says."""
    if intake.path not in ANSWERING:
        return 0
    told = [number for name in _LIMITS if (number := _number(intake, name)) is not None]
    tokens = min(told) if told else ANSWER_TOKENS
    context_tokens = intake.model.context_tokens
    if context_tokens is not None:
        tokens = min(tokens, context_tokens)
    return tokens * (_number(intake, "n") or 1)


def _number(intake: Intake, name: str) -> int | None:
    """A field's whole number; None where the field says nothing, or nothing that an engine would take."""
    raw = intake.fields.get(name)
    if raw is None:
        return None
    digits = bytes(raw)
    return int(digits[: _MOST_DIGITS + 1]) if digits.isdigit() else None
