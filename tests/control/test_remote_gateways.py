"""Control's side of gateways on other hosts, at a real admin port, spoken to by the gateway's own client."""

import asyncio
import os
import secrets
import socket
import time
from dataclasses import replace

import httpx
import msgspec
import pytest

from tidegate import logs
from tidegate.channel import LINK_PATH, PROTOCOL, REPORT_PATH, RemoteHello, RemoteReport, Word
from tidegate.config import GatewaySettings
from tidegate.control import ports, state
from tidegate.control.admin import MAX_REPORT_BYTES, AdminServer
from tidegate.control.plan import Plan
from tidegate.control.remote_gateways import RemoteGateways
from tidegate.control.snapshot import Keys, build, of_a_port
from tidegate.errors import OperatorError
from tidegate.fleet.local import process_id
from tidegate.gateway.control_client import AwayError, ControlClient, ControlUrl
from tidegate.types import (
    DataReport,
    DialectName,
    FleetSnapshot,
    GatewayOptions,
    Hello,
    KeyView,
    Outcome,
    ReplicaState,
    ReplicaView,
    UsageCount,
)

ADMIN_TOKEN, GATEWAY_TOKEN = secrets.token_urlsafe(16), secrets.token_urlsafe(16)
OWN = process_id(os.getpid())


def greeting(instance="a" * 16, **more):
    hello = Hello(process=OWN, listen="10.0.0.2:8000", code_version="0")
    return RemoteHello(**{"protocol": PROTOCOL, "instance": instance, "host": "gw-b", "hello": hello, **more})


def report(snapshot=0, requests=0):
    usage = (UsageCount("2026-01-01", "t", "", "m", Outcome.DONE, requests, 0, 0),) if requests else ()
    return DataReport(OWN, snapshot, connections=1, in_flight=0, requests={}, replicas=(), usage=usage)


def replica(url):
    return ReplicaView("p-0", "p", "m", url, DialectName.OPENAI, ReplicaState.READY, pid=os.getpid())


class Scene:
    """An admin port with gateways on other hosts, and what it made of them."""

    def __init__(self, **more):
        self.usage, self.changes = [], 0
        self.hub = RemoteGateways(
            clock=time.monotonic,
            log=logs.get(),
            reported=lambda told: self.usage.append(sum(one.requests for one in told.usage)),
            changed=self.change,
            **more,
        )
        listening = ports.bind("127.0.0.1:0", "admin.listen")
        self.url = f"http://{ports.address_of(listening)}"
        self.server = AdminServer(
            None,
            None,
            token=ADMIN_TOKEN,
            listen="127.0.0.1:0",
            allowed_hosts=(),
            remote=self.hub,
            gateway_token=GATEWAY_TOKEN,
        )
        self.server.open(listening)

    def change(self):
        self.changes += 1

    def client(self, token=GATEWAY_TOKEN):
        return ControlClient(ControlUrl.parse(self.url), lambda: token, None)

    async def close(self):
        self.hub.close()
        await self.server.close()


@pytest.fixture
async def scene():
    scene = Scene()
    yield scene
    await scene.close()


async def until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def snapshot_of(words):
    while True:
        word = await asyncio.wait_for(words.next(), 5)
        if word.snapshot is not None:
            return word.snapshot


async def end_of(words):
    while True:
        await words.next()


async def test_a_gateway_is_given_the_snapshot_on_arrival_and_every_later_one(scene):
    key = KeyView("ab" * 32, "first", "team")
    scene.hub.publish(FleetSnapshot(number=1, keys=(key,)))
    async with scene.client().listen(greeting()) as words:
        first = await words.first()
        assert first.protocol == PROTOCOL
        assert (await snapshot_of(words)).keys == (key,)
        for number in range(2, 50):
            scene.hub.publish(FleetSnapshot(number=number))
        numbers = [1]
        while numbers[-1] < 49:
            numbers.append((await snapshot_of(words)).number)
        assert numbers == sorted(set(numbers))


async def test_before_there_is_a_snapshot_control_only_says_that_it_lives(scene):
    async with scene.client().listen(greeting()) as words:
        await words.first()
        assert await words.next() == Word()
    snapshot, same_host = await scene.client().look(greeting())
    assert (snapshot.number, same_host) == (0, True)
    await until(lambda: not scene.hub.links)


async def test_who_only_looks_has_no_part_of_anything(scene):
    scene.hub.publish(FleetSnapshot(number=5))
    snapshot, _ = await scene.client().look(greeting())
    assert snapshot.number == 5
    assert scene.changes == 0


