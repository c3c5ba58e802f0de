"""Quotas that several gateways share: what is left stands in Redis, and each gateway leases a block of it.

A request takes from what this process holds, and no request ever waits for Redis: ten times a second what was taken is
made up for in the background, all keys in one round trip. A gateway may be ahead of Redis by less than one block and
one request (`_BLOCKS` to a limit), and only while the last answer was that there is enough: so that is how much each
gateway can exceed a limit by, once; the debt is paid before anything is leased again. While Redis is away each gateway
goes on with its share of every limit.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate import logs
from tidegate.gateway.buckets import DAY_S, Bucket, Day, Meter
from tidegate.gateway.quotas import MINUTE_S, LocalMeters, Quotas, Slots
from tidegate.types import KeyView, RedisOptions

if TYPE_CHECKING:
    from redis.asyncio import Redis

SYNC_S: Final = 0.1
PATIENCE_S: Final = 1.0
"""How long Redis may take for a round trip before it counts as away, and how long it is left alone then."""
ALIVE_S: Final = 5.0
"""How long a gateway that says nothing counts as one of those that share, and holds its places."""
IDLE_S: Final = 5.0
"""When a key that nobody uses gives back what is leased for it."""
_BLOCKS: Final = 20
PREFIX: Final = "tidegate:quota:"

_LEASE: Final = """
local t = redis.call('TIME')
local now = t[1] + t[2] / 1e6
local capacity, rate, must, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local had = redis.call('HMGET', KEYS[1], 'level', 'at', 'capacity')
local level = capacity
if had[1] then
  level = tonumber(had[1]) + (now - tonumber(had[2])) * rate + math.max(0, capacity - tonumber(had[3]))
