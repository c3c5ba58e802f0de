"""Time limits by class, pools by preference, homes of conversations, and limits that several gateways share."""

import contextlib
import json

import pytest
from msgspec import structs

from gateway.byte_engine import answers
from gateway.conftest import CHAT
from gateway.held import ANSWER, Clock, Held, at_rest, chat, fixed
from gateway.wire import until
from tidegate.types import ClassView, GatewayOptions

SLOW_S, QUICK_S = 100.0, 10.0


@pytest.fixture
async def clients():
    """`await clients(running, count)`: connections that end with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def connect(running, count):
            return [await stack.enter_async_context(await running.connect()) for _ in range(count)]

        yield connect


async def look_later(running, clock, seconds):
    """Let time pass, with a look at every request before and after."""
    flights = running.gateway.flights
    flights.look(flights.now())
    clock.now_s += seconds
    flights.look(flights.now())


@pytest.mark.parametrize(
    ("limit", "stream"), [("first_byte_timeout_s", False), ("total_timeout_s", False), ("total_timeout_s", True)]
)
@pytest.mark.parametrize("quick", [True, False], ids=["its class is quicker", "its class has more time"])
async def test_a_class_has_time_limits_of_its_own_in_place_of_the_gateways(engine, gateway, limit, stream, quick):
    held = Held()
    behind = await engine(held)
    of_class, of_gateway = (QUICK_S, SLOW_S) if quick else (SLOW_S, QUICK_S)
    view = ClassView("standard", **{limit: of_class})
    options = GatewayOptions(**{limit: of_gateway}, stall_timeout_s=1000.0)
    running = await gateway(behind.view(), classes=(view,), rules=(), options=options)
    clock = Clock(running)
    async with await running.connect() as client:
        client.request("POST", CHAT, chat(stream=stream))
        await until(lambda: held.gates)
        if stream:
            await client.head()
        await look_later(running, clock, QUICK_S + 1)
        assert at_rest(running) == quick
        if not quick:
            held.open()
        if not stream:
            assert (await client.answer()).status == (504 if quick else 200)
        else:
            pieces = [piece async for piece in chunks(client)]
            assert (b"[DONE]" in b"".join(pieces)) != quick
    await until(lambda: at_rest(running))
    assert running.outcomes == {"failed" if quick else "done": 1}


async def chunks(client):
    while piece := await client.chunk():
        yield piece


@pytest.mark.parametrize("quick", [True, False], ids=["its class is quicker", "its class has more time"])
async def test_a_stall_is_what_the_class_says_it_is(engine, gateway, quick):
    held = Held()
    behind = await engine(held)
    of_class, of_gateway = (QUICK_S, SLOW_S) if quick else (SLOW_S, QUICK_S)
    view = ClassView("standard", stall_timeout_s=of_class)
    options = GatewayOptions(stall_timeout_s=of_gateway)
    running = await gateway(behind.view(), classes=(view,), rules=(), options=options)
    clock = Clock(running)
    async with await running.connect() as client:
        client.request("POST", CHAT, chat(stream=True))
        await client.head()
        await client.chunk()
        await look_later(running, clock, QUICK_S + 1)
        assert at_rest(running) == quick
        held.open()
        text = b"".join([piece async for piece in chunks(client)])
    assert (b"[DONE]" in text, b"engine_failed" in text) == (not quick, quick)


async def test_who_waits_for_a_permit_gets_no_comment_and_may_still_be_refused_by_its_status(engine, gateway, clients):
    held = Held()
    behind = await engine(held)
    running = await gateway(behind.view(), limits=fixed(1), options=GatewayOptions(keepalive_after_s=1.0))
    clock = Clock(running)
    first, second = await clients(running, 2)
    first.request("POST", CHAT, chat())
    await until(lambda: held.gates)
    second.request("POST", CHAT, chat(stream=True))
    line = running.gateway.lines.of("m")
    await until(lambda: len(line.queue) == 1)
    await look_later(running, clock, 2.0)
    clock.now_s += 40.0
    assert (await second.answer()).status == 429
    held.open()
    assert (await first.answer()).status == 200
    assert at_rest(running)


@pytest.mark.parametrize("spills", [True, False], ids=["to a second pool", "nowhere"])
async def test_a_class_prefers_its_first_pool_and_spills_over_only_where_it_names_another(
    engine, gateway, clients, spills
):
    """With its first pool full it has the second, if it names one; else it waits for the first."""
    one, two = Held(), Held()
    fast, slow = await engine(one), await engine(two)
    views = (structs.replace(fast.view("fast-0"), pool="fast"), structs.replace(slow.view("slow-0"), pool="slow"))
    view = ClassView("standard", pools=("fast", "slow") if spills else ("fast",))
    running = await gateway(*views, limits=fixed(1), classes=(view,), rules=())
    first, second = await clients(running, 2)
    line = running.gateway.lines.of("m")
    first.request("POST", CHAT, chat())
    await until(lambda: one.gates, "the first pool is asked first")
    second.request("POST", CHAT, chat())
    if spills:
        await until(lambda: two.gates, "the second pool has room")
        two.open()
        assert (await second.answer()).headers["x-tidegate-replica"] == "slow-0"
        one.open()
    else:
        await until(lambda: len(line.queue) == 1, "it waits")
        assert not two.gates
        one.always = True
        one.open()
        assert (await second.answer()).headers["x-tidegate-replica"] == "fast-0"
    assert (await first.answer()).headers["x-tidegate-replica"] == "fast-0"
    assert at_rest(running)


@pytest.mark.parametrize("lives", [True, False], ids=["one of its pools", "another pool, rather than nowhere"])
async def test_what_a_dead_engine_leaves_goes_to(engine, gateway, clients, lives):
    """The first engine breaks off before its answer has begun."""
    dying, mine, others = Held(), Held(), Held()
    mine.always = others.always = True
    engines = [await engine(one) for one in (dying, mine, others)]
    names = ("fast-0", "slow-0", "free-0")
    views = [structs.replace(one.view(n), pool=n[:-2]) for one, n in zip(engines, names, strict=True)]
    if not lives:
        del views[1]
    view = ClassView("standard", pools=("fast", "slow"))
    running = await gateway(*views, classes=(view,), rules=())
    (client,) = await clients(running, 1)
    client.request("POST", CHAT, chat())
    await until(lambda: dying.gates, "the first pool is asked first")
    await engines[0].stop()
    assert (await client.answer()).headers["x-tidegate-replica"] == ("slow-0" if lives else "free-0")
    assert at_rest(running)


def long_chat(number: int) -> list[dict[str, str]]:
    return [{"role": "system", "content": f"{number} " * 1000}, {"role": "user", "content": "hi"}]


async def test_a_conversation_with_a_long_beginning_stays_on_one_replica(engine, gateway, ask):
    engines = [await engine(answers(ANSWER)) for _ in range(4)]
    running = await gateway(*(one.view(f"pool-{number}") for number, one in enumerate(engines)))
    homes = set()
    for number in range(12):
        asked = [await ask(running, messages=long_chat(number)) for _ in range(4)]
        (home,) = {answer.headers["x-tidegate-replica"] for answer in asked}
        homes.add(home)
    assert len(homes) > 1, "different conversations are at home at different replicas"


async def test_a_conversation_is_spread_when_its_replica_has_too_much(engine, gateway, clients):
    scripts = [Held() for _ in range(2)]
    engines = [await engine(script) for script in scripts]
    running = await gateway(*(one.view(f"pool-{number}") for number, one in enumerate(engines)))
    for count, client in enumerate(await clients(running, 8), 1):
        client.request("POST", CHAT, chat(messages=long_chat(1)))
        await until(lambda count=count: sum(len(script.gates) for script in scripts) == count)
    loads = [len(script.gates) for script in scripts]
    assert min(loads) >= 2, loads
    for script in scripts:
        script.open()
    await until(lambda: at_rest(running))


@pytest.mark.parametrize(("total", "own"), [(4, 2), (5, 3), (1, 1)])
@pytest.mark.parametrize("by_hand", [True, False], ids=["set by hand", "fixed"])
async def test_two_data_processes_have_half_of_a_limit_each_and_never_less_than_one(
    engine, gateway, clients, *, total, own, by_hand
):
    """What is set by hand is for all gateways together too, and stands above the limits of the settings."""
    held = Held()
    behind = await engine(held)
    set_by_hand = {"pool-0": total} if by_hand else {}
    limits = fixed(50 if by_hand else total)
    options = GatewayOptions(processes=2)
    running = await gateway(behind.view(), limits=limits, limits_set=set_by_hand, options=options)
    line = running.gateway.lines.of("m")
    connected = await clients(running, own + 1)
    for client in connected:
        client.request("POST", CHAT, chat())
    await until(lambda: len(held.gates) + len(line.queue) == own + 1)
    await until(lambda: len(held.gates) == own)
    assert len(line.queue) == 1
    assert running.replica().report().limit == own
    held.always = True
    held.open()
    for client in connected:
        assert json.loads((await client.answer()).body)["id"] == "c"
    assert at_rest(running)
