"""Several data processes on one port: replaced, killed, adopted, and more or fewer of them, while clients ask."""

import asyncio
import os
import signal
import time

import httpx
import pytest
from traffic import Traffic, falls, scrape

ENGINES = """\
[[pool]]
name = "p"
model = "m"
engine = "fake"
replicas = 1
[pool.options]
tokens = 2
gap_ms = 0
"""


def gateways(site):
    return {name: pid for name, pid in site.pids().items() if name.startswith("gateway")}


def port_of(site):
    return httpx.URL(site.urls()["api"]).port


def answered(site):
    """How many requests all processes together have ended, by the metrics."""
    totals = asyncio.run(scrape(port_of(site)))
    return sum(value for (name, _), value in totals.items() if name == "tidegate_requests_total")


def test_every_process_is_replaced_under_load_and_no_request_fails(site):
    """Cases 17 and 28: two of two processes hold one listening socket, and each is replaced by another one."""
    site.settings(ENGINES, processes=2)
    up = site.up().ready()
    before = gateways(site)
    assert set(before) == {"gateway", "gateway-2"}
    with Traffic(port_of(site)) as traffic:
        traffic.more(300)
        for _ in range(2):
            told = site.run("reload", "--gateways")
            assert told.returncode == 0, told.stderr
            assert told.stdout.startswith("Replaced: gateway, gateway-2.")
            traffic.more(600)
        up.until(lambda: len(site.status().gateways) == 2)  # the old ones have finished
    assert not traffic.faults
    assert traffic.answers >= 1500
    assert not set(gateways(site).values()) & set(before.values())
    assert not falls(traffic.scrapes)
    up.until(lambda: answered(site) == traffic.answers)
    assert site.run("status").stdout.count("gateway") >= 2


def test_more_and_fewer_processes_and_another_control_under_load(site):
    site.settings(ENGINES)
    up = site.up().ready()
    first = gateways(site)
    with Traffic(port_of(site)) as traffic:
        traffic.more(200)
        site.settings(ENGINES, processes=3)
        assert "gateway.processes: 1 -> 3   at once" in site.run("reload").stdout
        up.until(lambda: all(one.ready_s is not None for one in site.status().processes))
        three = gateways(site)
        assert set(three) == {"gateway", "gateway-2", "gateway-3"}
        assert three["gateway"] == first["gateway"]
        traffic.more(200)
        os.kill(up.process.pid, signal.SIGKILL)
        up.process.wait(10)
        traffic.more(200)
        again = site.up().ready()
        assert gateways(site) == three
        site.settings(ENGINES, processes=1)
        assert site.run("reload").returncode == 0
        again.until(lambda: site.living() == {first["gateway"], site.pids()["p-0"]})
        traffic.more(200)
    assert not traffic.faults
    assert gateways(site) == first
    assert not falls(traffic.scrapes)
    again.until(lambda: answered(site) == traffic.answers)
    again.interrupt()
    assert again.end() == 0
    assert site.living() == set()
    assert sorted(path.name for path in site.home.run.iterdir()) == ["lock"]


def test_one_of_two_is_killed_the_other_serves_and_it_comes_back(site):
    site.settings(ENGINES, processes=2)
    up = site.up().ready()
    before = gateways(site)
    with Traffic(port_of(site)) as traffic:
        traffic.more(200)
        os.kill(before["gateway-2"], signal.SIGKILL)
        traffic.more(100)
        site.back(up, "gateway-2", before["gateway-2"])
        traffic.more(200)
    assert len(traffic.faults) <= 10, "only what was open on the killed one is lost"
    assert gateways(site)["gateway"] == before["gateway"]
    assert not falls(traffic.scrapes)


def test_an_idle_connection_of_a_replaced_process_may_ask_once_more_and_does_not_hold_up_the_end(site):
    site.settings(ENGINES)
    up = site.up().ready()
    url = f"{site.urls()['api']}/models"
    with httpx.Client(trust_env=False) as asking, httpx.Client(trust_env=False) as silent:
        for client in (asking, silent):
            assert "connection" not in client.get(url).headers
        assert site.run("reload", "--gateways").returncode == 0
        time.sleep(1.5)  # longer than the second that idle connections have at an end
        answer = asking.get(url)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        os.kill(up.process.pid, signal.SIGKILL)
        up.process.wait(10)
        again = site.up().ready()
        asked = time.monotonic()
        again.interrupt()
        assert again.end() == 0
        assert time.monotonic() - asked < 10
    assert site.living() == set()


def test_replacing_and_only_looking_do_not_go_together(site):
    refused = site.run("reload", "--gateways", "--dry-run")
    assert refused.returncode == 2
    assert "--dry-run" in refused.stderr


def test_a_limit_of_the_port_is_shared_out(site):
    site.settings(ENGINES, processes=2)
    path = site.home.path / "tidegate.toml"
    path.write_text(path.read_text().replace("processes = 2", "processes = 2\nmax_connections = 8"))
    site.up().ready()
    held = [httpx.Client(trust_env=False) for _ in range(40)]
    try:
        url = f"{site.urls()['api']}/models"
        codes = [client.get(url).status_code for client in held]
        assert codes.count(200) <= 8
        assert codes.count(503) >= 1
    finally:
        for client in held:
            client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_the_end_of_the_terminal_are_like_ctrl_c(site, number):
    up = site.up().ready()
    up.process.send_signal(number)
    assert up.end() == 0
    assert site.living() == set()
    assert "] INFO stopped" in up.text()


def test_a_gateway_from_which_nothing_comes_back_is_replaced_by_reload(site):
    """An operator need not wait for the 30 s after which a process that hangs is replaced."""
    site.settings(ENGINES, processes=2)
    up = site.up().ready()
    stuck = gateways(site)["gateway-2"]
    os.kill(stuck, signal.SIGSTOP)
    began = time.monotonic()
    assert site.run("reload", "--gateways").returncode == 0
    assert stuck not in gateways(site).values()
    assert time.monotonic() - began < 15
    os.kill(stuck, signal.SIGCONT)
    up.until(lambda: len(site.status().gateways) == 2)
