"""Replicas that hang: what is held against them, and that only they are ended."""

import asyncio

import pytest
from test_control import Site

from tidegate import logs
from tidegate.control.supervisor import AGREE, Look, Step, Suspicion, after, suspected
from tidegate.fleet import local
from tidegate.types import ReplicaReport, ReplicaState

STUCK_S = 30.0


def row(in_flight=0, health=""):
    return ReplicaReport("p-0", in_flight, 0, 0, reachable=True, health=health)


def steps(looks):
    held, taken = Suspicion(), []
    for number, look in enumerate(looks):
        held, step = after(held, look(float(number)), stuck_s=STUCK_S)
        taken.append(step)
    return taken


def look(*, suspected=False, working=False, computed=True, alone=False):
    return lambda at_s: Look(at_s, suspected, working, computed, alone)


def test_gateways_agree_where_one_says_stuck_and_none_has_work_there_that_goes_on():
    assert suspected([row(health="stuck")], before=False)
    assert suspected([row(health="stuck"), row(in_flight=0)], before=False)
    assert not suspected([row(health="stuck"), row(in_flight=1)], before=False)
    assert not suspected([row(health="stalled"), row(health="status")], before=False)
    assert not suspected([], before=True)


def test_what_is_found_wrong_with_one_that_is_out_already_is_no_acquittal():
    assert suspected([row(health="broken")], before=True)
    assert not suspected([row(health="")], before=True)


def test_agreement_ends_a_replica_after_so_many_looks_and_not_before():
    assert steps([look(suspected=True)] * AGREE) == [Step.WAIT] * (AGREE - 1) + [Step.END]
    interrupted = [look(suspected=True)] * (AGREE - 1) + [look()] + [look(suspected=True)] * (AGREE - 1)
    assert set(steps(interrupted)) == {Step.WAIT}


def test_the_last_of_its_pool_is_never_ended_on_suspicion_alone():
    assert set(steps([look(suspected=True, working=True, alone=True)] * 100)) == {Step.WAIT}


def test_the_last_of_its_pool_is_asked_once_it_was_silent_for_long_enough():
    silent = look(working=True, computed=False, alone=True)
    assert steps([silent] * 31) == [Step.WAIT] * 30 + [Step.ASK]
    assert set(steps([silent] * 29 + [look(working=True, alone=True)] + [silent] * 29)) == {Step.WAIT}
    assert set(steps([silent] * 29 + [look(alone=True, computed=False)] + [silent] * 29)) == {Step.WAIT}


def test_silence_of_one_with_sound_siblings_waits_for_the_gateways():
    assert set(steps([look(working=True, computed=False)] * 100)) == {Step.WAIT}


@pytest.fixture
async def site(home):
    logs.set_level("critical")
    site = Site(home)
    site.flags["gateway"]["stuck_s"] = 1.0
    await site.up()
    site.control._supervisor._look_s = 0.05
    yield site
    await site.control.stop()
    left = local.find_sessions("TIDEGATE_HOME", str(home.path))
    for process in left:
        local.kill(process)
    assert not left
    logs.set_level("warning")


async def another(site, name, pid):
    """Wait until it is another process, and ready; the states that gateways were told on the way."""

    async def replaced():
        one = next(one for one in site.control.status().replicas if one.id == name)
        return one.state is ReplicaState.READY and one.pid not in {pid, None}

    await site.until(replaced)
    told = [dict(states)[name] for states in (await site.ask())["seen"]]
    return [state for number, state in enumerate(told) if number == 0 or told[number - 1] != state]


async def test_a_replica_that_every_gateway_finds_stuck_is_ended_and_comes_back(site):
    before = site.pids()
    await site.ask("/say?p-0=stuck:1")
    await site.until(lambda: asyncio.sleep(0, site.control.replicas.keepers["p-0"].view.restarts))
    await site.ask("/say?p-0=:0")
    states = await another(site, "p-0", before["p-0"])
    assert states[-4:] in (["ready", "stuck", "starting", "ready"], ["stuck", "starting", "warming", "ready"])
    assert site.pids()["p-1"] == before["p-1"]


async def test_both_of_a_pool_are_not_ended_because_both_are_under_suspicion(site):
    """Their engines close every connection, so that neither answers; but neither has any work, nor is asked."""
    before = site.pids()
    await site.ask("/say?p-0=stalled:0")
    await site.ask("/say?p-1=status:3")
    await asyncio.sleep(1.0)
    assert site.pids() == before


async def test_the_last_one_is_ended_when_it_has_work_and_says_nothing(site):
    await site.control.steering.scale("p", 1)
    before = site.pids()
    await site.ask("/say?p-0=:1")
    await site.until(lambda: asyncio.sleep(0, site.control.replicas.keepers["p-0"].view.restarts))
    assert "it was silent for" in site.control.replicas.keepers["p-0"].view.cause
    await site.ask("/say?p-0=:0")
    await another(site, "p-0", before["p-0"])
