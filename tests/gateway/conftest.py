import asyncio
import hashlib

import pytest
import uvloop

from gateway.byte_engine import ByteEngine
from gateway.wire import Client, listening_socket, until
from tidegate.gateway.app import Gateway
from tidegate.types import FleetSnapshot, GatewayOptions, KeyView, ModelView, Outcome, ProcessId


def pytest_asyncio_loop_factories(config, item):
    """The loop that the data path runs on."""
    return {"uvloop": uvloop.new_event_loop}


def key_view(secret: str, **options) -> KeyView:
    return KeyView(digest=hashlib.sha256(secret.encode()).hexdigest(), name="k", tenant="t", **options)


class Running:
    """A gateway on a port of its own."""

    def __init__(self, gateway: Gateway, listening) -> None:
        self.gateway, self.listening = gateway, listening
        self.port = listening.getsockname()[1]

    def connect(self, **options):
        return Client.connect(self.port, **options)

    def replica(self, name: str = "pool-0"):
        return self.gateway.fleet.replicas[name]

    @property
    def outcomes(self):
        return {name: count for name, count in self.gateway.metrics.by_outcome().items() if count}

    async def ended(self, outcome: Outcome, count: int = 1) -> None:
        """Wait for so many ends, all of them of this kind."""
        await until(lambda: self.outcomes == {outcome.value: count}, f"{count} {outcome}")


@pytest.fixture
async def engine():
    """`await engine(script)`: a byte engine that ends with the test."""
    running = []

    async def start(script=None):
        running.append(await ByteEngine().start(script))
        return running[-1]

    yield start
    for one in running:
        await one.stop()


@pytest.fixture
async def gateway():
    """`await gateway(views…)`: a gateway before these replicas. At the end nothing of a request may be left in it."""
    faults = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    started = []

    async def start(*views, models=None, options=None, files=None, **snapshot):
        options = options or GatewayOptions()
        models = models or (ModelView("m"),)
        whole = FleetSnapshot(number=1, models=models, replicas=views, options=options, **snapshot)
        listening = listening_socket()
        running = Running(Gateway(whole, listen_host="127.0.0.1", process=ProcessId(1, 1), files=files), listening)
        await running.gateway.server.start(listening)
        started.append(running)
        return running

    yield start
    for running in started:
        app = running.gateway
        await until(lambda app=app: not app.metrics.in_flight, "every request having ended")
        assert all(replica.in_flight == 0 for replica in app.fleet.replicas.values()), "every permit is back"
        await until(lambda app=app: not app.flights.tasks, "no task is left")
        endpoints = [replica.endpoint for replica in app.fleet.replicas.values()]
        await app.close(0)
        await until(lambda them=endpoints: not any(one.connections for one in them), "no connection is left")
        assert not app.server.connections
        running.listening.close()
    assert not faults, faults


CHAT = "/v1/chat/completions"


@pytest.fixture
def ask():
    """`await ask(running, stream=True, …)`: one chat request on a connection of its own."""

    async def send(running, *, path=CHAT, headers=(), **fields):
        import json

        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "你好"}], **fields}).encode()
        async with await running.connect() as client:
            return await client.ask("POST", path, body, headers)

    return send
