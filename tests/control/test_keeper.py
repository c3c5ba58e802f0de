import asyncio
import random
import time

import pytest

from tidegate import logs
from tidegate.control.keeper import Keeper, World
from tidegate.control.restarts import RestartPolicy
from tidegate.errors import EngineStartError, ModelError
from tidegate.types import ProcessId, ReplicaState

POLICY = RestartPolicy(first_s=0.001, factor=1.0, give_up=4, give_up_unready=2)


class Child:
    def __init__(self, pid):
        self.id = ProcessId(pid=pid, started=0)
        self.end = asyncio.get_running_loop().create_future()

    def alive(self):
        return not self.end.done()

    async def wait(self):
        return await asyncio.shield(self.end)


class Life:
    """A life whose end and whose answers the test decides."""

    def __init__(self, pid, start_error=None, ready_error=None):
        self.child = Child(pid)
        self.start_error, self.ready_error = start_error, ready_error
        self.started = self.stopped = False

    async def start(self):
        self.started = True
        if self.start_error:
            raise self.start_error

    async def ready(self):
        if self.ready_error:
            raise self.ready_error

    async def stop(self, grace_s):
        self.stopped = True
        if not self.child.end.done():
            self.child.end.set_result(-15)


class Scene:
    def __init__(self, lives, **more):
        self.made, self.changes = [], []
        world = World(clock=time.monotonic, wall=time.time, rng=random.Random(1), log=logs.get())
        source = iter(lives)

        def make():
            self.made.append(next(source))
            return self.made[-1]

        self.keeper = Keeper("x-0", make, world=world, changed=self.changed, policy=POLICY, **more)
        self.keeper.begin()

    def changed(self):
        self.changes.append(self.keeper.view)

    async def until(self, state, made=1):
        deadline = time.monotonic() + 5
        while self.keeper.view.state is not state or len(self.made) < made:
            assert time.monotonic() < deadline, self.keeper.view
            await asyncio.sleep(0.001)
        return self.keeper.view


async def test_states_follow_a_life_from_start_to_stop():
    scene = Scene([Life(1)])
    await scene.until(ReplicaState.READY)
    await scene.keeper.stop(1.0)
    states = [view.state for view in scene.changes]
    assert states == [ReplicaState.WARMING, ReplicaState.READY, ReplicaState.STOPPED]
    assert scene.made[0].stopped


async def test_a_process_that_dies_is_started_again_and_its_end_is_told():
    scene = Scene([Life(1), Life(2)])
    await scene.until(ReplicaState.READY)
    scene.made[0].child.end.set_result(-9)
    view = await scene.until(ReplicaState.READY, made=2)
    assert (view.pid, view.restarts) == (2, 1)
    assert scene.made[0].stopped
    assert "it was ended by signal 9" in {view.cause for view in scene.changes}
    await scene.keeper.stop(1.0)


async def test_one_that_never_becomes_ready_is_given_up_with_cause_and_log():
    error = EngineStartError("it died", log_tail=("a", "b"), cause="out of memory")
    scene = Scene([Life(1, ready_error=error), Life(2, ready_error=error)])
    view = await scene.until(ReplicaState.FAILED)
    assert len(scene.made) == 2
    assert view.cause == "out of memory; it ended 2 times in a row and is left alone"
    assert view.log_tail == ("a", "b")
    await scene.keeper.stop(1.0)


async def test_what_an_operator_must_mend_is_not_tried_again():
    scene = Scene([Life(1, start_error=ModelError("needs 9 GiB, 2 GiB are free"))])
    view = await scene.until(ReplicaState.FAILED)
    assert isinstance(view.error, ModelError)
    assert len(scene.made) == 1
    await scene.keeper.stop(1.0)


async def test_an_adopted_life_goes_on_and_is_followed_by_one_of_ours():
    adopted = Life(7)
    scene = Scene([Life(8)], adopted=adopted)
    await scene.until(ReplicaState.READY, made=0)
    assert scene.keeper.view.pid == 7
    adopted.child.end.set_result(None)
    view = await scene.until(ReplicaState.READY, made=1)
    assert view.pid == 8
    await scene.keeper.stop(1.0)


async def test_a_stop_during_the_wait_for_a_restart_starts_nothing():
    slow = RestartPolicy(first_s=60.0, jitter=0.0)
    world = World(clock=time.monotonic, wall=time.time, rng=random.Random(1), log=logs.get())
    lives = [Life(1)]
    keeper = Keeper("x-0", lives.pop, world=world, changed=lambda: None, policy=slow)
    keeper.begin()
    while keeper.view.state is not ReplicaState.READY:
        await asyncio.sleep(0.001)
    keeper.life.child.end.set_result(1)
    while keeper.view.restarts == 0:
        await asyncio.sleep(0.001)
    await asyncio.wait_for(keeper.stop(1.0), 1.0)
    assert keeper.view.state is ReplicaState.STOPPED


async def test_a_start_that_the_system_refuses_is_a_death_like_others():
    scene = Scene([Life(1, start_error=FileNotFoundError("python")), Life(2)])
    view = await scene.until(ReplicaState.READY, made=2)
    assert view.restarts == 1
    await scene.keeper.stop(1.0)


@pytest.fixture(autouse=True)
def _quiet():
    logs.set_level("error")
    yield
    logs.set_level("warning")
