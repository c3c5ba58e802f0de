"""Replicas on a Ray cluster of three nodes: placed, adopted by the next control, placed again when a node is lost.

$TIDEGATE_TEST_RAY_ENGINE = llamacpp takes real engines of the demo model in place of those without a model.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from integration.up.traffic import Traffic
from up_site import Site

NODES = Path(__file__).with_name("ray_nodes.py")
ENGINE = os.environ.get("TIDEGATE_TEST_RAY_ENGINE", "fake")
POOL = """\
[ray]
address = "{address}"
[[model]]
name = "m"
source = "demo"
[[pool]]
name = "p"
model = "m"
engine = "{engine}"
fleet = "ray"
replicas = 3
ray = {{ cpus = 1 }}
[pool.options]
{options}
"""
OPTIONS = {"fake": "tokens = 40\ngap_ms = 5", "llamacpp": "slots = 4\ncontext_tokens = 512"}
PROGRAMS = {"fake": "fake-engine", "llamacpp": "tidegate.engines.llamacpp_server"}
REPLACED_S = 30.0
"""From the node's end to the start of the replica that takes its place; the start itself comes on top."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}


@pytest.fixture
def site():
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'tidegate[ray]'")
    site = Site()
    try:
        yield site
    finally:
        site.close()


def pool(address):
    return POOL.format(address=address, engine=ENGINE, options=OPTIONS[ENGINE])


class Cluster:
    """The nodes, as processes of this site, so that whatever they leave behind is noticed."""

    def __init__(self, site):
        folder = site.folder / "ray"
        folder.mkdir()
        site.environ = {**site.environ, **QUIET, "RAY_TMPDIR": str(site.folder)}  # where it says that it is there
        self.output = site.folder / "nodes.txt"
        with self.output.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(NODES), str(folder)],
                env=site.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise AssertionError(self.output.read_text())
        told = json.loads(line)
        self.address, self.raylets = told["address"], told["raylets"]

    def processes(self, node):
        """All that run on a node: what its first process has started, and what those have."""
        first = psutil.Process(self.raylets[node])
        return [first, *first.children(recursive=True)]

    def engines(self):
        """Pids of the engines of each node."""
        return [
            {one.pid for one in self.processes(node) if PROGRAMS[ENGINE] in one.cmdline()}
            for node in range(len(self.raylets))
            if psutil.pid_exists(self.raylets[node])
            and psutil.Process(self.raylets[node]).status() != psutil.STATUS_ZOMBIE
        ]

    def kill(self, node):
        """The power of a node goes: everything on it ends in the same moment."""
        for process in self.processes(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


@pytest.fixture
def cluster(site):
    cluster = Cluster(site)
    try:
        yield cluster
    finally:
        for up in site.started:  # replicas outlive a killed control, and the cluster only ends when they have
            if up.process.poll() is None:
                up.interrupt()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    up.end(20)
        cluster.close()
        deadline = time.monotonic() + 15
        while site.living() and time.monotonic() < deadline:  # what a killed node leaves notices that within seconds
            time.sleep(0.1)


@pytest.mark.timeout(300)
def test_replicas_on_three_nodes_outlive_control_and_one_node(site, cluster):
    """Nothing is lost when control is killed, nor when a node is: its replica comes back elsewhere."""
    site.settings(pool(cluster.address))
    up = site.up().ready()
    before = cluster.engines()
    assert [len(node) for node in before] == [1, 1, 1]  # spread out
    urls = {one.id: one.url for one in site.status().replicas}
    assert len(set(urls.values())) == 3
    port = int(site.urls()["api"].rpartition(":")[2].partition("/")[0])

    with Traffic(port, keeping=3, slow=2, new=2, scrape=False) as traffic:
        traffic.more(50, 120)
        up.process.send_signal(signal.SIGKILL)
        up.end()
        traffic.more(50, 120)
        up = site.up()
        up.until(lambda: "engine adopted" in up.text() and (site.home.run / "admin.json").exists())
        up.ready()
        assert {one.id: one.url for one in site.status().replicas} == urls
        assert cluster.engines() == before
        traffic.more(50, 120)

        cluster.kill(1)
        killed = time.monotonic()
        up.until(lambda: any(len(node) == 2 for node in cluster.engines()), 60)
        placed_s = time.monotonic() - killed
        up.until(lambda: site.status().ready and all(one.state == "ready" for one in site.status().replicas), 60)
        ready_s = time.monotonic() - killed
        now = {one.id: one.url for one in site.status().replicas}
        assert sum(now[name] != urls[name] for name in urls) == 1
        traffic.more(50, 120)
    figures = f"a replica was placed again after {placed_s:.1f} s, and ready after {ready_s:.1f} s"
    sys.stderr.write(f"{figures}\n")
    assert traffic.faults == []
    assert placed_s < REPLACED_S

    up.interrupt()
    assert up.end() == 0
    assert all(not node for node in cluster.engines())


def test_an_address_that_does_not_answer_is_said_before_anything_starts(site):
    site.settings(pool("127.0.0.1:1"))
    began = time.monotonic()
    answer = site.run("up")
    assert answer.returncode == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in answer.stderr
    assert "ray.address" in answer.stderr
    assert "Traceback" not in answer.stdout + answer.stderr
    assert time.monotonic() - began < 30
    assert not (site.home.logs / "gateway.log").exists()


def test_something_else_at_the_address_is_told_from_a_cluster(site):
    """A port where somebody listens who is no Ray: said within the time that the settings give."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        site.environ = {**site.environ, "TIDEGATE_RAY__CONNECT_TIMEOUT_S": "4"}
        site.settings(pool(address))
        answer = site.run("up")
    assert answer.returncode == 2
    assert f"the Ray cluster at {address}" in answer.stderr
    assert os.environ.get("RAY_ADDRESS") is None
