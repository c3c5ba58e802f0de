"""How long an answer may be: what the class, the tenant and the model say where the client does not, and at most."""

from typing import Final

import msgspec

from tidegate.gateway.intake import ANSWER_LIMITS, GENERATING, Intake
from tidegate.types import ClassView, TenantView

_MOST_DIGITS: Final = 9


def asked_tokens(intake: Intake) -> int:
    """Tokens that an answer may have, as far as the request says; 0 where it does not.

    Of two numbers the larger: which one an engine goes by is its own affair.
    """
    told = [number for name in ANSWER_LIMITS if name in intake.fields and (number := whole_number(intake.fields[name]))]
    return max(told, default=0)


def whole_number(raw: msgspec.Raw) -> int | None:
    """A whole number; None for what says nothing, or nothing that an engine would take."""
    digits = bytes(raw)
    return int(digits[: _MOST_DIGITS + 1]) if digits.isdigit() else None


def bound_answer(intake: Intake, klass: ClassView, tenant: TenantView | None) -> None:
    """Put in the default of class and tenant, and cut to the most that they allow; of two that are set the smaller."""
    if intake.path not in GENERATING:
        return
    default = _smaller(klass.max_tokens, tenant.max_tokens if tenant is not None else None)
    most = _smaller(klass.max_tokens_most, tenant.max_tokens_most if tenant is not None else None)
    if default is None and most is None:
        return
    asked = asked_tokens(intake)
    if not asked or intake.defaulted:
        wanted = default if default is not None else asked or most
        _set(intake, _smaller(wanted, most), _given(intake) or ["max_tokens"])
    elif most is not None and asked > most:
        _set(
            intake, most, [name for name in _given(intake) if not 0 < (whole_number(intake.fields[name]) or 0) <= most]
        )


def _given(intake: Intake) -> list[str]:
    return [name for name in ANSWER_LIMITS if name in intake.fields]


def _set(intake: Intake, tokens: int | None, names: list[str]) -> None:
    for name in names:
        intake.fields[name] = msgspec.Raw(b"%d" % (tokens or 1))
    intake.changed = True


def _smaller(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
