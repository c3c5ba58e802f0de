"""A gateway's process: serves until it is told to stop, drains, and ends.

SIGTERM or SIGINT ends it: idle connections are closed within a second. A second one ends it at once. SIGUSR1 is for a
process whose port others go on serving (as HAProxy understands it): an idle connection may bring its next request, and
is told with the answer that it closes.
"""

import asyncio
import gc
import resource
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import uvloop

from tidegate import logs
from tidegate.gateway.app import Gateway
from tidegate.http.server import IDLE_DRAIN_S

GC_THRESHOLD: Final = 50_000
"""Allocations between collections of the youngest generation: little here is cyclic, and each collection is a pause."""

FLEET_POLL_S: Final = 0.005

Serve = Callable[[Gateway], Awaitable[None]]


def run(
    make: Callable[[], Gateway],
    listening: socket.socket,
    *,
    tls: ssl.SSLContext | None = None,
    beside: Serve,
    fleet_wait_s: float = 0.0,
) -> int:
    """Serve `listening` until told to stop, then drain. The exit code.

    `make` builds the gateway inside the loop; `beside` runs next to it (the talk with control, or the look-out for
    engines) and is cancelled once every answer has ended. The port is served as soon as there is a fleet, and after
    `fleet_wait_s` without one: until then clients wait in the backlog, or are others' to serve.
    """
    return uvloop.run(_serve(make, listening, tls, beside, fleet_wait_s))


def raise_open_files() -> None:
    """Let this process have as many connections as the system allows it: shells often start with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Orders:
    """What signals ask for."""

    def __init__(self, gateway: Gateway) -> None:
        self.end, self.at_once = asyncio.Event(), asyncio.Event()
        self._server, self._fleet = gateway.server, gateway.fleet
        self._retiring = False
        loop = asyncio.get_running_loop()
        for number, act in ((signal.SIGTERM, self._stop), (signal.SIGINT, self._stop), (signal.SIGUSR1, self._retire)):
            loop.add_signal_handler(number, act)

    def _stop(self) -> None:
        if self.end.is_set() and not self._retiring:
            self.at_once.set()
        self._retiring = False
        self._server.idle_drain_s = IDLE_DRAIN_S
        self.end.set()

    def _retire(self) -> None:
        if not self.end.is_set():
            self._retiring = True
            limit_s = self._fleet.snapshot.options.drain_timeout_s
            self._server.idle_drain_s = max(limit_s - IDLE_DRAIN_S, IDLE_DRAIN_S)  # closed, and not cut off
            self.end.set()


async def _serve(
    make: Callable[[], Gateway],
    listening: socket.socket,
    tls: ssl.SSLContext | None,
    beside: Serve,
    fleet_wait_s: float,
) -> int:
    raise_open_files()
    gateway = make()
    orders = _Orders(gateway)
    companion = asyncio.ensure_future(beside(gateway))
    await _fleet(gateway, orders, fleet_wait_s)
    await gateway.server.start(listening, tls)
    gateway.observer.begin(gateway.fleet.replicas.values())
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    waiting = asyncio.ensure_future(orders.end.wait())
    await asyncio.wait({waiting, companion}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    listening.close()  # whoever else holds the socket takes what waits on it; nobody else, and clients are refused
    logs.get().info("gateway draining", in_flight=gateway.metrics.in_flight)
    drain = asyncio.ensure_future(gateway.close(gateway.fleet.snapshot.options.drain_timeout_s))
    impatient = asyncio.ensure_future(orders.at_once.wait())
    await asyncio.wait({drain, impatient}, return_when=asyncio.FIRST_COMPLETED)
    drain.cancel()
    impatient.cancel()
    await asyncio.gather(drain, impatient, return_exceptions=True)
    companion.cancel()  # now that every answer has ended and is counted
    (failure,) = await asyncio.gather(companion, return_exceptions=True)
    await gateway.server.close()
    gateway.accounting.settle()  # what was cut off has its line in the access log too
    if isinstance(failure, Exception):
        raise failure
    return 0


async def _fleet(gateway: Gateway, orders: _Orders, wait_s: float) -> None:
    """Until the gateway has been told of a fleet; the first word of control comes within milliseconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + wait_s
    while not gateway.fleet.snapshot.number and not orders.end.is_set() and loop.time() < end:  # noqa: ASYNC110 - once
        await asyncio.sleep(FLEET_POLL_S)
