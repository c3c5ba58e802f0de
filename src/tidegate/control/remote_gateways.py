"""Gateways on other hosts: their greetings, snapshots and reports, over HTTP at the admin port.

Each has a part of the replicas' limits, as a data process of this host has. One that is not heard for `SILENT_S` has
left: its part goes to the others. If it lives after all, its answer has ended, and it greets again.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from tidegate import __version__
from tidegate.channel import HEARTBEAT_S, PROTOCOL, RemoteHello, RemoteReport, Word
from tidegate.config.addresses import is_loopback_url, is_same_host
from tidegate.control.gateways import Heard
from tidegate.errors import BadRequest, NotFound, Unavailable
from tidegate.types import DataReport, FleetSnapshot, ReplicaState

MAX_LINKS: Final = 256
MAX_RECENT: Final = 40
"""Reports of one gateway that are kept, however often it sends them."""
MAX_KNOWN: Final = 4 * MAX_LINKS
"""Gateways whose last batch of usage is remembered."""
MAX_HOST_CHARS: Final = 64
MAX_VERSION_CHARS: Final = 40
SILENT_S: Final = 10.0
"""Of one that reports every second."""
WRITE_S: Final = 10.0
"""Longest wait for a gateway that does not read."""
NOTHING: Final = b"{}\n"


@dataclass(eq=False)
class RemoteLink(Heard):
    """One gateway on another host that listens to control."""

    remote: RemoteHello
    address: str
    """Where it comes from; that of the proxy, where one stands between."""
    joined_s: float
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False
    """Control has nothing more to say to it."""

    @property
    def host(self) -> str:
        """What its host calls itself."""
        return self.remote.host

    def heard(self, report: DataReport, at_s: float) -> None:
        super().heard(report, at_s)
        del self.recent[:-MAX_RECENT]

    def end(self) -> None:
        self.over = True
        self.wake.set()


class RemoteGateways:
    """Those that are linked, by instance.

    `reported` is given what was used, once. `changed` hears that one came or left. `own` gives the limits that are of a
    port, which another host's port has whole.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        log: structlog.stdlib.BoundLogger,
        reported: Callable[[DataReport], None] = lambda _: None,
        changed: Callable[[], None] = lambda: None,
        own: Callable[[], Mapping[str, int]] = dict,
        silent_s: float = SILENT_S,
        write_s: float = WRITE_S,
    ) -> None:
        self.links: dict[str, RemoteLink] = {}
        self.answers = 0
        """Answers that have not ended, those included whose gateway reads nothing."""
        self.snapshot = FleetSnapshot(number=0)
        """As other hosts are told it."""
        self.line = NOTHING
        self._clock, self._log, self._reported, self._changed, self._own = clock, log, reported, changed, own
        self._silent_s, self.write_s = silent_s, write_s
        self._batches: OrderedDict[str, int] = OrderedDict()
        self._closed = False

    def publish(self, snapshot: FleetSnapshot) -> None:
        """Send a snapshot to every gateway, now and when one greets; one that is slow gets only the newest."""
        self.snapshot = for_other_hosts(snapshot, self._own())
        self.line = msgspec.json.encode(Word(snapshot=self.snapshot)) + b"\n"
        for link in self.links.values():
            link.wake.set()

    def close(self) -> None:
        """Let them go; they serve on with what they have."""
        self._closed = True
        for link in tuple(self.links.values()):
            link.end()

    def greet(self, remote: RemoteHello) -> "LinkAnswer":
        """The answer to a greeting. Raises BadRequest or Unavailable."""
        if remote.protocol != PROTOCOL:
            raise BadRequest(
                f"control is Tidegate {__version__}, the gateway {_cut(remote.hello.code_version, MAX_VERSION_CHARS)}, "
                "and they do not understand each other; install the same version on both hosts",
                code="other_version",
            )
        if not (8 <= len(remote.instance) <= 64 and remote.instance.isalnum()):
            raise BadRequest("instance: not 8 to 64 letters and digits", param="instance")
        if self._closed:
            raise Unavailable("control is ending", code="ending")
        if self.answers >= MAX_LINKS:
            raise Unavailable(f"{MAX_LINKS} gateways are linked, and that is the most", code="too_many_gateways")
        return LinkAnswer(self, msgspec.structs.replace(remote, host=_cut(remote.host, MAX_HOST_CHARS)))

    def take(self, told: RemoteReport) -> None:
        """A report of a gateway that is linked. Raises NotFound."""
        link = self.links.get(told.instance)
        if link is None:
            raise NotFound("this gateway is not linked; it has to greet first", code="not_linked")
        link.heard(told.report, self._clock())
        if told.batch > self._batches.get(told.instance, 0):
            self._batches[told.instance] = told.batch
            self._batches.move_to_end(told.instance)
            while len(self._batches) > MAX_KNOWN:
                self._batches.popitem(last=False)
            self._reported(told.report)

    def join(self, remote: RemoteHello, address: str, own_address: str) -> RemoteLink:
        """A gateway begins to listen; an earlier link of the same one is over."""
        link, hello = RemoteLink(remote, address, self._clock()), remote.hello
        before = self.links.get(remote.instance)
        if before is not None:
            before.end()
        self.links[remote.instance] = link
        told = {"host": link.host, "address": address, "listen": hello.listen, "pid": hello.process.pid}
        self._log.info("gateway of another host is here", **told)
        if hello.code_version != __version__:
            version = _cut(hello.code_version, MAX_VERSION_CHARS)
            self._log.warning("gateway of another host has another version", host=link.host, version=version)
        ready = (one for one in self.snapshot.replicas if one.state is ReplicaState.READY)
        out_of_reach = [one.id for one in ready if is_loopback_url(one.url)]
        if out_of_reach and not is_same_host(address, own_address):
            self._log.warning(
                "engines that listen on loopback cannot be asked from another host",
                host=link.host,
                replicas=out_of_reach,
                advice="give the pool the URLs of engines that listen on an address of the network",
            )
        self._changed()
        return link

    def leave(self, link: RemoteLink, cause: str) -> None:
        """It listens no more."""
        link.over = True
        if self.links.get(link.remote.instance) is link:
            del self.links[link.remote.instance]
            self._log.info("gateway of another host is gone", host=link.host, cause=cause)
            self._changed()

    def is_silent(self, link: RemoteLink) -> bool:
        return self._clock() - max(link.reported_at_s, link.joined_s) > self._silent_s


