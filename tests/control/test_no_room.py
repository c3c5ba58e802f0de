"""A replica that waits for room in a cluster holds up nobody."""

import asyncio

import pytest
from test_control import Engine, Site

from tidegate import logs
from tidegate.types import ReplicaState


class Waiting:
    """A replica without a place."""

    id, why = None, "it waits for room in the cluster"

    def __init__(self):
        self.ended = asyncio.Event()

    def alive(self):
        return not self.ended.is_set()

    async def wait(self):
        await self.ended.wait()

    async def stop(self, grace_s):
        self.ended.set()


class Homeless(Engine):
    """An engine that is never placed."""

    async def start(self):
        self.child = Waiting()

    async def ready(self):
        await asyncio.Event().wait()


@pytest.fixture
async def site(home):
    logs.set_level("critical")
    site = Site(home)
    yield site
    await site.control.stop()
    logs.set_level("warning")


async def test_everything_is_ready_without_a_replica_that_waits_for_room(site):
    control = await site.open()
    make = control.replicas._make_engine

    def make_engine(spec, spawn):
        return Homeless((), spawn, site.home.logs / "none.log") if spec.id == "p-1" else make(spec, spawn)

    control.replicas._make_engine = make_engine
    await control.start()
    await asyncio.wait_for(control.ready(), 20)
    assert {one.id: one.state for one in control.status().replicas} == {
        "p-0": ReplicaState.READY,
        "p-1": ReplicaState.WARMING,
    }
    assert control.status().ready
