"""Usage reaches the store once, whatever the store does meanwhile."""

import asyncio
import threading

from tidegate import logs
from tidegate.control import usage
from tidegate.control.usage import UsageWriter
from tidegate.errors import StoreError
from tidegate.types import Outcome, UsageCount


def count(requests=1, tenant="t"):
    return UsageCount("2026-11-30", tenant, "standard", "m", Outcome.DONE, requests, 2 * requests, 3 * requests)


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_what_comes_is_added_up_and_written_in_one_go_and_the_rest_at_the_end():
    written = []
    writer = UsageWriter(written.append, log=logs.get(), every_s=0.05)
    writer.add([count(), count(2), count(tenant="u")])
    writer.open()
    await until(lambda: written)
    assert written == [(count(3), count(tenant="u"))]
    writer.add([count(5)])
    await writer.close()
    assert written[1:] == [(count(5),)]


async def test_the_end_asks_the_source_a_last_time():
    written, waiting = [], [count(7)]
    writer = UsageWriter(written.append, log=logs.get(), source=lambda: [waiting.pop()] if waiting else [], every_s=60)
    writer.open()
    await writer.close()
    assert written == [(count(7),)]


async def test_what_a_store_refuses_is_kept_and_written_later():
    written, refusals = [], [StoreError("it is locked")] * 3

    def write(counts):
        if refusals:
            raise refusals.pop()
        written.append(counts)

    writer = UsageWriter(write, log=logs.get(), every_s=0.01)
    writer.open()
    for _ in range(3):
        writer.add([count()])
        await asyncio.sleep(0.02)
    await until(lambda: not refusals)
    await writer.close()
    assert sum(one.requests for counts in written for one in counts) == 3


async def test_a_store_that_hangs_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(usage, "LAST_WRITE_S", 0.05)
    let_go = threading.Event()
    writer = UsageWriter(lambda _: let_go.wait(20), log=logs.get(), every_s=60)
    writer.add([count()])
    writer.open()
    async with asyncio.timeout(5):
        await writer.close()
    let_go.set()
