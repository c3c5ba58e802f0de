"""Timers that are right to microseconds: never early, in order, and not at all once they are called off."""

import asyncio
import time

from tidegate.alarm import Timers


async def test_calls_come_in_the_order_of_their_times_and_never_early():
    timers, ended, seen = Timers(), asyncio.Event(), []
    begun = time.monotonic()
    for after_s in (0.03, 0.01, 0.02, 0.01):
        timers.at(begun + after_s, lambda after_s=after_s: seen.append((after_s, time.monotonic() - begun)))
    timers.at(begun + 0.04, ended.set)
    await asyncio.wait_for(ended.wait(), 10)
    timers.close()
    assert [asked for asked, _ in seen] == [0.01, 0.01, 0.02, 0.03]
    assert all(came >= asked for asked, came in seen)


async def test_what_was_called_off_is_not_called_and_others_are():
    timers, ended, seen = Timers(), asyncio.Event(), []
    now = time.monotonic()
    off = timers.at(now + 0.005, lambda: seen.append("off"))
    timers.at(now + 0.01, lambda: timers.at(0.0, ended.set))
    off.cancel()
    await asyncio.wait_for(ended.wait(), 10)
    timers.close()
    assert seen == []


async def test_nothing_is_called_after_the_end():
    timers, seen = Timers(), []
    timers.at(time.monotonic() + 0.001, lambda: seen.append(1))
    timers.close()
    await asyncio.sleep(0.01)
    assert seen == []
