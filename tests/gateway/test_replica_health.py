"""Replicas that die, hang, err, restart or are merely slow, watched over real sockets."""

import asyncio
import contextlib
import json
import os
import time

import pytest

from gateway.wire import until
from tidegate.engines.fake_server import FakeServer, FakeServerOptions
from tidegate.gateway.health import Failed, Failure
from tidegate.gateway.progress import cpu_s
from tidegate.types import DialectName, GatewayOptions, ReplicaState, ReplicaView

CHAT = "/v1/chat/completions"
STUCK_S = 1.0


def view(engine: FakeServer, name: str = "pool-0", **options) -> ReplicaView:
    options = {"dialect": engine.options.dialect, "state": ReplicaState.READY, "model": "m", "pool": "pool", **options}
    return ReplicaView(id=name, url=engine.url, **options)


def body(text: str = "Hi", *, stream: bool = False) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}).encode()


@contextlib.asynccontextmanager
async def fakes(count: int, **options):
    """So many fake engines."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeServer(FakeServerOptions(**options))) for _ in range(count)]


@pytest.fixture
async def watched(gateway):
    """`await watched(views…)`: a gateway that watches these replicas."""
    begun = []

    async def start(*views, stuck_s: float = STUCK_S, look_s: float = 0.3):
        running = await gateway(*views, options=GatewayOptions(stuck_s=stuck_s))
        running.gateway.observer.look_s = look_s
        running.gateway.observer.begin(running.gateway.fleet.replicas.values())
        begun.append(running)
        return running

    yield start
    for running in begun:
        await running.gateway.observer.close()


@contextlib.asynccontextmanager
async def streams(running, count: int, text: str):
    """So many clients that read a stream."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await running.connect()) for _ in range(count)]
        for client in clients:
            client.request("POST", CHAT, body(text, stream=True))
        yield clients


def loads_read(running, *names: str):
    """Whether each of these replicas' metrics were read."""
    gateway = running.gateway
    known = (gateway.observer.progress(running.replica(name)) for name in names)
    return all(progress is not None and progress.load is not None for progress in known)


async def looks(running, name: str, count: int) -> None:
    """Wait for so many looks at a replica."""
    seen = set()

    def enough() -> bool:
        seen.add(running.gateway.observer.progress(running.replica(name)).looked_s)
        return len(seen) > count

    await until(enough, f"{count} looks", deadline_s=3 * count + 5)


# dead and back


async def test_a_replica_whose_process_died_is_out_without_a_single_request(watched):
    async with fakes(2) as (one, two):
        running = await watched(view(one), view(two, "pool-1"))
        await until(lambda: loads_read(running, "pool-0", "pool-1"), "both being read")
        one.crash()
        await until(lambda: running.replica().rank == 3, "it being out")
        assert running.replica("pool-1").rank == 0
        assert running.gateway.report().replicas[0].health == "connect"
        assert running.replica().outs == {"connect": 1}
        async with await running.connect() as client:
            for _ in range(10):
                assert (await client.ask("POST", CHAT, body())).headers["x-tidegate-replica"] == "pool-1"
    assert running.replica().requests == 0


async def test_with_all_replicas_down_503_comes_at_once_and_one_that_comes_back_serves_by_itself(watched):
    """Case 13: no restart, no queue that grows."""
    async with fakes(2) as (one, two):
        running = await watched(view(one), view(two, "pool-1"))
        port = int(one.url.rpartition(":")[2])
        one.crash()
        two.crash()
        await until(lambda: running.replica().rank == running.replica("pool-1").rank == 3, "both being out")
        async with await running.connect() as client:
            assert (await client.ask("GET", "/ready")).status == 503
            for _ in range(5):
                began = time.monotonic()
                answer = await client.ask("POST", CHAT, body())
                assert (answer.status, int(answer.headers["retry-after"]) >= 1) == (503, True)
                assert time.monotonic() - began < 10, "the longest wait of its class is 30 s"
            again = FakeServer()
            await again.start(port=port)
            try:
                await until(lambda: running.replica().rank == 0, "it being back")
                assert (await client.ask("POST", CHAT, body())).status == 200
                assert (await client.ask("GET", "/ready")).status == 200
            finally:
                await again.close()


async def test_an_engine_that_is_still_loading_is_not_asked_before_it_has_given_a_token(watched):
    async with fakes(2) as (one, two):
        running = await watched(view(one), view(two, "pool-1"))
        one.set_fault("status=503")
        one.set_fault("health_status=503")
        for _ in range(3):
            running.replica().failed(Failure.CONNECT)
        await until(lambda: running.replica().health.out is Failure.STATUS, "the probe telling what it is now")
        one.faults.clear()
        one.set_fault("status=500")  # /health is well again, requests are not
        probed = one.counters
        await asyncio.sleep(1.5)
        assert running.replica().health.out is Failure.STATUS, "its /health alone brings nobody back"
        assert probed.generation_tokens == 0
        one.clear_faults()
        await until(lambda: running.replica().rank == 0, "it being back", deadline_s=3)
        assert one.counters.generation_tokens == 2, "two tokens proved it"


