"""A replica on a node: started by whoever placed it there, and gone when that is gone."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import httpx
import pytest

from tidegate import __version__
from tidegate.fleet import local
from tidegate.types import ProcessId


def job(**more):
    base = {
        "version": __version__,
        "replica": "p-0",
        "life": "abc",
        "model": "m",
        "engine": "fake",
        "options": {"tokens": 3},
        "files": None,
        "cores": 1,
        "host": "127.0.0.1",
    }
    return json.dumps(base | more)


class Node:
    """The process on the node, and what it says."""

    def __init__(self, folder, line):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        self.logs = folder / "home" / "logs"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidegate.cli.on_node"],
            env={**clean, "TIDEGATE_HOME": str(folder / "home")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self.engine = None

    def hear(self):
        line = self.process.stdout.readline()
        word = json.loads(line) if line else {"type": "nothing"}
        if word["type"] == "started":
            self.engine = local.process_id(word["pid"])
        return word

    def engine_gone(self):
        deadline = time.monotonic() + 20
        while local.is_alive(self.engine):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return True

    def close(self):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        if isinstance(self.engine, ProcessId):
            local.kill(self.engine)


@pytest.fixture
def node(tmp_path):
    nodes = []

    def node(line):
        nodes.append(Node(tmp_path, line))
        return nodes[-1]

    yield node
    for one in nodes:
        one.close()


def test_it_says_when_the_engine_answers_and_ends_it_when_told_to(node):
    one = node(job())
    assert one.hear()["type"] == "started"
    ready = one.hear()
    assert ready["type"] == "ready"
    assert ready["facts"]["served_name"] == "m"
    assert httpx.get(f"{ready['url']}/v1/models", trust_env=False).status_code == 200
    assert (one.logs / "p-0.abc.log").exists()  # nodes may share a folder: the name is this life's own
    one.process.send_signal(signal.SIGTERM)
    assert one.hear() == {**one_end(), "cause": "it was ended"}
    assert one.process.wait(20) == 0
    assert one.engine_gone()
    assert not (one.logs / "p-0.abc.log").exists()


def one_end():
    return {"type": "ended", "log_tail": [], "hint": "", "mend": False, "status": None}


def test_when_its_starter_is_gone_the_engine_goes(node):
    one = node(job())
    assert [one.hear()["type"] for _ in range(2)] == ["started", "ready"]
    one.process.stdin.close()
    assert one.process.wait(20) == 0
    assert one.engine_gone()


def test_the_end_of_the_engine_is_told(node):
    one = node(job())
    assert [one.hear()["type"] for _ in range(2)] == ["started", "ready"]
    os.kill(one.engine.pid, signal.SIGKILL)
    assert one.hear() == {**one_end(), "cause": "the engine ended", "status": -9}
    assert one.process.wait(20) == 0


def test_another_version_is_refused(node):
    ended = node(job(version="0.0.1")).hear()
    assert ended["type"] == "ended"
    assert ended["mend"]
    assert f"this node has Tidegate {__version__}" in ended["cause"]
    assert "0.0.1" in ended["cause"]


def test_a_model_that_is_not_on_the_node_is_named(node, tmp_path):
    path = str(tmp_path / "nowhere.gguf")
    files = {"name": "m", "path": path, "quantisation": "Q8_0", "digest": "d"}
    ended = node(job(engine="llamacpp", options={}, files=files)).hear()
    assert ended["mend"]
    assert path in ended["cause"]
    assert "same path on every node" in ended["hint"]


def test_what_it_does_not_understand_is_said(node):
    assert "does not understand" in node('{"version": 1}').hear()["cause"]
