"""Looks that a limiter asks for, over real sockets: soon, spaced, and no evidence about health."""

import asyncio
import contextlib
import itertools
import time

import pytest

from gateway.wire import until
from tidegate.engines.fake_server import FakeServer, FakeServerOptions
from tidegate.gateway.observer import SPACING_S
from tidegate.types import DialectName, GatewayOptions, ReplicaState, ReplicaView

LOOK_S = 0.6


@pytest.fixture
async def observed(gateway):
    """`async with observed(…) as (engine, replica, observer, seen)`; `seen` are the loads that `on_load` was told."""

    @contextlib.asynccontextmanager
    async def start(*, look_s: float = LOOK_S, stuck_s: float = 30.0, pid: int | None = None, **options):
        async with FakeServer(FakeServerOptions(**options)) as engine:
            view = ReplicaView("pool-0", "pool", "m", engine.url, engine.options.dialect, ReplicaState.READY, pid=pid)
            running = await gateway(view, options=GatewayOptions(stuck_s=stuck_s))
            observer, replica = running.gateway.observer, running.replica()
            seen = []
            observer.on_load = lambda whose, load: seen.append((time.monotonic(), whose, load))
            observer.look_s = look_s
            observer.begin([replica])
            try:
                yield engine, replica, observer, seen
            finally:
                await observer.close()

    return start


async def test_every_look_is_told_also_one_that_could_read_nothing(observed):
    async with observed(look_s=0.1) as (engine, replica, observer, seen):
        await until(lambda: len(seen) >= 2, "two looks")
        assert all(whose is replica and load.running == 0 for _, whose, load in seen)
        assert observer.load(replica) is seen[-1][2]
        engine.set_fault("metrics_status=500")
        await until(lambda: seen[-1][2] is None, "one that read nothing")
        assert observer.load(replica) is not None, "what was read last still holds"


async def test_a_look_that_is_asked_for_comes_soon_and_the_second_goes_on_as_before(observed):
    async with observed() as (_engine, replica, observer, seen):
        await until(lambda: seen, "the first look")
        first_s = seen[0][0]
        await asyncio.sleep(2 * SPACING_S)
        asked_s = time.monotonic()
        observer.wake(replica)
        await until(lambda: len(seen) == 2, "the one between")
        assert seen[1][0] - asked_s < LOOK_S / 2
        await until(lambda: len(seen) == 3, "the next of the rhythm")
        assert LOOK_S - 0.01 <= seen[2][0] - first_s < 2 * LOOK_S


async def test_however_many_ask_looks_keep_their_distance(observed):
    async with observed() as (_engine, replica, observer, seen):
        await until(lambda: seen, "the first look")
        began_s = time.monotonic()
        while time.monotonic() - began_s < 2 * LOOK_S:
            for _ in range(100):
                observer.wake(replica)
            await asyncio.sleep(0.001)
        times = [at_s for at_s, _, _ in seen]
        assert len(times) > 6, "they were looked at again and again"
        assert len(times) <= 2 * LOOK_S / SPACING_S + 2
        # Told at the end of a look, which begins no sooner than the spacing after the one before ended.
        between = [one for one in itertools.pairwise(times) if one[1] - one[0] < SPACING_S * 0.9]
        assert len(between) <= 3, "but for the looks of the rhythm, which wait for nobody"


async def test_one_that_asks_during_a_look_gets_another_and_one_that_is_not_watched_none(observed):
    async with observed() as (_engine, replica, observer, seen):
        await until(lambda: seen, "the first look")
        observer.on_load = lambda whose, load: (seen.append((0.0, whose, load)), observer.wake(replica))[0]
        observer.wake(replica)
        await until(lambda: len(seen) >= 4, "asked for by what the look before told", deadline_s=LOOK_S)
        await observer.close()
        observer.wake(replica)
        assert observer.load(replica) is None


async def test_still_looks_are_counted_by_the_rhythm_alone(observed):
    async with observed(look_s=0.3, stuck_s=0.2, gap_ms=20, tokens=10_000) as (engine, replica, observer, seen):
        events = []
        take = replica.take
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(replica), "take", lambda _self, event: (events.append(event), take(event))[1])
            await until(lambda: len(events) >= 2, "two of the rhythm")
            told, looks = len(events), len(seen)
            for _ in range(8):
                count = len(seen)
                observer.wake(replica)
                await until(lambda count=count: len(seen) > count, "a look")
        assert len(seen) - looks >= 8
        assert len(events) - told <= (len(seen) - looks) / 2, "the health heard of those of the rhythm alone"
        assert engine.counters.generation_tokens == 0


async def test_what_moved_before_a_look_between_has_moved_for_the_next_of_the_rhythm(observed):
    async with observed(look_s=30.0) as (_engine, replica, observer, seen):
        await until(lambda: seen, "the first look")
        progress, load = observer.progress(replica), seen[0][2]
        grown = type(load)(**{name: getattr(load, name) for name in load.__struct_fields__} | {"iterations_total": 9})
        progress.read(grown, 1.0)
        assert progress.look(grown, 2.0, 30.0).moved
        assert not progress.look(grown, 3.0, 30.0).moved


async def test_a_refused_connection_at_a_look_between_is_held_against_nobody(observed):
    async with observed(look_s=2.0) as (engine, replica, observer, seen):
        await until(lambda: seen, "the first look")
        engine.crash()
        for _ in range(5):
            count = len(seen)
            observer.wake(replica)
            await until(lambda count=count: len(seen) > count, "a look")
        assert seen[-1][2] is None
        assert replica.health.sound


@pytest.mark.parametrize(("pid", "kv_tokens"), [(None, None), (2**22 + 1, 4 * 4096)])
async def test_slots_of_llama_cpp_come_with_its_load_and_the_cache_of_a_child(observed, pid, kv_tokens):
    options = {"dialect": DialectName.LLAMACPP, "slots": 4, "context_tokens": 4096}
    async with observed(look_s=0.1, pid=pid, **options) as (_engine, replica, observer, seen):
        await until(lambda: seen, "the first look")
        assert (seen[0][2].slots, seen[0][2].kv_tokens) == (4, kv_tokens)
        assert observer.load(replica).slots == 4
        await until(lambda: len(seen) > 2, "the next")
        assert seen[-1][2].slots == 4, "asked for once, told always"


async def test_an_engine_of_another_kind_is_not_asked_for_slots(observed):
    async with observed(slots=4) as (_engine, _replica, _observer, seen):
        await until(lambda: seen, "the first look")
        assert seen[0][2].slots is None
