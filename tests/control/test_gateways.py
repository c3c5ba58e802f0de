import asyncio
import os
import socket
import time

import pytest

from tidegate import channel, logs
from tidegate.channel import ChannelClosedError
from tidegate.control.gateways import Gateways
from tidegate.fleet.local import process_id
from tidegate.types import DataReport, FleetSnapshot, Hello


@pytest.fixture
async def gateways(home):
    hub = Gateways(home.run / "control.sock", clock=time.monotonic, log=logs.get())
    hub.open()
    yield hub
    await hub.close()


OWN = process_id(os.getpid())


def report(snapshot):
    return DataReport(process=OWN, snapshot=snapshot, connections=1, in_flight=0, requests={}, replicas=())


@pytest.fixture
async def peer(gateways, home):
    """A gateway that has said hello and handed over its listening socket."""
    listening = socket.create_server(("127.0.0.1", 0))
    connected = channel.connect(home.run / "control.sock")
    await connected.send(Hello(process=OWN, listen="127.0.0.1:0", code_version="x"), (listening.fileno(),))
    yield connected, listening
    connected.close()
    listening.close()


async def test_a_gateway_is_given_the_snapshot_on_arrival_and_every_later_one(gateways, peer):
    gateways.publish(FleetSnapshot(number=1))
    connected, _ = peer
    first, _ = await connected.receive(FleetSnapshot)
    gateways.publish(FleetSnapshot(number=2, keys_required=True))
    second, _ = await connected.receive(FleetSnapshot)
    assert (first.number, second.number, second.keys_required) == (1, 2, True)


async def test_a_burst_of_snapshots_ends_with_the_newest(gateways, peer):
    connected, _ = peer
    for number in range(1, 50):
        gateways.publish(FleetSnapshot(number=number))
    got = 0
    while got < 49:
        snapshot, _ = await asyncio.wait_for(connected.receive(FleetSnapshot), 5)
        assert snapshot.number > got
        got = snapshot.number


async def test_the_listening_socket_arrives_and_outlives_the_gateways_own(gateways, peer):
    _, listening = peer
    link = await gateways.arrival(OWN, timeout_s=5)
    kept, link.listening = link.listening, None
    address = listening.getsockname()
    listening.close()
    with kept, socket.create_connection(address, timeout=5), kept.accept()[0]:
        assert kept.getsockname() == address


async def test_arrival_waits_for_a_report_of_the_snapshot(gateways, peer):
    connected, _ = peer
    gateways.publish(FleetSnapshot(number=3))
    assert await gateways.arrival(OWN, snapshot=3, timeout_s=0.05) is None
    await connected.send(report(2))
    assert await gateways.arrival(OWN, snapshot=3, timeout_s=0.05) is None
    await connected.send(report(3))
    link = await gateways.arrival(OWN, snapshot=3, timeout_s=5)
    assert link.report.connections == 1


async def test_a_gateway_that_goes_away_is_forgotten_and_may_come_back(gateways, peer, home):
    connected, _ = peer
    await gateways.arrival(OWN, timeout_s=5)
    connected.close()
    deadline = time.monotonic() + 5
    while gateways.links:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    again = channel.connect(home.run / "control.sock")
    await again.send(Hello(process=OWN, listen="127.0.0.1:0", code_version="x"))
    assert (await gateways.arrival(OWN, timeout_s=5)).listening is None
    again.close()


async def test_what_is_no_greeting_is_let_go_and_others_are_served_on(gateways, home, peer):
    stranger = channel.connect(home.run / "control.sock")
    await stranger.send({"hello": 1})
    with pytest.raises(ChannelClosedError):
        await stranger.receive(FleetSnapshot)
    stranger.close()
    assert await gateways.arrival(OWN, timeout_s=5)


async def test_the_socket_is_the_owners_alone_and_goes_with_the_hub(home):
    hub = Gateways(home.run / "control.sock", clock=time.monotonic, log=logs.get())
    hub.open()
    assert (home.run / "control.sock").stat().st_mode & 0o777 == 0o600
    await hub.close()
    assert not (home.run / "control.sock").exists()
    with pytest.raises(ChannelClosedError):
        channel.connect(home.run / "control.sock")


async def test_a_deep_data_folder_has_a_socket_too(tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    listening = channel.listen(deep / "control.sock")
    connected = channel.connect(deep / "control.sock")
    connected.close()
    listening.close()