async def test_one_refused_connection_puts_the_others_first_until_the_next_look(watched):
    async with fakes(2) as (one, two):
        running = await watched(view(one), view(two, "pool-1"))
        running.replica().failed(Failure.CONNECT)
        assert running.replica().health.out is None
        entry = running.gateway.fleet.model("m")
        assert [r.view.id for r in entry.askable(CHAT)] == ["pool-1"]
        await until(lambda: running.replica().rank == 0, "a look that clears it", deadline_s=2)
        assert len(entry.askable(CHAT)) == 2
        assert one.counters.generation_tokens == 0, "that took no token"


async def test_an_engine_that_fails_every_request_is_out_and_no_client_sees_it(watched):
    async with fakes(2) as (one, two):
        running = await watched(view(one), view(two, "pool-1"))
        one.set_fault("status=500")
        async with await running.connect() as client:
            for _ in range(40):
                assert (await client.ask("POST", CHAT, body())).status == 200
            assert running.replica().health.out is Failure.STATUS
            assert running.replica().requests == 3, "three bad ones to leave"
            one.clear_faults()
            await until(lambda: running.replica().rank == 0, "it being back", deadline_s=3)
            for _ in range(40):
                assert (await client.ask("POST", CHAT, body())).status == 200
            assert running.replica().requests > 3


@pytest.mark.parametrize("fault", ["bad_request", "status=404", "status=429", "context_length", "status=501"])
async def test_a_refused_request_never_counts_against_the_replica(watched, fault):
    """Case 5: one client's bad requests take nobody out."""
    async with fakes(2) as (one, two):
        running = await watched(view(one), view(two, "pool-1"))
        for engine in (one, two):
            engine.set_fault(fault)
        async with await running.connect() as client:
            for _ in range(12):
                assert (await client.ask("POST", CHAT, body())).status >= 400
        assert running.replica().health.sound
        assert running.replica("pool-1").health.sound


# stuck, slow, unreadable


async def test_an_engine_that_hangs_with_work_is_out_and_comes_back_when_it_moves_again(watched):
    """Its /health answers all the time."""
    async with fakes(2, gap_ms=20, tokens=10_000) as engines:
        running = await watched(*(view(engine, f"pool-{number}") for number, engine in enumerate(engines)))
        async with streams(running, 4, "Hi"):
            await until(lambda: all(engine.running for engine in engines), "work on both")
            await until(lambda: loads_read(running, "pool-0", "pool-1"), "both being read")
            running.gateway.observer.progress(running.replica()).prefill_rate = 10_000.0
            engines[0].set_fault("hang")
            await until(lambda: running.replica().health.out is Failure.STUCK, "it being out", deadline_s=10)
            assert running.replica("pool-1").health.sound
            assert [r.view.id for r in running.gateway.fleet.model("m").askable(CHAT)] == ["pool-1"]
            engines[0].clear_faults()
            await until(lambda: running.replica().rank == 0, "it being back", deadline_s=15)


async def test_the_only_replica_stays_in_even_when_it_seems_stuck(watched):
    async with fakes(1, gap_ms=20, tokens=10_000) as (engine,):
        running = await watched(view(engine))
        async with streams(running, 2, "Hi"):
            await until(lambda: engine.running == 2 and loads_read(running, "pool-0"), "work")
            running.gateway.observer.progress(running.replica()).prefill_rate = 10_000.0
            engine.set_fault("hang")
            await until(lambda: running.replica().health.still == 3, "the suspicion", deadline_s=10)
            await looks(running, "pool-0", 2)
            assert running.replica().health.out is None


@pytest.mark.parametrize("fault", ["metrics_garbage", "metrics_status=500", "metrics_status=404", "metrics_hang"])
async def test_metrics_that_cannot_be_read_are_held_against_nobody(watched, fault):
    """Bytes on its streams are progress enough; without work there is nothing to be stuck with."""
    async with fakes(2, gap_ms=20, tokens=10_000) as (one, two):
        running = await watched(view(one), view(two, "pool-1"))
        await until(lambda: loads_read(running, "pool-0"), "it being read once")
        known = running.gateway.observer.progress(running.replica())
        known.prefill_rate = 10_000.0
        before = known.load
        one.set_fault(fault)
        async with streams(running, 4, "Hi"):
            await until(lambda: bool(one.running), "work")
            await looks(running, "pool-0", 4)
            assert running.replica().health.sound
            assert (known.load, before.running) == (before, 0), "what was known is held"
        await looks(running, "pool-0", 1)
        assert running.replica().health.sound