async def test_it_is_known_while_it_listens_and_forgotten_when_it_goes(scene):
    async with scene.client().listen(greeting(host="gw\x1b[31m" + "b" * 200)) as words:
        await words.first()
        await until(lambda: scene.hub.links)
        (link,) = scene.hub.links.values()
        assert (link.host, link.address) == ("gw [31m" + "b" * 57, "127.0.0.1")
        assert scene.changes == 1
    await until(lambda: not scene.hub.links)
    assert scene.changes == 2
    await until(lambda: scene.hub.answers == 0)


async def test_this_hosts_processes_and_its_ports_limits_are_not_for_others():
    scene = Scene(own=lambda: of_a_port(GatewayOptions(max_connections=900)))
    try:
        shared = GatewayOptions(max_connections=300, processes=4)
        scene.hub.publish(FleetSnapshot(number=1, replicas=(replica("http://10.0.0.9:1"),), options=shared))
        snapshot, _ = await scene.client().look(greeting())
        assert snapshot.replicas[0].pid is None
        assert (snapshot.options.max_connections, snapshot.options.processes) == (900, 4)
    finally:
        await scene.close()


def test_gateways_of_other_hosts_share_engines_and_keys_but_no_port():
    settings = GatewaySettings(processes=2, max_connections=100)
    alone = build(1, settings=settings, plan=Plan(), status={}, keys=Keys())
    both = build(1, settings=settings, plan=Plan(), status={}, keys=Keys(), elsewhere=3)
    assert (alone.options.processes, alone.options.max_connections) == (2, 50)
    assert (both.options.processes, both.options.max_connections) == (5, 50)


async def test_a_report_is_heard_and_what_was_used_counts_once(scene):
    client = scene.client()
    async with client.listen(greeting()) as words:
        await words.first()
        await until(lambda: scene.hub.links)
        for batch, requests in ((1, 3), (1, 3), (2, 0), (3, 4), (3, 4), (2, 9)):
            await client.report(RemoteReport("a" * 16, batch, report(7, requests)))
        (link,) = scene.hub.links.values()
        assert link.report.snapshot == 7
        assert not link.recent[-1].report.usage
    async with client.listen(greeting()) as words:  # it is still known what it has told before
        await words.first()
        await until(lambda: scene.hub.links)
        await client.report(RemoteReport("a" * 16, 3, report(7, 4)))
    assert scene.usage == [3, 0, 4]
    client.close()


async def test_a_flood_of_reports_is_not_kept(scene):
    client = scene.client()
    async with client.listen(greeting()) as words:
        await words.first()
        await until(lambda: scene.hub.links)
        for batch in range(1, 100):
            await client.report(RemoteReport("a" * 16, batch, report(batch)))
        (link,) = scene.hub.links.values()
        assert len(link.recent) <= 40
        assert link.recent[-1].report.snapshot == 99
    client.close()


async def test_a_report_of_one_that_has_not_greeted_is_refused(scene):
    client = scene.client()
    with pytest.raises(AwayError, match="has forgotten this gateway"):
        await client.report(RemoteReport("b" * 16, 1, report(1, 5)))
    assert not scene.usage
    client.close()


async def test_one_that_reports_nothing_has_left():
    scene = Scene(silent_s=0.1)
    try:
        async with scene.client().listen(greeting()) as words:
            await words.first()
            await words.next()
            with pytest.raises(AwayError, match="ended what it had to say"):
                await end_of(words)
        assert not scene.hub.links
    finally:
        await scene.close()


async def test_one_that_greets_again_is_there_once(scene):
    async with scene.client().listen(greeting()) as old:
        await old.first()
        await until(lambda: scene.hub.links)
        async with scene.client().listen(greeting()) as new:
            await new.first()
            await new.next()
            with pytest.raises(AwayError):
                await end_of(old)
            assert len(scene.hub.links) == 1
            scene.hub.publish(FleetSnapshot(number=3))
            assert (await snapshot_of(new)).number == 3


