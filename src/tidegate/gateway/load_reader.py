"""Reads what a replica says of its load: /metrics, and of llama.cpp how many slots it has."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from tidegate.dialects.metrics import read_load, read_slots
from tidegate.errors import ConnectError, EngineError
from tidegate.gateway.fleet import Replica
from tidegate.http import Endpoint
from tidegate.http.fetch import fetch
from tidegate.types import DialectName, Load

LOOK_TIMEOUT_S: Final = 2.0
"""Longest wait for /metrics or /health."""
MAX_BYTES: Final = 4 * 1024 * 1024


class Observation(msgspec.Struct, frozen=True):
    """What one look at /metrics gave."""

    at_s: float
    load: Load | None
    error: str = ""
    """Why there is no load."""
    unreachable: bool = False
    """Whether no connection could be made."""


class _Slots(msgspec.Struct, frozen=True):
    """What /props said of llama.cpp's slots, and after how many returns of the replica."""

    returns: int = -1
    count: int | None = None
    tokens: int | None = None


class LoadReader:
    """Of one replica. Reads over the endpoint that it is handed."""

    def __init__(self, replica: Replica, endpoint: Endpoint, now: Callable[[], float]) -> None:
        self._replica, self._endpoint, self._now = replica, endpoint, now
        self._slots = _Slots()

    async def look(self) -> Observation:
        """Read it once. Whatever goes wrong is told in the answer."""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                return await self._read()
        except ConnectError as error:
            return Observation(self._now(), None, str(error), unreachable=True)
        except EngineError as error:
            return Observation(self._now(), None, str(error))
        except TimeoutError:
            return Observation(self._now(), None, f"/metrics did not answer within {LOOK_TIMEOUT_S:g} s")

    def get(self, path: str) -> bytes:
        """A GET of the engine's."""
        key = self._replica.view.api_key
        line = b"authorization: Bearer %b\r\n" % key.encode("latin-1") if key else b""
        return b"GET %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (path.encode(), self._endpoint.host_header, line)

    async def _read(self) -> Observation:
        status, text = await fetch(self._endpoint, self.get("/metrics"), max_bytes=MAX_BYTES)
        at_s = self._now()
        if status != 200:
            return Observation(at_s, None, f"/metrics answered {status}")
        load = read_load(text)
        if load is None:
            return Observation(at_s, None, "/metrics has none of the names that are known")
        if self._replica.view.dialect is DialectName.LLAMACPP:
            load = await self._with_slots(load)
        return Observation(at_s, load)

    async def _with_slots(self, load: Load) -> Load:
        """With what llama.cpp tells in /props, which stays what it is until it begins anew.

        Of a child of this machine the cache is known too: each slot has a part of its own. Somebody else's may have one
        cache for all slots, and tells the same.
        """
        known, replica = self._slots, self._replica
        if known.returns != replica.returns:
            returns = replica.returns
            status, props = await fetch(self._endpoint, self.get("/props"), max_bytes=MAX_BYTES)
            if status >= 500:
                return load
            known = self._slots = _Slots(returns, *(read_slots(props) if status == 200 else (None, None)))
        own = replica.view.pid is not None
        kv_tokens = known.count * known.tokens if own and known.count and known.tokens else None
        return msgspec.structs.replace(load, slots=known.count, kv_tokens=kv_tokens)
