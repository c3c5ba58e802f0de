"""Pools that get more and fewer replicas while everything runs, with engines that are plain processes."""

import asyncio
from pathlib import Path

import pytest
from test_control import BROKEN, ENGINE, site

from tidegate.control.hand import Hand
from tidegate.errors import BadRequest, ModelError, NotFound, OperatorError
from tidegate.types import ReplicaState

__all__ = ["site"]  # the fixture of the other tests of control

POOLS = [
    {"name": "p", "model": "m", "engine": "fake", "replicas": 2},
    {"name": "embed", "model": "e", "engine": "fake"},
    {"name": "far", "model": "f", "engine": "external", "urls": ["http://127.0.0.1:9"]},
]


async def ready(site, *names):
    async def all_ready():
        states = {one.id: one.state for one in site.control.status().replicas}
        return set(states) == set(names) and set(states.values()) == {ReplicaState.READY}

    await site.until(all_ready)


async def test_more_replicas_are_started_and_those_there_are_go_on(site):
    await site.up()
    before = site.pids()
    answer = await site.control.steering.scale("p", 3)
    assert (answer.before, answer.replicas, answer.begun, answer.gone) == (2, 3, ("p-2",), ())
    await ready(site, "p-0", "p-1", "p-2")
    assert {name: site.pids()[name] for name in before} == before

    async def told():
        return len((await site.ask())["replicas"]) == 3

    await site.until(told)


async def test_the_last_ones_go_and_nothing_is_asked_of_them_before_they_end(site):
    await site.up()
    answer = await site.control.steering.scale("p", 1)
    assert (answer.before, answer.replicas, answer.begun, answer.gone) == (2, 1, (), ("p-1",))
    assert [one.id for one in site.control.status().replicas] == ["p-0"]
    assert set(site.pids()) == {"gateway", "p-0"}
    states = [state for seen in (await site.ask())["seen"] for name, state in seen if name == "p-1"]
    assert states[-2:] in (["ready", "draining"], ["draining", "stopped"])


async def test_a_control_that_takes_over_keeps_the_number_and_one_that_begins_anew_does_not(site):
    await site.up()
    await site.control.steering.scale("p", 3)
    await ready(site, "p-0", "p-1", "p-2")
    before = site.pids()
    await site.abandon()
    await site.up()
    assert site.pids() == before
    await site.control.stop()
    await site.up()
    assert set(site.pids()) == {"gateway", "p-0", "p-1"}


async def test_a_reload_leaves_the_number_unless_the_settings_give_another(site):
    await site.up()
    await site.control.steering.scale("p", 3)
    site.flags["log"] = {"level": "error"}
    await site.control.reload(apply=True)
    await ready(site, "p-0", "p-1", "p-2")
    site.flags["pool"] = [{**POOLS[0], "replicas": 1}]
    await site.control.reload(apply=True)
    await ready(site, "p-0")
    assert Hand.load(site.home, lambda: None).replicas == {}


async def test_the_number_of_the_settings_is_nothing_to_be_remembered(site):
    await site.up()
    await site.control.steering.scale("p", 1)
    await site.control.steering.scale("p", 2)
    assert Hand.load(site.home, lambda: None).replicas == {}


async def test_what_was_given_up_is_begun_again(site):
    site.argv = BROKEN
    with pytest.raises(OperatorError):
        await site.up()
    site.argv = ENGINE
    again = await site.control.steering.scale("p", None)
    assert (again.before, again.replicas, again.begun) == (2, 2, ("p-0", "p-1"))
    await ready(site, "p-0", "p-1")


async def test_a_pool_that_is_not_there_a_size_that_cannot_be_and_engines_of_others_are_refused_in_words(site):
    site.flags["pool"] = POOLS
    await site.up()
    before = site.pids()
    scale = site.control.steering.scale
    with pytest.raises(NotFound, match=r"no pool 'q'; there are: p \(m, 2 replicas\), embed \(e, 1 replica\), far"):
        await scale("q", 1)
    for size in (0, -1, 65):
        with pytest.raises(BadRequest, match="is not from 1 to 64"):
            await scale("p", size)
    with pytest.raises(BadRequest, match="run elsewhere"):
        await scale("far", 2)
    assert site.pids() == before


async def test_without_room_nothing_is_begun_and_the_reason_is_told(site):
    asked = []

    async def room(specs):
        asked.append([spec.id for spec in specs])
        raise ModelError("it needs 9 GiB, and 2 GiB are available", hint="set fewer slots")

    await site.up()
    object.__setattr__(site.control._parts, "room", room)
    with pytest.raises(BadRequest, match="it needs 9 GiB, and 2 GiB are available; set fewer slots"):
        await site.control.steering.scale("p", 4)
    assert asked == [["p-2", "p-3"]]
    assert set(site.pids()) == {"gateway", "p-0", "p-1"}
    assert (await site.control.steering.scale("p", 1)).gone == ("p-1",)  # room is no question then


async def test_two_who_scale_at_once_come_one_after_the_other(site):
    await site.up()
    answers = await asyncio.gather(*(site.control.steering.scale("p", size) for size in (4, 1, 3)))
    assert [(one.before, one.replicas) for one in answers] == [(2, 4), (4, 1), (1, 3)]
    await ready(site, "p-0", "p-1", "p-2")
    assert all(Path(f"/proc/{pid}").exists() for pid in site.pids().values())
