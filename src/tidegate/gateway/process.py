"""A gateway's process: serves until it is told to stop, drains, and ends."""

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

GC_THRESHOLD: Final = 50_000
"""Allocations between collections of the youngest generation: little here is cyclic, and each collection is a pause."""

Serve = Callable[[Gateway], Awaitable[None]]


def run(
    make: Callable[[], Gateway],
    listening: socket.socket,
    *,
    tls: ssl.SSLContext | None = None,
    beside: Serve,
) -> int:
    """Serve `listening` until SIGTERM or SIGINT, then drain; a second signal ends at once. The exit code.

    `make` builds the gateway inside the loop; `beside` runs next to it (the talk with control, or the look-out for
    engines) and is cancelled at the end.
    """
    return uvloop.run(_serve(make, listening, tls, beside))


def raise_open_files() -> None:
    """Let this process have as many connections as the system allows it: shells often start with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(
    make: Callable[[], Gateway], listening: socket.socket, tls: ssl.SSLContext | None, beside: Serve
) -> int:
    loop = asyncio.get_running_loop()
    stopping, at_once = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (at_once if stopping.is_set() else stopping).set()

    raise_open_files()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    gateway = make()
    await gateway.server.start(listening, tls)
    gateway.observer.begin(gateway.fleet.replicas.values())
    companion = asyncio.ensure_future(beside(gateway))
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    waiting = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({waiting, companion}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    companion.cancel()
    listening.close()  # whoever else holds the socket takes what waits on it; nobody else, and clients are refused
    logs.get().info("gateway draining", in_flight=gateway.metrics.in_flight)
    drain = asyncio.ensure_future(gateway.close(gateway.fleet.snapshot.options.drain_timeout_s))
    impatient = asyncio.ensure_future(at_once.wait())
    await asyncio.wait({drain, impatient}, return_when=asyncio.FIRST_COMPLETED)
    for task in (impatient, companion, drain):
        task.cancel()
    results = await asyncio.gather(impatient, companion, drain, return_exceptions=True)
    await gateway.server.close()
    failure = results[1]
    if isinstance(failure, Exception):
        raise failure
    return 0
