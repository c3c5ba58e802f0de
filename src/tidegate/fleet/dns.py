"""Engines at every address of a name, such as a headless service of Kubernetes: they come and go as the name says.

The system's resolver is asked, in a thread, as often as the settings say. A lookup that fails, or finds nothing, changes
nothing: what answers no more is found out by the gateways themselves. An address is given up once several lookups in a
row were without it, because a name server may give only a part of a long list each time.
"""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import structlog

from tidegate.config import DnsSettings, split_address

LOOKUP_S: Final = 10.0
"""Longest wait for a lookup; its thread may take longer and is not waited for."""

Resolve = Callable[[str, int], Awaitable[Collection[str]]]
"""The addresses of a name (and port). Raises OSError."""


async def system(name: str, port: int) -> Collection[str]:
    """What the system's resolver says. Raises OSError."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[tuple[str, ...]] = loop.create_future()

    def settle(found: tuple[str, ...], error: OSError | None) -> None:
        if not result.done():
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(found)

    def look() -> None:
        found: tuple[str, ...] = ()
        failure: OSError | None = None
        try:
            entries = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            found = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
        except OSError as error:
            failure = error
        except UnicodeError as error:
            failure = OSError(f"{name!r} is no name: {error}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, found, failure)

    threading.Thread(target=look, name=f"lookup of {name}", daemon=True).start()
    return await asyncio.wait_for(result, LOOKUP_S)


def merge(known: Mapping[str, int], found: Collection[str], forget_after: int) -> dict[str, int]:
    """Addresses and how many lookups in a row were without each, after one that found `found`. Pure."""
    if not found:
        return dict(known)
    after = {address: 0 if address in found else misses + 1 for address, misses in known.items()}
    return {
        **{address: misses for address, misses in after.items() if misses < forget_after},
        **{address: 0 for address in sorted(found, key=_order) if address not in after},
    }


def url_of(address: str, port: int) -> str:
    """The URL of the engine at an address."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def label(url: str) -> str:
    """What a replica at a URL is called after its pool's name: the same address, the same name."""
    letters = (
        letter if letter.isalnum() else "-" for letter in url.partition("://")[2].replace("[", "").replace("]", "")
    )
    return "".join(letters)


def _order(address: str) -> tuple[int, int]:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return (9, 0)
    return (parsed.version, int(parsed))


class Name:
    """The engines behind one name. `urls` is what is known; `changed` is called when that is another."""

    def __init__(
        self,
        settings: DnsSettings,
        changed: Callable[[], None],
        *,
        log: structlog.stdlib.BoundLogger,
        resolve: Resolve = system,
    ) -> None:
        self.settings = settings
        self.urls: tuple[str, ...] = ()
        self._host, self._port = split_address(settings.name)
        self._changed, self._log, self._resolve = changed, log, resolve
        self._known: dict[str, int] = {}
        self._trouble = ""

    async def look(self) -> None:
        """Look it up once."""
        trouble = ""
        found: Collection[str] = ()
        try:
            found = await self._resolve(self._host, self._port)
            trouble = "" if found else "it has no address"
        except TimeoutError:
            trouble = f"no answer within {LOOKUP_S:g} s"
        except OSError as error:
            trouble = error.strerror or str(error)
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble:
                self._log.warning(
                    "name cannot be looked up; what was known holds", name=self.settings.name, cause=trouble
                )
        self._known = merge(self._known, found, self.settings.forget_after)
        urls = tuple(url_of(address, self._port) for address in self._known)
        if urls != self.urls:
            self._log.info("addresses of a name", name=self.settings.name, urls=list(urls))
            self.urls = urls
            self._changed()

    async def run(self) -> None:
        """Look it up again and again."""
        while True:
            await asyncio.sleep(self.settings.interval_s)
            await self.look()


class Names:
    """The names of all pools with fleet = "dns"."""

    def __init__(
        self, changed: Callable[[], None], *, log: structlog.stdlib.BoundLogger, resolve: Resolve = system
    ) -> None:
        self._changed, self._log, self._resolve = changed, log, resolve
        self._names: dict[str, tuple[Name, asyncio.Task[None] | None]] = {}

    async def use(self, wanted: Mapping[str, DnsSettings]) -> Mapping[str, tuple[str, ...]]:
        """Follow these names, by pool, and no others; the URLs of each."""
        for pool, (name, task) in list(self._names.items()):
            if wanted.get(pool) != name.settings:
                del self._names[pool]
                if task is not None:
                    task.cancel()
        new = {
            pool: Name(one, self._changed, log=self._log, resolve=self._resolve)
            for pool, one in wanted.items()
            if pool not in self._names
        }
        await asyncio.gather(*(name.look() for name in new.values()))
        for pool, name in new.items():
            self._names[pool] = (name, asyncio.get_running_loop().create_task(name.run()))
        return self.urls()

    def urls(self) -> Mapping[str, tuple[str, ...]]:
        """By pool, as far as is known."""
        return {pool: name.urls for pool, (name, _) in self._names.items()}

    async def close(self) -> None:
        """Follow nothing any more."""
        tasks = [task for _, task in self._names.values() if task is not None]
        self._names = {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
