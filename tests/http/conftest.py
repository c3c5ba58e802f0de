import asyncio

import pytest
import uvloop

from gateway.wire import Client, listening_socket
from tidegate.http import HttpServer, Limits, Outbox


def pytest_asyncio_loop_factories(config, item):
    """The loop that the data path runs on."""
    return {"uvloop": uvloop.new_event_loop}


class Served:
    """An HttpServer on a port of its own, which keeps every exchange it was handed."""

    def __init__(self, server, listening):
        self.server, self.listening = server, listening
        self.port = listening.getsockname()[1]
        self.exchanges = []

    @property
    def requests(self):
        return [exchange.request for exchange in self.exchanges]

    @property
    def connection(self):
        (connection,) = self.server.connections
        return connection

    def connect(self, **options):
        return Client.connect(self.port, **options)


def echo(exchange):
    """Answers with what it was asked."""
    request = exchange.request
    exchange.respond(200, [(b"x-path", request.path.encode())], request.body)


@pytest.fixture
async def serve():
    """`await serve(handler, limits)`: a server; at the end of the test none may have a connection left."""
    faults = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    running = []

    async def start(handler=echo, limits=None, *, listening=None, tls=None, **options):
        listening = listening or listening_socket()
        options.setdefault("outbox", Outbox())  # as a gateway has it

        def handle(exchange):
            served.exchanges.append(exchange)
            handler(exchange)

        served = Served(HttpServer(handle, limits or Limits(), **options), listening)
        await served.server.start(listening, tls)
        running.append(served)
        return served

    yield start
    for served in running:
        await served.server.close()
        served.listening.close()
        assert not served.server.connections
    assert not faults, faults
