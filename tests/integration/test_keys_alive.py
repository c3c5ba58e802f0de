"""Keys made, revoked and rotated by `tidegate keys` while a gateway runs: it follows within a second, by itself."""

import os
import subprocess
import sys
import time

import httpx
import pytest

from integration.test_gateway_alone import Process, until
from up_site import Site

CHANGE_S = 1.0
READ_S = 0.5
"""What a busy machine may take on top of it to run the request that looks."""
QUESTION = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture
def alone(tmp_path):
    """The URL of a gateway of its own before a fake engine."""
    processes = [Process(tmp_path, "fake-engine", "--port", 0, "--gap-ms", 1)]
    try:
        engine = processes[0].url()
        processes.append(Process(tmp_path, "gateway", "--listen", "127.0.0.1:0", "--engine", engine))
        url = processes[1].url()
        until(lambda: status(url, None, "fake") == 200)
        yield url
    finally:
        for process in processes:
            process.popen.kill()
            process.popen.wait()


def status(url, key, model):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        body = {"model": model, **QUESTION}
        return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, trust_env=False).status_code
    except httpx.TransportError:
        return 0


def keys(home, *arguments):
    """Run `tidegate keys`; what it prints on stdout."""
    ran = subprocess.run(
        [sys.executable, "-m", "tidegate", "keys", *arguments],
        env={**os.environ, "TIDEGATE_HOME": str(home)},
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    return ran.stdout.strip()


def soon(condition):
    """Seconds until `condition` holds."""
    begin = time.monotonic()
    until(condition, 10.0)
    return time.monotonic() - begin


def follow_a_key(url, home, model):
    """A key's whole life, as seen through a gateway."""
    assert status(url, "anything", model) == 200, "without keys whatever key is sent is ignored"
    first = keys(home, "create", "--name", "anna")
    assert soon(lambda: status(url, None, model) == 401) < CHANGE_S + READ_S
    assert status(url, first, model) == 200
    second = keys(home, "rotate", "anna")
    assert soon(lambda: status(url, first, model) == 401) < CHANGE_S + READ_S
    assert status(url, second, model) == 200
    keys(home, "revoke", "anna")
    assert soon(lambda: status(url, second, model) == 401) < CHANGE_S + READ_S
    assert status(url, None, model) == 401, "the end of the last key opens the door to nobody"
    return first, second


def test_a_gateway_alone_follows_its_keys(alone, tmp_path):
    follow_a_key(alone, tmp_path / "home", "fake")


def test_a_gateway_under_control_follows_its_keys_and_no_file_holds_one():
    site = Site()
    try:
        up = site.up().ready()
        secrets = follow_a_key(site.urls()["api"].removesuffix("/v1"), site.home.path, "m")
        up.interrupt()
        up.end()
        for file in site.home.path.rglob("*"):
            if file.is_file():
                content = file.read_bytes()
                assert not [secret for secret in secrets if secret.encode() in content], file
    finally:
        site.close()
