"""Usage added up until somebody takes it: by the gateway that counts it, and by whoever writes it to the store."""

from collections.abc import Iterable
from typing import Final

from tidegate.types import Outcome, UsageCount

ROWS_MAX: Final = 10_000
"""Rows that wait; some 5 MB. Past them, new tenants are added up as `other`, so that nothing is lost."""
OTHER: Final = "other"

UsageKey = tuple[str, str, str, str, Outcome]
"""Day, tenant, class, model, outcome."""


class UsageSums:
    """What was used since the last `take`."""

    def __init__(self) -> None:
        self._rows: dict[UsageKey, tuple[int, int, int, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(
        self, key: UsageKey, requests: int, prompt_tokens: int, completion_tokens: int, engine_s: float = 0.0
    ) -> None:
        """Add to one row."""
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                key = (key[0], OTHER, *key[2:])
            row = self._rows.get(key, (0, 0, 0, 0.0))
        self._rows[key] = (row[0] + requests, row[1] + prompt_tokens, row[2] + completion_tokens, row[3] + engine_s)

    def add_all(self, usage: Iterable[UsageCount]) -> None:
        """Add what somebody else had taken."""
        for one in usage:
            key = (one.day, one.tenant, one.klass, one.model, one.outcome)
            self.add(key, one.requests, one.prompt_tokens, one.completion_tokens, one.engine_s)

    def take(self) -> tuple[UsageCount, ...]:
        """All of it, once. Who cannot deliver it adds it again."""
        rows, self._rows = self._rows, {}
        return tuple(UsageCount(*key, *row) for key, row in rows.items())