class LinkAnswer:
    """The answer that does not end, as an ASGI application."""

    def __init__(self, gateways: RemoteGateways, remote: RemoteHello) -> None:
        self._gateways, self._remote = gateways, remote

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"application/x-ndjson"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # nginx passes each line on at once
        ]
        self._gateways.answers += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            look = self._gateways.snapshot if self._remote.look else None
            await send(_body(msgspec.json.encode(Word(PROTOCOL, __version__, look)) + b"\n"))
            if not self._remote.look:
                address, own_address = (str((scope.get(end) or ("",))[0]) for end in ("client", "server"))
                link = self._gateways.join(self._remote, address, own_address)
                await self._serve(link, receive, send)
            await send(_body(b"", more=False))
        finally:
            self._gateways.answers -= 1

    async def _serve(self, link: RemoteLink, receive: Receive, send: Send) -> None:
        gone = asyncio.get_running_loop().create_task(_until_gone(receive, link))
        cause = "control ends"
        try:
            cause = await self._tell(link, send)
        except TimeoutError:
            self._gateways.leave(link, f"it has read nothing for {self._gateways.write_s:g} s")
            await gone  # not even the end can be written
        finally:
            self._gateways.leave(link, cause)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    async def _tell(self, link: RemoteLink, send: Send) -> str:
        """Everything there is to tell, until the link is over; why it is. Raises TimeoutError if nobody reads."""
        gateways, told = self._gateways, NOTHING
        while not link.over:
            link.wake.clear()
            line = gateways.line
            await asyncio.wait_for(send(_body(NOTHING if line is told else line)), gateways.write_s)
            told = line
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(link.wake.wait(), HEARTBEAT_S)
            if gateways.is_silent(link):
                return "it reports nothing"
        return "it closed the connection"


def for_other_hosts(snapshot: FleetSnapshot, own: Mapping[str, int]) -> FleetSnapshot:
    """The same for gateways that cannot see this host's processes and have a port of their own."""
    return msgspec.structs.replace(
        snapshot,
        replicas=tuple(msgspec.structs.replace(one, pid=None) for one in snapshot.replicas),
        options=msgspec.structs.replace(snapshot.options, **own),
    )


async def _until_gone(receive: Receive, link: RemoteLink) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    link.end()


def _body(data: bytes, *, more: bool = True) -> MutableMapping[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _cut(text: str, most: int) -> str:
    """What another host says of itself may be anything, and is shown in a terminal."""
    return "".join(char if char.isprintable() else " " for char in text[:most])
