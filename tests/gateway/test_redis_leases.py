"""Two gateways share a key's limits through a real Redis, and go on with a share each when it is gone."""

import asyncio
import contextlib
import shutil
import socket
import subprocess
import time

import pytest
from redis.asyncio import Redis

from gateway.conftest import key_view
from gateway.wire import until
from tidegate.errors import RateLimited
from tidegate.gateway import redis_leases
from tidegate.gateway.quotas import Quotas
from tidegate.gateway.redis_leases import _BLOCKS, RedisMeters
from tidegate.types import KeyView, RedisOptions

SERVER = shutil.which("redis-server")
pytestmark = pytest.mark.skipif(SERVER is None, reason="redis-server is missing (Debian package redis-server)")


class Server:
    """A Redis of its own that keeps nothing on disk."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self):
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(
            [SERVER, *arguments], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    server.kill()


@pytest.fixture
async def gateways(server):
    """`gateways(count, **limits)`: the quota of one key in so many gateways, each with its own link to Redis."""
    tasks = []

    def start(count=2, **limits):
        key = KeyView("d" * 64, "anna", "t", **limits)
        found = []
        for _ in range(count):
            quotas, meters = Quotas(), RedisMeters(RedisOptions(server.url), time.monotonic, time.time)
            quotas.use(meters)
            quotas.apply([key])
            tasks.append(asyncio.create_task(meters.run()))
            found.append((quotas.of(key), meters))
        return found

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def ask(quota, **cost):
    try:
        return quota.enter(**cost)
    except RateLimited:
        return None


async def in_step(found):
    await until(lambda: all(meters._gateways == len(found) for _, meters in found), "the gateways know of each other")


async def ask_for(seconds, quotas):
    """Ask all of them as fast as they answer; how many were let in."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for quota in quotas:
            lease = ask(quota)
            if lease is not None:
                lease.end(0)
                count += 1
        await asyncio.sleep(0.002)
    return count


async def test_two_gateways_give_one_limit_between_them(gateways):
    limit = 600
    found = gateways(requests_per_minute=limit)
    await in_step(found)
    begin = time.monotonic()
    count = await ask_for(3.0, [quota for quota, _ in found])
    seconds = time.monotonic() - begin
    ahead = len(found) * (limit // _BLOCKS + 1)
    assert limit - ahead <= count <= limit * (1 + seconds / 60) + ahead


async def test_one_gateway_may_use_the_whole_limit_while_the_other_rests(gateways):
    found = gateways(requests_per_minute=200)
    await in_step(found)
    count = await ask_for(2.0, [found[0][0]])
    assert count >= 200 - 200 // _BLOCKS


async def test_a_debt_is_paid_before_anything_is_given_again(gateways):
    """What a gateway was ahead by does not come on top at every turn."""
    found = gateways(requests_per_minute=60)
    await in_step(found)
    quotas = [quota for quota, _ in found]
    first = await ask_for(1.5, quotas)
    later = await ask_for(4.0, quotas)
    assert first + later <= 60 + 60 * 6.5 / 60 + 2 * (60 // _BLOCKS + 1)
    assert later <= 4 + 2


async def test_tokens_that_were_not_needed_come_back_to_all(gateways):
    (first, one), (second, two) = gateways(tokens_per_minute=6_000)
    await in_step([(first, one), (second, two)])
    lease = first.enter(0, 5_900)
    await until(lambda: ask(second, answer_tokens=3_000) is None, "the other gateway knows")
    await asyncio.sleep(2 * redis_leases.SYNC_S)
    lease.end(100)
    await until(lambda: ask(second, answer_tokens=2_500) is not None, "what came back is there for the other")


async def test_a_days_tokens_are_shared(gateways):
    found = gateways(tokens_per_day=1_000)
    await in_step(found)
    used = 0
    for _ in range(200):
        for quota, _ in found:
            if (lease := ask(quota, answer_tokens=20)) is not None:
                lease.end(20)
                used += 20
        await asyncio.sleep(0.01)
    assert 1_000 - 50 <= used <= 1_000 + 2 * (1_000 // _BLOCKS + 20)


async def test_answers_at_once_are_shared_and_places_come_back(gateways):
    found = gateways(concurrent_streams=4)
    await in_step(found)
    leases = []

    def take():
        for quota, _ in found:
            if (lease := ask(quota)) is not None:
                leases.append(lease)

    for _ in range(100):
        take()
        await asyncio.sleep(0.01)
    assert 4 <= len(leases) <= 4 + 2
    for lease in leases:
        lease.end(0)
    leases.clear()

    def one_has_all():
        lease = ask(found[0][0])
        if lease is not None:
            leases.append(lease)
        return len(leases) >= 4

    await until(one_has_all, "all places for one gateway")


async def test_without_redis_each_gateway_goes_on_with_its_share_and_says_so_once(server, gateways, monkeypatch):
    told = []

    class Log:
        def warning(self, event, **details):
            told.append((event, details))

        info = warning

    monkeypatch.setattr(redis_leases.logs, "get", Log)
    found = gateways(requests_per_minute=120, concurrent_streams=4)
    await in_step(found)
    server.kill()
    await until(lambda: all(meters._away for _, meters in found), "both have noticed")
    counts = [await ask_for(0.5, [quota]) for quota, _ in found]
    assert all(40 <= count <= 70 for count in counts), counts
    quota = found[0][0]
    assert [ask(quota) for _ in range(3)][2] is None
    await asyncio.sleep(2.5)
    assert [event for event, _ in told] == ["redis is away; quotas go on with this gateway's share"] * 2
    assert {details["share"] for _, details in told} == {0.5}
    server.start()
    await until(lambda: not any(meters._away for _, meters in found), "both have found it again")
    assert len(told) == 4
    count = await ask_for(1.0, [quota for quota, _ in found])
    assert count <= 120 + 2 * 7, "what was used meanwhile is owed"


async def test_redis_that_was_never_there_keeps_nobody_out(tmp_path):
    meters = RedisMeters(RedisOptions("redis://127.0.0.1:1/0"), time.monotonic, time.time)
    quotas, key = Quotas(), KeyView("d" * 64, "anna", "t", requests_per_minute=10)
    quotas.use(meters)
    quotas.apply([key])
    task = asyncio.create_task(meters.run())
    await until(lambda: meters._away, "it is noticed")
    assert 5 <= sum(ask(quotas.of(key)) is not None for _ in range(30)) <= 11
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_gateway_leases_as_its_settings_say_and_gives_back_at_its_end(server, engine, gateway, ask):
    secret = "sk-tg-" + "s" * 43
    view = key_view(secret, requests_per_minute=40)
    options = {"keys": (view,), "keys_required": True, "redis": RedisOptions(server.url)}
    running = await gateway((await engine()).view(), **options)
    answer = await ask(running, headers=(f"Authorization: Bearer {secret}",))
    assert (answer.status, answer.headers["x-ratelimit-limit-requests"]) == (200, "40")
    meters = running.gateway.quotas.meters
    await until(lambda: running.gateway.quotas.of(view).requests._stock > 0, "a block is leased")
    running.gateway.leasing.apply(RedisOptions())
    redis = Redis.from_url(server.url)

    async def level():
        return float(await redis.hget(f"tidegate:quota:{view.digest[:32]}:requests", "level"))

    while not 39 <= await level() < 40:  # one request is taken, and no lease is left
        await asyncio.sleep(0.01)
    await redis.aclose()
    assert running.gateway.quotas.meters is not meters
