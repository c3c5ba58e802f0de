"""What a request may cost its key, and the lease on that."""

from typing import Final

from tidegate.gateway.auth import Admitted
from tidegate.gateway.field_limits import whole_number
from tidegate.gateway.intake import ANSWER_LIMITS, CHAT, COMPLETIONS, Intake
from tidegate.gateway.quotas import ANSWER_TOKENS, BYTES_PER_TOKEN, Lease, Quota
from tidegate.http import Exchange, as_lines

ANSWERING: Final = frozenset((CHAT, COMPLETIONS, "/v1/responses"))
_LIMITS: Final = (*ANSWER_LIMITS, "max_output_tokens")


def admit(exchange: Exchange, admitted: Admitted, intake: Intake, headers: bytes) -> Lease | None:
    """Let an understood request in: its model is allowed, and what it may cost is there.

    The answer, whatever it becomes, has `headers` and tells what is left. Raises Forbidden, RateLimited.
    """
    if admitted.models is not None:
        admitted.check_model(intake.model)
    quota = admitted.quota
    if quota is None:
        exchange.extra_headers = as_lines(exchange.extra_headers) + headers if exchange.extra_headers else headers
        return None
    if exchange.extra_headers:
        headers = as_lines(exchange.extra_headers) + headers
    try:
        return _enter(quota, intake)
    finally:
        exchange.extra_headers = headers + quota.headers()


def _enter(quota: Quota, intake: Intake) -> Lease:
    if not quota.counts_tokens:
        return quota.enter()
    return quota.enter(len(intake.body) // BYTES_PER_TOKEN + 1, _answer_tokens(intake))


def _answer_tokens(intake: Intake) -> int:
    """The most tokens that a request's answers may have, as far as it says."""
    if intake.path not in ANSWERING:
        return 0
    fields = intake.fields
    tokens = None
    for name in _LIMITS:
        if name in fields and (told := whole_number(fields[name])) is not None:
            tokens = told if tokens is None else min(tokens, told)
    if tokens is None:
        tokens = ANSWER_TOKENS
    if tokens > ANSWER_TOKENS and (context_tokens := intake.model.context_tokens) is not None:
        tokens = min(tokens, context_tokens)
    return tokens if "n" not in fields else tokens * (whole_number(fields["n"]) or 1)