async def test_one_that_does_not_read_is_let_go_and_the_others_are_served():
    scene = Scene(write_s=0.3)
    deaf = socket.create_connection(_address(scene.url))
    try:
        body = msgspec.json.encode(greeting("d" * 16))
        deaf.sendall(_request(LINK_PATH, body))
        await until(lambda: "d" * 16 in scene.hub.links)
        async with scene.client().listen(greeting()) as words:
            await words.first()
            for number in range(1, 9):
                keys = tuple(KeyView("ab" * 32, "k" * 1000, "t") for _ in range(2000))
                scene.hub.publish(FleetSnapshot(number=number, keys=keys))
                assert (await snapshot_of(words)).number == number
            await until(lambda: list(scene.hub.links) == ["a" * 16])
    finally:
        deaf.close()
        await until(lambda: scene.hub.answers == 0)
        await scene.close()


async def test_an_end_of_control_is_the_end_of_every_link(scene):
    async with scene.client().listen(greeting()) as words:
        await words.first()
        began = time.monotonic()
        await scene.close()
        assert time.monotonic() - began < 10
        with pytest.raises(AwayError):
            await end_of(words)
    with pytest.raises(OperatorError):
        await scene.client().look(greeting())


@pytest.mark.parametrize("path", [LINK_PATH, REPORT_PATH])
@pytest.mark.parametrize("shown", ["Bearer", "Bearer wrong", f"Bearer {GATEWAY_TOKEN}x", f"Basic {GATEWAY_TOKEN}"])
async def test_nobody_else_gets_in(scene, path, shown):
    async with httpx.AsyncClient(base_url=scene.url, trust_env=False) as anybody:
        answer = await anybody.post(path, json={}, headers={"authorization": shown})
    assert answer.status_code == 401
    assert "gateway.token" in answer.text


async def test_the_gateways_token_opens_nothing_else(scene):
    headers = {"authorization": f"Bearer {GATEWAY_TOKEN}"}
    async with httpx.AsyncClient(base_url=scene.url, trust_env=False, headers=headers) as gateway:
        for method, path in (
            ("GET", "/admin/v1/status"),
            ("POST", "/admin/v1/reload"),
            ("POST", "/admin/v1/gateways/replace"),
            ("PUT", "/admin/v1/limits/p-0"),
            ("GET", f"{LINK_PATH}/"),
        ):
            assert (await gateway.request(method, path)).status_code == 401, path
    await scene.client(ADMIN_TOKEN).look(greeting())


async def test_what_is_no_greeting_and_no_report_is_refused_with_its_reason(scene):
    headers = {"authorization": f"Bearer {GATEWAY_TOKEN}", "content-type": "application/json"}
    async with httpx.AsyncClient(base_url=scene.url, trust_env=False, headers=headers) as gateway:
        for path, body, said in (
            (LINK_PATH, b"{", "not what a gateway's greeting takes"),
            (LINK_PATH, b"{}", "missing required field `protocol`"),
            (LINK_PATH, msgspec.json.encode(greeting("short")), "instance"),
            (LINK_PATH, b"x" * 70_000, "over 65536 bytes"),
            (REPORT_PATH, b"[]", "not what a gateway's report takes"),
            (REPORT_PATH, b" " * (MAX_REPORT_BYTES + 1), f"over {MAX_REPORT_BYTES} bytes"),
        ):
            answer = await gateway.post(path, content=body)
            assert answer.status_code == 400
            assert said in answer.json()["error"]["message"]
        assert (await gateway.get(LINK_PATH)).status_code == 405
        foreign = await gateway.post(LINK_PATH, content=b"{}", headers={"host": "evil.example"})
        assert foreign.status_code == 403


async def test_a_host_name_that_is_not_the_admin_ports_is_said_with_the_setting_that_adds_it(scene):
    url = replace(ControlUrl.parse(scene.url), authority="proxy.example")
    with pytest.raises(AwayError, match=r"admin\.allowed_hosts can add it"):
        await ControlClient(url, lambda: GATEWAY_TOKEN, None).look(greeting())


async def test_another_protocol_is_refused_in_words(scene):
    with pytest.raises(AwayError, match="install the same version on both hosts"):
        await scene.client().look(greeting(protocol=PROTOCOL + 1))


async def test_the_token_is_made_once_and_for_its_owner_alone(home):
    token = state.gateway_token(home)
    assert (home.path / "gateway.token").stat().st_mode & 0o777 == 0o600
    assert state.gateway_token(home) == token
    state.clear(home)
    assert state.gateway_token(home) == token
    (home.path / "gateway.token").write_text("short")
    assert len(state.gateway_token(home)) > 40


def _address(url):
    parsed = httpx.URL(url)
    return parsed.host, parsed.port


def _request(path, body):
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {GATEWAY_TOKEN}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
