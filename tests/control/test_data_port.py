"""The processes behind the data port, with small gateways: how many, who succeeds whom, and what they finish."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from control.test_control import BROKEN, Site
from tidegate import logs
from tidegate.errors import OperatorError
from tidegate.fleet import local


@pytest.fixture
async def site(home):
    logs.set_level("critical")
    site = Site(home)
    site.flags["pool"] = [{"name": "p", "model": "m", "engine": "fake", "replicas": 1}]
    yield site
    if site.control is not None:
        await site.control.stop()
    left = local.find_sessions("TIDEGATE_HOME", str(home.path))
    for process in left:
        local.kill(process)
    assert not left
    logs.set_level("warning")


def gateways(site):
    return {name: pid for name, pid in site.pids().items() if name.startswith("gateway")}


def records(site):
    return {record.name for record in site.control.launcher.records.all() if record.name.startswith("gateway")}


async def ended(site, pid):
    await site.until(lambda: asyncio.sleep(0, (stat := local.read_stat(pid)) is None or not stat.alive))


async def test_every_process_is_kept_by_itself(site):
    site.flags["gateway"]["processes"] = 3
    await site.up()
    before = gateways(site)
    assert set(before) == {"gateway", "gateway-2", "gateway-3"}
    os.kill(before["gateway-2"], signal.SIGKILL)

    async def back():
        return gateways(site)["gateway-2"] not in {before["gateway-2"], None}

    await site.until(back)
    now = gateways(site)
    assert (now["gateway"], now["gateway-3"]) == (before["gateway"], before["gateway-3"])
    assert site.control.status().ready


async def test_a_process_from_which_nothing_is_heard_hangs_and_is_replaced(site):
    site.flags["gateway"]["processes"] = 2
    await site.open()
    site.control.frontends.port._silent_s = 0.8
    await site.control.start()
    await asyncio.wait_for(site.control.ready(), 20)
    before = gateways(site)
    os.kill(before["gateway"], signal.SIGSTOP)

    async def replaced():
        return gateways(site)["gateway"] not in {before["gateway"], None}

    await site.until(replaced)
    assert gateways(site)["gateway-2"] == before["gateway-2"], "one that reports is left alone"
    await ended(site, before["gateway"])


async def test_a_replaced_process_finishes_what_it_has_beside_its_successor(site):
    await site.up()
    before = gateways(site)
    slow = await site.hold()
    assert await site.control.replace_gateways() == ("gateway",)
    now = gateways(site)
    assert now["gateway"] != before["gateway"]
    assert records(site) == {"gateway", f"gateway-old-{before['gateway']}"}
    assert {(await site.ask())["pid"] for _ in range(10)} == {now["gateway"]}
    assert not slow.done()
    site.release()
    assert (await slow)["pid"] == before["gateway"]
    await ended(site, before["gateway"])
    await site.until(lambda: asyncio.sleep(0, records(site) == {"gateway"}))


async def test_nobody_is_told_that_there_is_no_model_by_a_process_that_comes_later(site):
    await site.up()
    await site.control.replace_gateways()
    assert (await site.ask())["snapshot"] > 0


async def test_where_the_successor_does_not_come_up_the_old_one_serves_on_and_is_kept(site):
    await site.up()
    before, port = gateways(site), site.control.frontends.port
    command, port._command = port._command, BROKEN
    with pytest.raises(OperatorError, match=r"gateway cannot be replaced: .*status 3"):
        await site.control.replace_gateways()
    assert gateways(site) == before
    assert records(site) == {"gateway"}
    assert (await site.ask())["pid"] == before["gateway"]
    port._command = command
    os.kill(before["gateway"], signal.SIGKILL)
    assert (await site.ask())["pid"] != before["gateway"]


async def test_the_next_control_lets_a_replaced_process_finish(site):
    await site.up()
    before = gateways(site)
    slow = await site.hold()
    await site.control.replace_gateways()
    now = gateways(site)
    await site.abandon()
    began = time.monotonic()
    await site.up()
    assert time.monotonic() - began < 10
    assert gateways(site) == now
    assert not slow.done()
    site.release()
    assert (await slow)["pid"] == before["gateway"]
    await ended(site, before["gateway"])
    assert {path.name for path in site.home.logs.glob("gateway*")} == {"gateway.log"}


async def test_the_end_does_not_wait_for_idle_leftovers_and_leaves_none(site):
    await site.up()
    slow = await site.hold()
    await site.control.replace_gateways()
    control, site.control = site.control, None
    stopping = asyncio.create_task(control.stop())
    site.release()
    assert (await slow)["pid"]
    await asyncio.wait_for(stopping, 10)


async def test_the_next_control_keeps_as_many_as_its_settings_say(site):
    site.flags["gateway"]["processes"] = 2
    await site.up()
    before = gateways(site)
    await site.abandon()
    site.flags["gateway"]["processes"] = 1
    await site.up()
    assert gateways(site) == {"gateway": before["gateway"]}
    await ended(site, before["gateway-2"])
    await site.abandon()
    site.flags["gateway"]["processes"] = 2
    await site.up()
    assert gateways(site)["gateway"] == before["gateway"]
    assert len(gateways(site)) == 2


async def test_a_reload_starts_and_retires_processes_and_shares_the_limits_anew(site):
    await site.up()
    before = gateways(site)
    site.flags["gateway"] |= {"processes": 3, "max_connections": 10}
    await site.control.reload(apply=True)
    await site.until(lambda: asyncio.sleep(0, None not in gateways(site).values()))
    assert set(gateways(site)) == {"gateway", "gateway-2", "gateway-3"}
    assert gateways(site)["gateway"] == before["gateway"]
    assert site.control.gateways.snapshot.options.max_connections == 4
    third = gateways(site)["gateway-3"]
    site.flags["gateway"]["processes"] = 2
    await site.control.reload(apply=True)
    assert set(gateways(site)) == {"gateway", "gateway-2"}
    assert site.control.gateways.snapshot.options.max_connections == 5
    await ended(site, third)
    assert Path(f"/proc/{before['gateway']}").exists()
