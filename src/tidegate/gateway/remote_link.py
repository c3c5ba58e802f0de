"""The talk with control on another host: as `link` has it over a Unix socket, over HTTP.

Control may go away at any time: the gateway serves on with its last snapshot and looks for control, sooner at first and
then every few seconds, never at the same moment as all others. What was used meanwhile is told once control is back.

Two things of a snapshot are this host's own. Whoever can connect needs a key unless that was allowed here, whatever
control's own port does. And an engine on the loopback of control's host is none here: somebody else may listen on the same
port of this host, and must get neither requests nor the engine's key.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from tidegate import logs
from tidegate.channel import RemoteHello, RemoteReport
from tidegate.config import is_loopback
from tidegate.config.addresses import is_loopback_url
from tidegate.errors import OperatorError
from tidegate.gateway.control_client import AwayError, ControlClient, Words
from tidegate.types import DataReport, FleetSnapshot, ReplicaState

REPORT_S: Final = 1.0
LAST_REPORT_S: Final = 2.0
"""Longest wait at the end for the last report to leave."""
BREATH_S: Final = 0.02
"""After each word, so that one who never stops talking does not keep the gateway from its work."""
RETRY_S: Final = 0.25
RETRY_MOST_S: Final = 5.0
STEADY_S: Final = 10.0
"""A talk that lasted so long was none that fails at once."""


UNUSABLE: Final = (ValueError, TypeError, LookupError, ArithmeticError)
"""What a snapshot raises that is of the right shape and makes no sense."""


def unusable(error: Exception) -> AwayError:
    """What to say of it."""
    return AwayError(f"control's snapshot cannot be used: {type(error).__name__}: {error}")


def retry_s(failures: int, random: float) -> float:
    """How long to wait after so many failures in a row; `random` is from [0, 1)."""
    longest = min(RETRY_MOST_S, RETRY_S * 2.0 ** min(failures, 16))
    return longest * (0.5 + random / 2)


@dataclass(frozen=True)
class Here:
    """What is this host's own."""

    listen: str
    allow_anonymous: bool


def for_this_host(snapshot: FleetSnapshot, here: Here, *, same_host: bool) -> tuple[FleetSnapshot, tuple[str, ...]]:
    """The snapshot as it holds here, and the replicas that cannot be asked from here."""
    out_of_reach: list[str] = []
    replicas = []
    for one in snapshot.replicas:
        if same_host or not is_loopback_url(one.url):
            replicas.append(one)
            continue
        if one.state is ReplicaState.READY:
            out_of_reach.append(one.id)
        replicas.append(msgspec.structs.replace(one, state=ReplicaState.FAILED, api_key=""))
    open_to_all = here.allow_anonymous or is_loopback(here.listen)
    ours = msgspec.structs.replace(
        snapshot,
        replicas=tuple(replicas),
        keys_required=snapshot.keys_required or not open_to_all,
        options=msgspec.structs.replace(snapshot.options, allow_anonymous=here.allow_anonymous),
    )
    return ours, tuple(out_of_reach)


class RemoteLink:
    """Keeps a gateway in touch with control on another host.

    `last` is the snapshot it works with, `report` takes what was used since the last one, `unsent` takes back what could not be told. `random` gives [0, 1).
    """

    def __init__(
        self,
        client: ControlClient,
        remote: RemoteHello,
        here: Here,
        *,
        last: FleetSnapshot,
        apply: Callable[[FleetSnapshot], None],
        report: Callable[[], DataReport],
        unsent: Callable[[DataReport], None],
        random: Callable[[], float],
    ) -> None:
        self._client, self._remote, self._here = client, remote, here
        self._apply, self._report, self._unsent, self._random = apply, report, unsent, random
        self._last = last
        self._out_of_reach: tuple[str, ...] = ()
        self._batch = 0
        self._pending: DataReport | None = None
        """Whose usage control may have, or not: the next report tells the same under the same number."""
        self._ending = asyncio.Event()
        self._trouble = ""

    async def run(self) -> None:
        """Talk to control until cancelled; a last report is sent then."""
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while True:
                began_s = loop.time()
                try:
                    await self._talk()
                except OperatorError as error:
                    self._tell(str(error))
                failures = 0 if loop.time() - began_s > STEADY_S else failures
                await asyncio.sleep(retry_s(failures, self._random()))
                failures += 1
        finally:
            self._client.close()
            if self._pending is not None:
                self._unsent(self._pending)

    async def _talk(self) -> None:
        """Until it ends. Raises OperatorError."""
        async with self._client.listen(self._remote) as words:
            await words.first()
            if self._trouble:
                self._trouble = ""
                logs.get().info("control is back", url=self._client.url.text)
            loop = asyncio.get_running_loop()
            reporting = loop.create_task(self._send_reports())
            receiving = loop.create_task(self._receive(words))
            try:
                done, _ = await asyncio.wait({reporting, receiving}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            except asyncio.CancelledError:
                self._ending.set()
                with contextlib.suppress(TimeoutError, OperatorError):
                    await asyncio.wait_for(asyncio.shield(reporting), LAST_REPORT_S)
                raise
            finally:
                reporting.cancel()
                receiving.cancel()
                await asyncio.gather(reporting, receiving, return_exceptions=True)

    async def _receive(self, words: Words) -> None:
        while True:
            word = await words.next()
            if word.snapshot is not None:
                self._take(word.snapshot, same_host=words.same_host)
            await asyncio.sleep(BREATH_S)

    def _take(self, snapshot: FleetSnapshot, *, same_host: bool) -> None:
        ours, out_of_reach = for_this_host(snapshot, self._here, same_host=same_host)
        try:
            self._apply(ours)
        except UNUSABLE as error:
            self._apply(self._last)  # part of the other one may have been taken over
            raise unusable(error) from error
        self._last = ours
        if out_of_reach != self._out_of_reach:
            self._out_of_reach = out_of_reach
            _tell_out_of_reach(out_of_reach)

    async def _send_reports(self) -> None:
        """Every second; one more when the end has come."""
        while True:
            ending = self._ending.is_set()
            await self._send_report()
            if ending:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), REPORT_S)

    async def _send_report(self) -> None:
        report = self._report()
        if self._pending is None:
            self._batch += 1
        else:
            self._unsent(report)
            report = msgspec.structs.replace(report, usage=self._pending.usage, spreads=self._pending.spreads)
        self._pending = report
        await self._client.report(RemoteReport(self._remote.instance, self._batch, report))
        self._pending = None

    def _tell(self, cause: str) -> None:
        if cause != self._trouble:
            self._trouble = cause
            logs.get().warning("control is away; serving on with its last word", cause=cause)


def _tell_out_of_reach(replicas: tuple[str, ...]) -> None:
    """Say which engines only control's own host can ask."""
    if replicas:
        logs.get().warning(
            "engines that listen on the loopback of control's host cannot be asked from here",
            replicas=list(replicas),
            advice="give their pool the URLs of engines that listen on an address of the network",
        )
