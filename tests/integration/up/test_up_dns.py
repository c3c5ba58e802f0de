"""`tidegate up` with engines behind a name that this machine's resolver knows."""

import json
import subprocess
import sys
import time

import pytest

POOL = """\
[[pool]]
name = "p"
model = "m"
engine = "external"
fleet = "dns"
dns = {{ name = "localhost:{port}", interval_s = 0.5 }}
"""


@pytest.fixture
def port(site):
    """Of an engine that runs already."""
    file = site.folder / "engine.json"
    command = [
        sys.executable,
        "-m",
        "tidegate",
        "fake-engine",
        "--port",
        "0",
        "--model",
        "m",
        "--ready-file",
        str(file),
    ]
    process = subprocess.Popen(command, env=site.environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield int(json.loads(file.read_text())["url"].rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


def test_what_the_name_stands_for_answers(site, port):
    site.settings(POOL.format(port=port))
    up = site.up().ready()
    assert site.ask(site.urls()["api"])
    ready = [one for one in site.status().replicas if one.state == "ready"]
    assert [(one.id, one.url) for one in ready] == [(f"p-127-0-0-1-{port}", f"http://127.0.0.1:{port}")]
    up.interrupt()
    assert up.end() == 0


def test_a_name_that_nobody_knows_is_told_and_looked_up_again(site):
    site.settings(POOL.format(port=1).replace("localhost", "no-such-engines.invalid"))
    up = site.up()
    up.until(lambda: "name cannot be looked up" in up.text())
    up.until((site.home.run / "admin.json").exists)
    assert site.status().replicas == ()
    up.interrupt()
    assert up.end() == 0
