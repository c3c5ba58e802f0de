"""Limits and drains by hand, asked for at the admin port of a real control with a small gateway."""

import asyncio

import httpx
import pytest
from test_control import Site, site

from tidegate.control.state import read_admin

__all__ = ["Site", "site"]  # the fixture of the other tests of control


@pytest.fixture
async def ask(site, home):
    """Ask the admin port of whichever control lives."""

    async def ask(method, path, **more):
        address = read_admin(home)
        headers = {"authorization": f"Bearer {address.token}"}
        async with httpx.AsyncClient(base_url=address.url, headers=headers, trust_env=False) as client:
            return await client.request(method, f"/admin/v1{path}", **more)

    return ask


async def states(site):
    return {name: one[0] for name, one in (await site.ask())["replicas"].items()}


async def limits(ask):
    return {one["id"]: (one["limit"], one["limit_set"]) for one in (await ask("GET", "/limits")).json()["replicas"]}


async def test_a_limit_set_by_hand_reaches_the_gateway_and_goes_back_to_the_limiter(site, ask):
    await site.up()
    await site.until(lambda: _equal(limits(ask), {"p-0": (4, None), "p-1": (4, None)}))
    assert (await ask("PUT", "/limits/p-0", json={"sequences": 2})).json() == {"id": "p-0", "limit_set": 2}
    await site.until(lambda: _equal(limits(ask), {"p-0": (2, 2), "p-1": (4, None)}))
    assert (await site.ask())["limits"] == {"p-0": 2}
    assert (await ask("DELETE", "/limits/p-0")).json() == {"id": "p-0", "limit_set": None}
    await site.until(lambda: _equal(limits(ask), {"p-0": (4, None), "p-1": (4, None)}))


async def test_a_drained_replica_is_told_as_draining_until_it_is_given_work_again(site, ask):
    await site.up()
    drained = (await ask("POST", "/replicas/p-1/drain")).json()
    assert (drained["id"], drained["drained"]) == ("p-1", True)
    await site.until(lambda: _equal(states(site), {"p-0": "ready", "p-1": "draining"}))
    status = site.control.status()
    assert [model.ready for model in status.models] == [1]
    assert status.ready
    await ask("POST", "/replicas/p-0/drain")
    await site.until(lambda: _equal(states(site), {"p-0": "draining", "p-1": "draining"}))
    assert not site.control.status().ready
    for name in ("p-0", "p-1"):
        assert (await ask("DELETE", f"/replicas/{name}/drain")).json()["drained"] is False
    await site.until(lambda: _equal(states(site), {"p-0": "ready", "p-1": "ready"}))


async def test_both_outlive_a_control_that_is_killed_and_not_one_that_ends_in_order(site, ask):
    await site.up()
    await ask("PUT", "/limits/p-0", json={"sequences": 2})
    await ask("POST", "/replicas/p-1/drain")
    await site.abandon()
    await site.up()
    await site.until(lambda: _equal(states(site), {"p-0": "ready", "p-1": "draining"}))
    assert (await site.ask())["limits"] == {"p-0": 2}
    await site.control.stop()
    await site.up()
    assert set((await states(site)).values()) == {"ready"}
    assert (await site.ask())["limits"] == {}


async def test_a_replica_that_leaves_the_settings_takes_what_was_set_by_hand_with_it(site, ask):
    await site.up()
    await ask("PUT", "/limits/p-1", json={"sequences": 2})
    await ask("POST", "/replicas/p-1/drain")
    for count in (1, 2):
        site.flags["pool"][0]["replicas"] = count
        assert (await ask("POST", "/reload")).status_code == 200
    await site.until(lambda: _equal(states(site), {"p-0": "ready", "p-1": "ready"}))
    assert (await site.ask())["limits"] == {}


async def test_a_drain_holds_while_the_engine_is_started_anew(site, ask):
    await site.up()
    await ask("POST", "/replicas/p-1/drain")
    pid = site.pids()["p-1"]
    site.control.launcher.kill(site.control.launcher.records.get("p-1"))
    await site.until(lambda: asyncio.sleep(0, site.pids()["p-1"] not in {pid, None}))
    await site.until(lambda: _equal(states(site), {"p-0": "ready", "p-1": "draining"}))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/limits/p-7", {"sequences": 2}),
        ("DELETE", "/limits/p-7", None),
        ("POST", "/replicas/p-7/drain", None),
        ("DELETE", "/replicas/p-7/drain", None),
    ],
)
async def test_a_replica_that_is_not_there_is_a_404_that_names_those_there_are(site, ask, method, path, body):
    await site.up()
    answer = await ask(method, path, json=body) if body else await ask(method, path)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "there is no replica 'p-7'; there are: p-0, p-1"


async def test_top_tells_of_classes_and_replicas_what_the_gateways_reported(site, ask):
    await site.up()
    await ask("PUT", "/limits/p-0", json={"sequences": 2})
    await ask("POST", "/replicas/p-1/drain")
    await site.until(lambda: _equal(limits(ask), {"p-0": (2, 2), "p-1": (4, None)}))
    top = (await ask("GET", "/top")).json()
    assert [one["name"] for one in top["sums"]["classes"]][:2] == ["interactive", "standard"]
    assert top["sums"]["queued"] == 2 * len(top["sums"]["classes"])
    told = {
        one["id"]: (one["state"], one["drained"], one["limit_set"], one["seen"]["limit"]) for one in top["replicas"]
    }
    assert told == {"p-0": ("ready", False, 2, 2), "p-1": ("draining", True, None, 4)}
    assert top["replicas"][0]["memory_bytes"] > 0
    assert top["sums"]["gateways"] == 1


async def _equal(reading, right):
    return await reading == right
