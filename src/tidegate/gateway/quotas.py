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
MAX_KNOWN_LINES: Final = 256


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

    __slots__ = (
        "_clock",
        "_most",
        "_told_requests",
        "_told_tokens",
        "_unix",
        "day",
        "name",
        "requests",
        "slots",
        "tokens",
    )

    def __init__(self, name: str, clock: Callable[[], float], unix: Callable[[], float]) -> None:
        self.name = name
        self._clock, self._unix = clock, unix
        self.fit(None, None, None, None)

    def fit(self, requests: Meter | None, tokens: Meter | None, day: Meter | None, slots: Slots | None) -> None:
        """Count with these from now on."""
        self.requests, self.tokens, self.day, self.slots = requests, tokens, day, slots
        self._most = min((meter.most for meter in (tokens, day) if meter is not None), default=0)
        counted = tokens if tokens is not None else day
        self._told_requests = Told(requests, b"requests") if requests is not None else None
        self._told_tokens = Told(counted, b"tokens") if counted is not None else None

    @property
    def counts_tokens(self) -> bool:
        """Whether `enter` has to be told what a request may cost."""
        return self._most > 0

    def enter(self, prompt_tokens: int = 0, answer_tokens: int = 0) -> Lease:
        """Take what a request may cost. Raises RateLimited, and then nothing has been taken.

        The prompt's tokens are a guess and never more than the whole limit; the answer's are what the client asked for.
        """
        now_s = self._clock()
        slots, requests = self.slots, self.requests
        if slots is not None and not slots.free():
            raise _refused(self.name, "answers at once", slots.limit, SLOT_RETRY_S)
        if requests is not None and (wait_s := requests.wait_s(1, now_s)):
            raise _refused(self.name, "requests per min", requests.limit, wait_s)
        reserved = taken = of_day = 0
        if self._most:
            reserved, taken, of_day = self._take_tokens(prompt_tokens, answer_tokens, now_s)
        if slots is not None:
            slots.take()
        return Lease(self, reserved, requests.take(1, now_s) if requests is not None else 0, taken, of_day)

    def _take_tokens(self, prompt_tokens: int, answer_tokens: int, now_s: float) -> tuple[int, int, int]:
        most, tokens, day = self._most, self.tokens, self.day
        if answer_tokens > most:
            raise RateLimited(
                f"the answer may have {answer_tokens} tokens, and the API key {self.name!r} has {most} at most at once;"
                " ask for fewer with max_tokens",
                code="tokens_limit_exceeded",
                param="max_tokens",
            )
        reserved = min(prompt_tokens + answer_tokens, most)
        unix_s = self._unix() if day is not None else 0.0
        if tokens is not None and (wait_s := tokens.wait_s(reserved, now_s)):
            raise _refused(self.name, "tokens per min", tokens.limit, wait_s, code="tokens_limit_exceeded")
        if day is not None and (wait_s := day.wait_s(reserved, unix_s)):
            raise _refused(self.name, "tokens per day", day.limit, wait_s, code="insufficient_quota")
        taken = tokens.take(reserved, now_s) if tokens is not None else 0
        return reserved, taken, day.take(reserved, unix_s) if day is not None else 0

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
        """`x-ratelimit-*` as OpenAI has them: what is left now, and in how long all of it will be there again.

        Tokens are those of a minute, where these are limited, else those of a day.
        """
        lines = self._told_requests.lines(self._clock()) if self._told_requests is not None else b""
        if self._told_tokens is not None:
            lines += self._told_tokens.lines(self._clock() if self.tokens is not None else self._unix())
        return lines


class Told:
    """The headers that tell of one amount. Often the same is left again, and then they are the same."""

    __slots__ = ("_format", "_known", "_meter")

    def __init__(self, meter: Meter, what: bytes) -> None:
        self._meter = meter
        self._format = b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %%d\r\nx-ratelimit-reset-%b: %%b\r\n" % (
            what,
            meter.limit,
            what,
            what,
        )
        self._known: dict[tuple[int, int], bytes] = {}

    def lines(self, now_s: float) -> bytes:
        """What is left at this time of the meter's."""
        left = self._meter.left(now_s)
        known = (left, int(now_s))
        lines = self._known.get(known)
        if lines is None:
            if len(self._known) >= MAX_KNOWN_LINES:
                self._known.clear()
            reset = duration(self._meter.full_in_s(left, now_s)).encode()
            lines = self._known[known] = self._format % (left, reset)
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

    def tokens(self, key: KeyView, limit: int, old: Meter | None) -> Meter:  # noqa: ARG002 - as above
        return self._bucket(limit, old)

    def _bucket(self, limit: int, old: Meter | None) -> Bucket:
        now_s = self._clock()
        if isinstance(old, Bucket):
            return old.resized(limit, MINUTE_S, now_s, share=self.share)
        return Bucket(limit, MINUTE_S, now_s, share=self.share)

    def day(self, key: KeyView, limit: int, old: Meter | None) -> Meter:  # noqa: ARG002 - as above
        now_s = self._unix()
        return (
            old.resized(limit, now_s, share=self.share) if isinstance(old, Day) else Day(limit, now_s, share=self.share)
        )

    def slots(self, key: KeyView, limit: int, old: Slots | None) -> Slots:  # noqa: ARG002 - as above
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
        quota.fit(
            None if per_minute is None else meters.requests(key, per_minute, quota.requests),
            None if tokens is None else meters.tokens(key, tokens, quota.tokens),
            None if day is None else meters.day(key, day, quota.day),
            None if at_once is None else meters.slots(key, at_once, quota.slots),
        )

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