async def test_a_long_prompt_is_no_death_although_every_counter_stands_still(watched):
    """What it may take follows from its length, until the prefill rate has been measured, and after."""
    async with fakes(2) as (one, two):
        running = await watched(view(one), view(two, "pool-1"), stuck_s=0.5)
        async with streams(running, 1, "[[fault:slow=60000]]" + "x" * 3000):
            await until(lambda: one.running + two.running == 1, "work")
            busy = "pool-0" if one.running else "pool-1"
            await looks(running, busy, 6)
            assert running.replica(busy).health.out is None
            running.gateway.observer.progress(running.replica(busy)).prefill_rate = 100_000.0
            await until(lambda: running.replica(busy).health.out is Failure.STUCK, "its end", deadline_s=10)


async def test_a_client_that_does_not_read_makes_no_engine_stuck(watched):
    async with fakes(2, tokens=300_000) as (one, two):
        running = await watched(view(one), view(two, "pool-1"), stuck_s=0.3)
        async with await running.connect(receive_bytes=4096) as client:
            client.request("POST", CHAT, body("Hi", stream=True))
            await client.head()
            busy = "pool-0" if running.replica().in_flight else "pool-1"
            replica = running.replica(busy)
            await until(lambda: not any(c.awaited for c in replica.endpoint.connections), "back-pressure")
            running.gateway.observer.progress(replica).prefill_rate = 100_000.0
            await looks(running, busy, 6)
            assert replica.health.sound
            client.reset()
            await until(lambda: not replica.in_flight, "the end")


# restarts


@pytest.mark.parametrize("dialect", [DialectName.VLLM, DialectName.LLAMACPP])
async def test_counters_that_begin_anew_mean_another_process_whose_old_connections_are_not_used(watched, dialect):
    """Case 6: its address stays, perhaps behind a name; the other replicas are not flooded."""
    async with fakes(2, dialect=dialect, tokens=4) as (one, two):
        running = await watched(view(one), view(two, "pool-1"))
        async with await running.connect() as client:
            for _ in range(20):
                assert (await client.ask("POST", CHAT, body())).status == 200
            replica = running.replica()
            progress = running.gateway.observer.progress(replica)
            await until(lambda: progress.load and progress.load.generation_tokens_total, "its counters being known")
            assert replica.endpoint.connections
            one.set_fault("counters_restart")
            await until(lambda: replica.returns == 1, "the restart being seen")
            assert not replica.endpoint.connections
            assert running.replica("pool-1").returns == 0
            assert progress.load.generation_tokens_total == 0
            assert replica.health.sound
            asked = running.replica("pool-1").requests
            for _ in range(40):
                assert (await client.ask("POST", CHAT, body())).status == 200
            assert running.replica("pool-1").requests - asked < 40


async def test_work_moves_to_a_restarted_replica_no_faster_than_to_others(watched):
    """Nothing of its past load counts for it or against it: of two equals each gets its share."""
    async with fakes(2, tokens=2, gap_ms=1) as (one, two):
        running = await watched(view(one), view(two, "pool-1"))
        one.set_fault("counters_restart")
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(await running.connect()) for _ in range(8)]

            async def ask(client) -> None:
                for _ in range(25):
                    await client.ask("POST", CHAT, body())

            await asyncio.gather(*(ask(client) for client in clients))
        shares = [running.replica(name).requests / 200 for name in ("pool-0", "pool-1")]
        assert min(shares) > 0.3


# told


async def test_metrics_and_report_say_who_is_out_and_why(watched):
    async with fakes(2) as (one, two):
        running = await watched(view(one), view(two, "pool-1"))
        one.set_fault("status=500")
        for _ in range(3):
            running.replica().take(Failed(Failure.BROKEN))
        assert [r.health for r in running.gateway.report().replicas] == ["broken", ""]
        async with await running.connect() as client:
            text = (await client.ask("GET", "/metrics")).body.decode()
        assert 'tidegate_replica_healthy{replica="pool-0"} 0.0' in text
        assert 'tidegate_replica_healthy{replica="pool-1"} 1.0' in text
        assert 'tidegate_replica_outs_total{reason="broken",replica="pool-0"} 1.0' in text


async def test_a_replica_that_leaves_the_fleet_is_watched_no_more(watched):
    async with fakes(2, record=True) as (one, two):
        running = await watched(view(one), view(two, "pool-1"))
        await until(lambda: loads_read(running, "pool-0", "pool-1"), "both being read")
        gateway = running.gateway
        gone = running.replica()
        snapshot = gateway.fleet.snapshot
        gateway.apply(
            type(snapshot)(2, models=snapshot.models, replicas=snapshot.replicas[1:], options=snapshot.options)
        )
        assert gateway.observer.progress(gone) is None
        await until(lambda: not one.connections, "its connection being closed")


def test_cpu_time_of_a_process_grows_with_its_work_and_is_unknown_of_one_that_is_gone():
    before = cpu_s(os.getpid())
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert cpu_s(os.getpid()) - before >= 0.05
    assert cpu_s(2**22 + 1) is None
