"""Crowds before a real gateway: idle connections, slow readers and thousands of streams leave the others in peace."""

import asyncio
import contextlib
import time

import pytest
import uvloop

from load.clients import Log, askers, chat_request, idlers, raise_open_files, slow_readers
from load.programs import fake_engine, gateway, quiet

IDLE, SLOW, NORMAL = 10_000, 200, 100
CROWD_MIB = 250.0
"""Ten thousand connections at 4 KiB, 200 slow readers that hold at most some 400 KiB each (what was read before the
engine was paused), and the process itself: 122 MiB measured."""
STREAMS = 500
STREAM_KIB = 75.0
"""The promise is 2,000 streams in 150 MiB, everything counted."""


def pytest_asyncio_loop_factories(config, item):
    """As the data path has it."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def many_files():
    refusal = raise_open_files(IDLE + 500)
    if refusal:
        pytest.skip(refusal)


async def test_ten_thousand_idle_connections_and_two_hundred_slow_readers_leave_normal_streams_in_peace(
    tmp_path, many_files
):
    """Every normal stream is whole, nobody idle is cut off, and memory stays within its bound."""
    with fake_engine(tmp_path, "--tokens", "40", "--gap-ms", "20") as engine, gateway(tmp_path, engine) as front:
        idle = await idlers(front.port, IDLE)
        slow = slow_readers(front.port, SLOW, chat_request(stream=True, marks="[[fault:huge_event=1500000]]"))
        await quiet(front)
        log = Log()
        normal = await askers(front.port, NORMAL, chat_request(stream=True), log, over_s=0.5, times=2)
        await asyncio.wait_for(asyncio.gather(*(asker.ended for asker in normal)), 60)
        memory = front.rss_mib
        assert (log.answers, log.bad) == (2 * NORMAL, 0)
        assert log.events >= 2 * NORMAL * 42
        assert not any(idler.lost for idler in idle)
        assert front.open_files > IDLE + 2 * SLOW, "engines of slow readers wait with them"
        assert memory < CROWD_MIB, f"{memory:.0f} MiB"
        for idler in idle:
            idler.transport.abort()
        for sock in slow:
            sock.close()
        for asker in normal:
            asker.stop()
        await _come_down(front)


async def _come_down(front) -> None:
    """Whoever has gone is let go; connections to the engine stay a while, for whoever comes next."""
    deadline = time.monotonic() + 20
    while front.open_files > NORMAL + 100:
        assert time.monotonic() < deadline, f"{front.open_files} files are still open"
        await asyncio.sleep(0.1)


async def test_hundreds_of_streams_at_once_take_little_memory_each(tmp_path):
    """A quarter of the promised 2,000 in 150 MiB, held to the same memory a stream."""
    with (
        fake_engine(tmp_path, "--tokens", "60", "--gap-ms", "50", "--slots", str(STREAMS)) as engine,
        gateway(tmp_path, engine) as front,
    ):
        before = front.rss_mib
        log = Log()
        streams = await askers(front.port, STREAMS, chat_request(stream=True), log, over_s=1.0, times=1)
        most = before
        everyone = asyncio.gather(*(asker.ended for asker in streams))
        while not everyone.done():
            most = max(most, front.rss_mib)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(everyone), 0.2)
        assert (log.answers, log.bad) == (STREAMS, 0)
        assert (most - before) * 1024 / STREAMS < STREAM_KIB, f"{before:.0f} to {most:.0f} MiB"
        for asker in streams:
            asker.stop()
