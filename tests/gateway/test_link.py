"""The gateway's talk with control: what it tells only once is told, whoever goes away when."""

import asyncio
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from gateway.wire import until
from tidegate import channel, logs
from tidegate.channel import Channel, ChannelClosedError
from tidegate.gateway.link import Link
from tidegate.types import DataReport, FleetSnapshot, Hello, Outcome, ProcessId, UsageCount

OWN = ProcessId(1, 1)


class Scene:
    """A link, a control that a test plays, and usage that waits to be told."""

    def __init__(self, folder):
        self.path = folder / "control.sock"
        self.control = channel.listen(self.path)
        self.port = socket.create_server(("127.0.0.1", 0))
        self.waiting, self.snapshots = 0, []
        hello = Hello(OWN, "127.0.0.1:0", "x")
        link = Link(self.path, hello, self.port, apply=self.snapshots.append, report=self.report, unsent=self.give_back)
        self.running = asyncio.ensure_future(link.run())

    def report(self):
        taken, self.waiting = self.waiting, 0
        usage = (UsageCount("2026-01-01", "t", "", "m", Outcome.DONE, taken, 0, 0),) if taken else ()
        number = self.snapshots[-1].number if self.snapshots else 0
        return DataReport(OWN, number, 0, 0, {}, (), usage)

    def give_back(self, report):
        self.waiting += told(report)

    async def accept(self):
        """Control's side of the next connection, after the greeting, and the descriptors that came with it."""
        side = Channel((await asyncio.get_running_loop().sock_accept(self.control))[0])
        _, descriptors = await asyncio.wait_for(side.receive(Hello), 5)
        for descriptor in descriptors:
            socket.close(descriptor)
        return side, len(descriptors)

    async def end(self):
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


def told(report):
    return sum(one.requests for one in report.usage)


@pytest.fixture
async def scene():
    logs.set_level("critical")
    folder = tempfile.mkdtemp(prefix="tg-")
    scene = Scene(Path(folder))
    yield scene
    await scene.end()
    scene.control.close()
    scene.port.close()
    shutil.rmtree(folder)
    logs.set_level("warning")


async def test_a_snapshot_is_applied_and_answered_with_a_report_at_once(scene):
    control, sockets = await scene.accept()
    assert sockets == 1
    assert (await control.receive(DataReport))[0].snapshot == 0
    await control.send(FleetSnapshot(number=7))
    assert (await asyncio.wait_for(control.receive(DataReport), 0.5))[0].snapshot == 7
    control.close()


async def test_what_could_not_be_sent_is_told_to_the_next_control(scene):
    control, _ = await scene.accept()
    await control.receive(DataReport)
    scene.waiting = 3
    control.close()
    await until(lambda: scene.waiting == 3, "usage that waits")
    control, _ = await scene.accept()
    assert told((await asyncio.wait_for(control.receive(DataReport), 5))[0]) == 3
    control.close()


async def test_the_last_report_is_sent_at_the_end_and_says_what_ended_meanwhile(scene):
    control, _ = await scene.accept()
    await control.receive(DataReport)
    scene.waiting = 2
    await scene.end()
    assert told((await control.receive(DataReport))[0]) == 2
    with pytest.raises(ChannelClosedError):
        await control.receive(DataReport)
    control.close()


async def test_a_gateway_that_drains_goes_on_talking_without_its_socket(scene):
    control, _ = await scene.accept()
    scene.port.close()
    control.close()
    control, sockets = await scene.accept()
    assert sockets == 0
    await control.send(FleetSnapshot(number=9))
    await until(lambda: scene.snapshots, "the snapshot")
    control.close()


async def test_an_end_without_control_is_no_fault(scene):
    scene.waiting = 1
    scene.control.close()
    await scene.end()
    assert scene.running.cancelled()
