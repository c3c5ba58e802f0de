"""What a key may use: requests and tokens a minute, tokens a day, answers at once.

A request takes what it may cost when it comes, and gives back at its end what it did not need, so that whatever is
admitted fits, however requests overlap. Nothing here waits, and no store is asked.
"""

import math
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from tidegate.errors import RateLimited
from tidegate.gateway.buckets import Bucket, Day, Meter
from tidegate.types import KeyView

MINUTE_S: Final = 60.0
BYTES_PER_TOKEN: Final = 4
"""Of a request's body: near enough for English and, at three bytes a character, for Chinese."""
ANSWER_TOKENS: Final = 256
"""Taken for the answer to a request that does not say how long it may become."""
SLOT_RETRY_S: Final = 1.0
"""When to come back for one of the answers at once: nobody knows when one ends."""
MAX_KNOWN_LINES: Final = 4096


class Slots(Protocol):
    """Answers at once."""

    @property
    def limit(self) -> int: ...

    def free(self) -> bool:
        """Whether one more may begin."""

    def take(self) -> None: ...

    def give(self) -> None: ...


class LocalSlots:
    """Answers at once, of this process alone."""

    __slots__ = ("limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def free(self) -> bool:
        return self.taken < self.limit

    def take(self) -> None:
        self.taken += 1

    def give(self) -> None:
        if self.taken:  # a request from before there was a limit has taken none
            self.taken -= 1


class Lease:
    """What one request has taken. It ends once; a second end does nothing."""

    __slots__ = ("_open", "_quota", "_request", "_reserved", "_taken", "_taken_of_day")

    def __init__(self, quota: "Quota", reserved: int, request: int, taken: int, taken_of_day: int) -> None:
        self._quota, self._reserved = quota, reserved
        self._request, self._taken, self._taken_of_day = request, taken, taken_of_day
        self._open = True

    def end(self, tokens: int | None) -> None:
        """The request has ended and used so many tokens; None: nobody knows, and what was taken is what it cost."""
        if self._open:
            self._open = False
            unused = 0 if tokens is None else self._reserved - tokens
            self._quota.leave(unused, self._taken, self._taken_of_day)

    def cancel(self) -> None:
        """The request was not served: it counts for nothing."""
        if self._open:
            self._open = False
            self._quota.leave(self._reserved, self._taken, self._taken_of_day)
            self._quota.forget_request(self._request)


class Quota:
    """The amounts of one key. Those that are None are not limited."""

    __slots__ = ("_clock", "_lines", "_unix", "day", "name", "requests", "slots", "tokens")

    def __init__(self, name: str, clock: Callable[[], float], unix: Callable[[], float]) -> None:
        self.name = name
        self._clock, self._unix = clock, unix
        self.requests: Meter | None = None
        self.tokens: Meter | None = None
        self.day: Meter | None = None
        self.slots: Slots | None = None
        self._lines: dict[tuple[int, float, bytes], bytes] = {}

    @property
    def counts_tokens(self) -> bool:
        """Whether `enter` has to be told what a request may cost."""
        return self.tokens is not None or self.day is not None

    def enter(self, prompt_tokens: int = 0, answer_tokens: int = 0) -> Lease:
        """Take what a request may cost. Raises RateLimited, and then nothing has been taken.

        The prompt's tokens are a guess and never more than the whole limit; the answer's are what the client asked for.
        """
        now_s, unix_s = self._clock(), self._unix()
        if self.slots is not None and not self.slots.free():
            raise _refused(self.name, "answers at once", self.slots.limit, SLOT_RETRY_S)
        if self.requests is not None and (wait_s := self.requests.wait_s(1, now_s)):
            raise _refused(self.name, "requests per min", self.requests.limit, wait_s)
        reserved = 0
        if self.tokens is not None or self.day is not None:
            reserved = self._fitting(prompt_tokens, answer_tokens)
        if self.tokens is not None and (wait_s := self.tokens.wait_s(reserved, now_s)):
            raise _refused(self.name, "tokens per min", self.tokens.limit, wait_s, code="tokens_limit_exceeded")
        if self.day is not None and (wait_s := self.day.wait_s(reserved, unix_s)):
            raise _refused(self.name, "tokens per day", self.day.limit, wait_s, code="insufficient_quota")
        if self.slots is not None:
            self.slots.take()
        request = self.requests.take(1, now_s) if self.requests is not None else 0
        taken = self.tokens.take(reserved, now_s) if self.tokens is not None else 0
        of_day = self.day.take(reserved, unix_s) if self.day is not None else 0
        return Lease(self, reserved, request, taken, of_day)

    def _fitting(self, prompt_tokens: int, answer_tokens: int) -> int:
        """What is taken for a request. Raises RateLimited for one that no wait would make fit."""
        most = min(meter.most for meter in (self.tokens, self.day) if meter is not None)
        if answer_tokens > most:
            raise RateLimited(
                f"the answer may have {answer_tokens} tokens, and the API key {self.name!r} has {most} at most at once;"
                " ask for fewer with max_tokens",
                code="tokens_limit_exceeded",
                param="max_tokens",
            )
        return min(prompt_tokens + answer_tokens, most)

    def leave(self, unused: int, taken: int, taken_of_day: int) -> None:
        """Give back a slot and tokens (negative: more were used)."""
        if self.slots is not None:
            self.slots.give()
        if unused:
            if self.tokens is not None:
                self.tokens.settle(unused, taken, self._clock())
            if self.day is not None:
                self.day.settle(unused, taken_of_day, self._unix())

    def forget_request(self, taken: int) -> None:
        """A request does not count after all."""
        if self.requests is not None:
            self.requests.settle(1, taken, self._clock())

    def headers(self) -> bytes:
        """`x-ratelimit-*` as OpenAI has them: what is left now, and in how long all of it will be there again."""
        lines = b""
        if self.requests is not None:
            lines = self._meter_lines(self.requests, self._clock(), b"requests")
        if self.tokens is not None:
            return lines + self._meter_lines(self.tokens, self._clock(), b"tokens")
        if self.day is not None:
            return lines + self._meter_lines(self.day, self._unix(), b"tokens")
        return lines

    def _meter_lines(self, meter: Meter, now_s: float, what: bytes) -> bytes:
        left = meter.left(now_s)
        reset_s = math.ceil(meter.full_in_s(left, now_s) * 100) / 100
        known = (left, reset_s, what)
        lines = self._lines.get(known)
        if lines is None:
            if len(self._lines) >= MAX_KNOWN_LINES:
                self._lines.clear()
            lines = self._lines[known] = (
                b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n"
                % (what, meter.limit, what, left, what, duration(reset_s).encode())
            )
        return lines


class Meters(Protocol):
    """Makes the amounts of keys. `old` is what the same key had before, with what has been used of it."""

    def requests(self, key: KeyView, limit: int, old: Meter | None) -> Meter: ...

    def tokens(self, key: KeyView, limit: int, old: Meter | None) -> Meter: ...

    def day(self, key: KeyView, limit: int, old: Meter | None) -> Meter: ...

    def slots(self, key: KeyView, limit: int, old: Slots | None) -> Slots: ...

    def share_with(self, processes: int) -> bool:
        """So many processes give from the same limits. Whether the amounts have to be made again for that."""

    def keep(self, digests: Iterable[str]) -> None:
        """Forget every other key."""


class LocalMeters:
    """Amounts of this process alone, which has `share` of each limit to give."""

    def __init__(self, clock: Callable[[], float], unix: Callable[[], float]) -> None:
        self._clock, self._unix = clock, unix
        self.share = 1.0

    def requests(self, key: KeyView, limit: int, old: Meter | None) -> Meter:  # noqa: ARG002 - whose it is matters elsewhere
        return self._bucket(limit, old)

    def tokens(self, key: KeyView, limit: int, old: Meter | None) -> Meter:  # noqa: ARG002
        return self._bucket(limit, old)

    def _bucket(self, limit: int, old: Meter | None) -> Bucket:
        now_s = self._clock()
        if isinstance(old, Bucket):
            return old.resized(limit, MINUTE_S, now_s, share=self.share)
        return Bucket(limit, MINUTE_S, now_s, share=self.share)

    def day(self, key: KeyView, limit: int, old: Meter | None) -> Meter:  # noqa: ARG002
        now_s = self._unix()
        return (
            old.resized(limit, now_s, share=self.share) if isinstance(old, Day) else Day(limit, now_s, share=self.share)
        )

    def slots(self, key: KeyView, limit: int, old: Slots | None) -> Slots:  # noqa: ARG002
        slots = LocalSlots(max(1, int(limit * self.share)))
        if isinstance(old, LocalSlots):
            slots.taken = old.taken
        return slots

    def share_with(self, processes: int) -> bool:
        share, self.share = self.share, 1.0 / processes
        return share != self.share

    def keep(self, digests: Iterable[str]) -> None:
        """Nothing is kept here."""


Limits = tuple[int | None, int | None, int | None, int | None]
NO_LIMITS: Final[Limits] = (None, None, None, None)


class Quotas:
    """The quotas of all keys. They outlive snapshots: a key's are the same for as long as there is that key."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, unix: Callable[[], float] = time.time) -> None:
        self.clock, self.unix = clock, unix
        self.meters: Meters = LocalMeters(clock, unix)
        self._quotas: dict[str, tuple[Limits, Quota]] = {}

    def apply(self, keys: Iterable[KeyView], *, processes: int = 1) -> None:
        """Take over the limits of a new snapshot, shared with so many processes; keys that are gone are forgotten."""
        anew = self.meters.share_with(processes)
        known, self._quotas = self._quotas, {}
        for key in keys:
            limits = (key.requests_per_minute, key.tokens_per_minute, key.tokens_per_day, key.concurrent_streams)
            if limits == NO_LIMITS:
                continue
            had, quota = known.get(key.digest) or (NO_LIMITS, Quota(key.name, self.clock, self.unix))
            if anew or had != limits:
                self._fit(quota, key)
            self._quotas[key.digest] = (limits, quota)
        self.meters.keep(self._quotas)

    def _fit(self, quota: Quota, key: KeyView) -> None:
        per_minute, tokens, day, at_once = (
            key.requests_per_minute,
            key.tokens_per_minute,
            key.tokens_per_day,
            key.concurrent_streams,
        )
        meters = self.meters
        quota.requests = None if per_minute is None else meters.requests(key, per_minute, quota.requests)
        quota.tokens = None if tokens is None else meters.tokens(key, tokens, quota.tokens)
        quota.day = None if day is None else meters.day(key, day, quota.day)
        quota.slots = None if at_once is None else meters.slots(key, at_once, quota.slots)

    def use(self, meters: Meters) -> None:
        """Count elsewhere from the next `apply` on."""
        self.meters = meters
        self._quotas = {digest: (NO_LIMITS, quota) for digest, (_, quota) in self._quotas.items()}

    def of(self, key: KeyView) -> Quota | None:
        """A key's quota; None for one without any."""
        found = self._quotas.get(key.digest)
        return found[1] if found is not None else None


def _refused(name: str, what: str, limit: int, wait_s: float, code: str = "rate_limit_exceeded") -> RateLimited:
    return RateLimited(
        f"rate limit reached for the API key {name!r}: {limit} {what}; try again in {duration(wait_s)}",
        code=code,
        retry_after_s=wait_s,
    )


def duration(seconds: float) -> str:
    """A span of time as OpenAI writes it: `88ms`, `7.66s`, `6m0s`, `23h59m0s`. Rounded up."""
    thousandths = math.ceil(seconds * 1000 - 1e-6)
    if thousandths < 1000:
        return f"{thousandths}ms" if thousandths > 0 else "0s"
    if thousandths < 60_000:
        return f"{thousandths / 1000:g}s"
    minutes, rest_s = divmod(math.ceil(thousandths / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest_s}s" if hours else f"{minutes}m{rest_s}s"
