"""Timers that are right to some microseconds: a timerfd of Linux; elsewhere the event loop's, right to a millisecond."""

import asyncio
import ctypes
import heapq
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Final

ABSOLUTE: Final = 1
"""TFD_TIMER_ABSTIME (linux/timerfd.h)."""


class _Setting(ctypes.Structure):
    """struct itimerspec, where a time is two longs."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Alarm:
    """Calls `ring` in the running loop at the time set last; `close` it."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._later: asyncio.TimerHandle | None = None
        self._file = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None)
            self._file = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file >= 0:
            self._loop.add_reader(self._file, self._rung)

    def set(self, at: float) -> None:
        """`at` by time.monotonic(); a time that has passed rings at once."""
        if self._file < 0:
            if self._later is not None:
                self._later.cancel()
            self._later = self._loop.call_later(max(0.0, at - time.monotonic()), self._ring)
            return
        nanoseconds = max(1, int(at * 1e9))  # 0 would set no time at all
        setting = _Setting(0, 0, nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000)
        self._libc.timerfd_settime(self._file, ABSOLUTE, ctypes.byref(setting), None)

    def close(self) -> None:
        if self._later is not None:
            self._later.cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _rung(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set anew meanwhile
            return
        self._ring()


class Timer:
    """One call that was asked for."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Timers:
    """Many calls, each at its time, on one alarm of the running loop; `close` it."""

    def __init__(self) -> None:
        self._alarm = Alarm(self._rung)
        self._due: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        """`when` by time.monotonic(); calls of one moment come in the order in which they were asked for."""
        timer = Timer(call)
        first = not self._due or when < self._due[0][0]
        heapq.heappush(self._due, (when, next(self._numbers), timer))
        if first:
            self._alarm.set(when)
        return timer

    def close(self) -> None:
        """Nothing is called any more."""
        self._due.clear()
        self._alarm.close()

    def _rung(self) -> None:
        due = self._due
        while due and due[0][0] <= time.monotonic():
            _, _, timer = heapq.heappop(due)
            if timer.call is not None:
                timer.call()
        if due:
            self._alarm.set(due[0][0])