end
level = math.min(capacity, level) - must
local give = want
if want > 0 then give = math.max(0, math.min(want, math.floor(level))) end
level = math.min(capacity, level - give)
redis.call('HSET', KEYS[1], 'level', string.format('%.17g', level), 'at', string.format('%.17g', now), 'capacity', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return {string.format('%.17g', give), string.format('%.17g', level)}
"""
"""A token bucket: a debt is charged whatever is there, a wish is given as far as there is. Gives what was given and left."""

_PLACES: Final = """
local t = redis.call('TIME')
local now = t[1] + t[2] / 1e6
local me, limit, busy, want, alive = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local others = 0
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local held, till = string.match(all[i + 1], '^(%d+) ([%d.]+)$')
  if all[i] ~= me then
    if tonumber(till) < now then redis.call('HDEL', KEYS[1], all[i]) else others = others + tonumber(held) end
  end
end
local grant = math.max(busy, math.min(want, limit - others), 0)
if grant > 0 then
  redis.call('HSET', KEYS[1], me, string.format('%d %.3f', grant, now + alive))
  redis.call('EXPIRE', KEYS[1], 60)
else
  redis.call('HDEL', KEYS[1], me)
end
return grant
"""
"""Places for answers at once: those of gateways that are gone are free again. Gives how many places are ours now."""

_GATEWAYS: Final = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
redis.call('EXPIRE', KEYS[1], 60)
return redis.call('ZCARD', KEYS[1])
"""
"""How many gateways share."""


class LeasedMeter:
    """Units leased in blocks; a day's allowance where `period_s` is a day, else a token bucket."""

    def __init__(self, key: str, limit: int, period_s: float, now_s: float) -> None:
        self.key = key
        self.limit = self.most = limit
        self.block = max(1, limit // _BLOCKS)
        self.per_s = limit / period_s
        self._is_day = period_s == DAY_S
        self._day = now_s // DAY_S
        self._stock = 0.0
        self._central = float(limit)
        self._open = True
        """Whether Redis had enough when it was asked last."""
        self._wanted = 0
        self._used_s = now_s
        self._touched = False
        self._local: Meter | None = None

    def wait_s(self, units: int, now_s: float) -> float:
        self._turn(now_s)
        if self._local is not None:
            return self._local.wait_s(min(units, self._local.most), now_s)
        if self._stock >= units or (self._open and self._stock > -self.block):
            return 0.0
        self._wanted, self._used_s, self._touched = max(self._wanted, units), now_s, True
        missing = units - max(0.0, self._stock) - max(0.0, self._central)
        return max(2 * SYNC_S, (self._day + 1) * DAY_S - now_s if self._is_day else missing / self.per_s)

    def take(self, units: int, now_s: float) -> int:
        self._stock -= units
        self._used_s, self._touched = now_s, True
        if self._local is not None:
            return self._local.take(units, now_s)
        return int(self._day)

    def settle(self, unused: int, taken: int, now_s: float) -> None:
        self._turn(now_s)
        self._touched = True
        if unused < 0 or not self._is_day or taken == self._day:
            self._stock += unused
            if self._local is not None:
                self._local.settle(unused, taken, now_s)

    def left(self, now_s: float) -> int:
        if self._local is not None:
            return self._local.left(now_s)
        return min(self.limit, max(0, int(self._stock + self._central)))

    def full_in_s(self, left: int, now_s: float) -> float:
        if self._is_day:
            return (now_s // DAY_S + 1) * DAY_S - now_s if left < self.limit else 0.0
        return (self.limit - left) / self.per_s

    def _turn(self, now_s: float) -> None:
        if self._is_day and now_s // DAY_S > self._day:
            self._day = now_s // DAY_S
            self._stock, self._central, self._open, self._wanted = 0.0, float(self.limit), True, 0

    # in the background

    def due(self, now_s: float) -> bool:
        """Whether there is something to tell Redis, or to hear from it."""
        idle = now_s - self._used_s > IDLE_S
        return self._touched or not self._open or (idle and self._stock > 0)

    def question(self, now_s: float, *, last: bool = False) -> tuple[str, list[Any], float]:
        """The script's key and arguments, and the debt that they charge."""
        self._turn(now_s)
        self._touched = False
        if self._local is not None:  # what was used while Redis was away is owed, as far as a full limit can be
            self._stock = max(self._stock, -float(self.limit))
        must = max(0.0, -self._stock)
        target = 0 if last or now_s - self._used_s > IDLE_S else max(self.block, self._wanted)
        want = int(target - max(0.0, self._stock))
        if -2 * target < want < 0 and target:
            want = 0
        self._wanted = 0
        key = f"{self.key}:{int(self._day)}" if self._is_day else self.key
        rate, keep_s = (0.0, 2 * DAY_S) if self._is_day else (self.per_s, 3600)
        return key, [self.limit, repr(rate), repr(must), want, keep_s], must

    def hear(self, given: float, level: float, *, want: int, must: float) -> None:
        """What Redis answered."""
        self._stock += must + given
        self._central = level
        self._open = given >= want

    def away(self, share: float, now_s: float) -> None:
        """Go on alone, with a share of the limit, and of what was left of it."""
        if self._local is not None:
            return
        if self._is_day:
            self._local = Day(self.limit, now_s, share=share)
        else:
            self._local = Bucket(self.limit, self.limit / self.per_s, now_s, share=share)
        self._local.take(max(0, self._local.most - int(share * max(0.0, self._central))), now_s)

    def back(self) -> None:
        """Redis is there again."""
        self._local = None
        self._touched = True


class LeasedSlots:
    """Answers at once, of all gateways together. One place may be taken ahead of Redis while it had enough."""

    def __init__(self, key: str, limit: int) -> None:
        self.key = key
        self.limit = limit
        self.taken = 0
        self._held = 0
        self._open = True
        self._touched = False
        self._alone: int | None = None

    def free(self) -> bool:
        if self._alone is not None:
            return self.taken < self._alone
        if self.taken < self._held + self._open:
            return True
        self._touched = True
        return False

    def take(self) -> None:
        self.taken += 1
        self._touched = True

    def give(self) -> None:
        if self.taken:  # a request from before there was a limit has taken none
            self.taken -= 1
            self._touched = True

    def due(self) -> bool:
        """Whether there is something to tell, were it only that we still hold places."""
        return self._touched or self._held > 0 or not self._open

    def question(self, me: str, *, last: bool = False) -> tuple[str, list[Any]]:
        """The script's key and arguments."""
        spare = 0 if last or not (self._touched or self.taken) else max(1, self.limit // _BLOCKS)
        self._touched = False
        return self.key, [me, self.limit, self.taken, min(self.limit, self.taken + spare), ALIVE_S]

    def hear(self, grant: int, *, want: int) -> None:
        """What Redis answered."""
        self._held = grant
        self._open = grant >= want and grant < self.limit

    def away(self, share: float) -> None:
        """Go on alone, with a share of the places."""
        self._alone = max(1, int(self.limit * share))

    def back(self) -> None:
        """Redis is there again."""
        self._alone = None
        self._touched = True


class RedisMeters:
    """Makes amounts that stand in Redis. `run` keeps them and Redis in step until it is cancelled."""

    def __init__(self, options: RedisOptions, clock: Callable[[], float], unix: Callable[[], float]) -> None:
        self._options = options
        self._clock, self._unix = clock, unix
        self._me = secrets.token_hex(8)
        self._meters: dict[tuple[str, str], LeasedMeter] = {}
        self._slots: dict[str, LeasedSlots] = {}
        self._processes = 1
        self._gateways = 1
        self._away = False

    # Meters

    def requests(self, key: KeyView, limit: int, old: Meter | None) -> Meter:  # noqa: ARG002 - what was used stands in Redis
        return self._meter(key, "requests", limit, MINUTE_S, self._clock())

    def tokens(self, key: KeyView, limit: int, old: Meter | None) -> Meter:  # noqa: ARG002 - as above
        return self._meter(key, "tokens", limit, MINUTE_S, self._clock())

    def day(self, key: KeyView, limit: int, old: Meter | None) -> Meter:  # noqa: ARG002 - as above
        return self._meter(key, "day", limit, DAY_S, self._unix())

    def slots(self, key: KeyView, limit: int, old: Slots | None) -> Slots:
        slots = self._slots[key.digest] = LeasedSlots(_redis_key(key, "places"), limit)
        if isinstance(old, LeasedSlots):
            slots.taken = old.taken
        if self._away:
            slots.away(self._share)
        return slots

    def _meter(self, key: KeyView, what: str, limit: int, period_s: float, now_s: float) -> LeasedMeter:
        meter = self._meters[key.digest, what] = LeasedMeter(_redis_key(key, what), limit, period_s, now_s)
        if self._away:
            meter.away(self._share, now_s)
        return meter

    def share_with(self, processes: int) -> bool:
        self._processes = processes
        return False

    def keep(self, digests: Iterable[str]) -> None:
        kept = set(digests)
        self._meters = {name: meter for name, meter in self._meters.items() if name[0] in kept}
        self._slots = {digest: slots for digest, slots in self._slots.items() if digest in kept}

    @property
    def _share(self) -> float:
        return 1.0 / max(self._processes, self._gateways)

    # in step with Redis

    async def run(self) -> None:
        """Lease and give back until cancelled; then what is held goes back."""
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError

        redis = Redis.from_url(
            self._options.url,
            password=self._password(),
            socket_timeout=PATIENCE_S,
            socket_connect_timeout=PATIENCE_S,
            retry=Retry(NoBackoff(), 0),  # the loop below is the retry
        )
        try:
            while True:
                try:
                    async with asyncio.timeout(2 * PATIENCE_S):
                        await self._sync(redis)
                    self._found()
                    await asyncio.sleep(SYNC_S)
                except (RedisError, OSError, TimeoutError) as error:
                    self._lost(error)
                    await asyncio.sleep(PATIENCE_S)
        finally:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    if not self._away:
                        await self._sync(redis, last=True)
            await redis.aclose()

    def _password(self) -> str | None:
        """The password, where a file holds it; one in the URL counts before it."""
        file = self._options.password_file
        try:
            return Path(file).read_text("utf-8").strip() if file else None
        except OSError as error:
            logs.get().warning("redis's password cannot be read", file=file, cause=error.strerror)
            return None

    async def _sync(self, redis: "Redis", *, last: bool = False) -> None:
        pipe = redis.pipeline(transaction=False)
        pipe.eval(_GATEWAYS, 1, f"{PREFIX}gateways", self._me, ALIVE_S)
        hearers: list[Callable[[Any], None]] = [self._count_gateways]
        for (_, what), meter in self._meters.items():
            now_s = self._unix() if what == "day" else self._clock()
            if last or self._away or meter.due(now_s):
                key, arguments, must = meter.question(now_s, last=last)
                pipe.eval(_LEASE, 1, key, *arguments)
                hearers.append(_hearer(meter, must, arguments[3]))
        for slots in self._slots.values():
            if last or self._away or slots.due():
                key, arguments = slots.question(self._me, last=last)
                pipe.eval(_PLACES, 1, key, *arguments)
                hearers.append(_slots_hearer(slots, arguments[3]))
        for hear, answer in zip(hearers, await pipe.execute(), strict=True):
            hear(answer)

    def _count_gateways(self, answer: int) -> None:
        self._gateways = max(1, int(answer))

    def _lost(self, error: BaseException) -> None:
        if not self._away:
            self._away = True
            logs.get().warning(
                "redis is away; quotas go on with this gateway's share",
                cause=str(error) or type(error).__name__,
                share=round(self._share, 3),
            )
        for (_, what), meter in self._meters.items():
            meter.away(self._share, self._unix() if what == "day" else self._clock())
        for slots in self._slots.values():
            slots.away(self._share)

    def _found(self) -> None:
        if self._away:
            self._away = False
            logs.get().info("redis is back; quotas are shared again", gateways=self._gateways)
            for meter in self._meters.values():
                meter.back()
            for slots in self._slots.values():
                slots.back()


def _hearer(meter: LeasedMeter, must: float, want: int) -> Callable[[Any], None]:
    return lambda answer: meter.hear(float(answer[0]), float(answer[1]), want=want, must=must)


def _slots_hearer(slots: LeasedSlots, want: int) -> Callable[[Any], None]:
    return lambda answer: slots.hear(int(answer), want=want)


def _redis_key(key: KeyView, what: str) -> str:
    """Half of a key's digest tells keys apart, and is no use to whoever reads Redis."""
    return f"{PREFIX}{key.digest[:32]}:{what}"


class Leasing:
    """Has a gateway's quotas counted where the settings say: in Redis, or in this process."""

    def __init__(self, quotas: Quotas, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        """`start` runs something beside the requests until the gateway ends."""
        self._quotas, self._start = quotas, start
        self._options = RedisOptions()
        self._running: asyncio.Task[None] | None = None

    def apply(self, options: RedisOptions) -> None:
        """Follow the settings; the quotas' next `apply` makes the amounts. What was used meanwhile is not carried over."""
        if options == self._options:
            return
        self._options = options
        if self._running is not None:
            self._running.cancel()
            self._running = None
        if not options.url:
            self._quotas.use(LocalMeters(self._quotas.clock, self._quotas.unix))
            return
        meters = RedisMeters(options, self._quotas.clock, self._quotas.unix)
        self._quotas.use(meters)
        self._running = self._start(meters.run())
