"""`tidegate gateway` in front of engines that run already, without a control: as an operator starts it."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

import httpx
import pytest

from tidegate.store import KeyStore, open_database

QUESTION = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


class Process:
    """A `tidegate` command; its output goes to a file that may be read while it runs."""

    def __init__(self, folder, *arguments):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        self.log = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tidegate", *map(str, arguments)],
                cwd=folder,
                env={**clean, "TIDEGATE_HOME": str(folder / "home")},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def url(self):
        """The URL that it says it listens on."""
        found = until(lambda: re.search(r"https?://[\d.]+:\d+", self.log.read_text()) or self.popen.poll() is not None)
        assert found is not True, self.log.read_text()
        return found[0]

    def end(self):
        """SIGTERM; its exit code."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(20)


def until(condition, seconds=20.0):
    """What `condition` gives once it gives something."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def status(method, url, **more):
    """The status of one request; 0 while nobody answers."""
    try:
        return httpx.request(method, url, trust_env=False, timeout=10, **more).status_code
    except httpx.TransportError:
        return 0


@pytest.fixture
def start(tmp_path):
    processes = []

    def run(*arguments):
        processes.append(Process(tmp_path, *arguments))
        return processes[-1]

    yield run
    for process in processes:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.wait()


def engine(start, port=0):
    return start("fake-engine", "--port", port, "--gap-ms", 1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_it_serves_what_its_engines_serve_and_ends_with_code_0(start):
    engines = [engine(start).url() for _ in range(2)]
    alone = start("gateway", "--listen", "127.0.0.1:0", "--engine", engines[0], "--engine", engines[1])
    url = alone.url()
    until(lambda: status("GET", f"{url}/ready") == 200)
    answers = [httpx.post(f"{url}/v1/chat/completions", json=QUESTION, trust_env=False) for _ in range(20)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-tidegate-replica"] for answer in answers} == {"default-0", "default-1"}
    assert alone.end() == 0


def test_an_engine_that_comes_later_is_found_and_one_that_comes_back_is_asked_again(start):
    port = free_port()
    url = start("gateway", "--listen", "127.0.0.1:0", "--engine", f"http://127.0.0.1:{port}").url()
    assert until(lambda: status("GET", f"{url}/ready")) == 503
    for _ in range(2):
        running = engine(start, port)
        until(lambda: status("POST", f"{url}/v1/chat/completions", json=QUESTION) == 200)
        running.popen.kill()
        running.popen.wait()
        until(lambda: status("POST", f"{url}/v1/chat/completions", json=QUESTION) in {502, 503})


def test_a_key_that_is_made_while_it_runs_closes_the_open_door(start, tmp_path):
    (tmp_path / "home").mkdir(mode=0o700)
    url = start("gateway", "--listen", "127.0.0.1:0", "--engine", engine(start).url()).url()
    until(lambda: status("POST", f"{url}/v1/chat/completions", json=QUESTION) == 200)
    database = open_database(tmp_path / "home" / "state.db")
    try:
        secret, _ = KeyStore(database).create("first")
    finally:
        database.close()
    until(lambda: status("POST", f"{url}/v1/chat/completions", json=QUESTION) == 401)
    headers = {"authorization": f"Bearer {secret}"}
    assert status("POST", f"{url}/v1/chat/completions", json=QUESTION, headers=headers) == 200


def test_what_it_cannot_do_is_one_message_and_code_2(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, words in (
            (("--listen", f"127.0.0.1:{port}", "--engine", "http://127.0.0.1:1"), (f"port {port}", "gateway.listen")),
            (("--listen", "127.0.0.1:0"), ("--engine", "there is no engine")),
            (("--listen", "0.0.0.0:0", "--engine", "http://127.0.0.1:1"), ("gateway.listen", "there is no key")),
            (("--engine", "ftp://127.0.0.1:1"), ("pool.1.urls", "is not the URL of an engine")),
        ):
            refused = start("gateway", *arguments)
            assert refused.popen.wait(20) == 2
            text = refused.log.read_text()
            assert all(word in text for word in words), text
            assert "Traceback" not in text


@pytest.mark.parametrize(
    "pool",
    ['engine = "llamacpp"', 'engine = "external"\nfleet = "dns"\ndns.name = "engines.example:8000"'],
    ids=["started", "found by name"],
)
def test_pools_that_need_control_are_named_and_not_served_in_silence(start, tmp_path, pool):
    (tmp_path / "tidegate.toml").write_text(f'[[pool]]\nname = "p"\nmodel = "m"\n{pool}\n')
    refused = start("gateway", "--listen", "127.0.0.1:0")
    assert refused.popen.wait(20) == 2
    assert "the pool 'p' has engines that only `tidegate up` starts or finds" in refused.log.read_text()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing: apt-get install openssl")
def test_with_a_certificate_it_speaks_https(start, tmp_path):
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(["openssl", *request, *names], check=True, capture_output=True, cwd=tmp_path)
    (tmp_path / "tidegate.toml").write_text('[gateway]\ntls_cert_file = "cert.pem"\ntls_key_file = "key.pem"\n')
    url = start("gateway", "--listen", "127.0.0.1:0", "--engine", engine(start).url()).url()
    assert url.startswith("https://")
    trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    until(lambda: status("POST", f"{url}/v1/chat/completions", json=QUESTION, verify=trust) == 200)


def test_what_was_used_is_in_its_own_store_and_each_request_has_its_line(start, tmp_path):
    alone = start("gateway", "--listen", "127.0.0.1:0", "--engine", engine(start).url())
    url = alone.url()
    until(lambda: status("GET", f"{url}/ready") == 200)
    answers = [httpx.post(f"{url}/v1/chat/completions", json=QUESTION, trust_env=False).json() for _ in range(5)]
    assert alone.end() == 0
    told = start("usage", "--json", "--by", "model", "--by", "outcome")
    assert told.popen.wait(20) == 0
    prompt_tokens = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    row = {"model": "fake", "outcome": "done", "requests": 5, "prompt_tokens": prompt_tokens, "completion_tokens": 15}
    assert json.loads(told.log.read_text()) == [row]
    lines = [json.loads(line) for line in (tmp_path / "home" / "logs" / "access.log").read_text().splitlines()]
    assert [line["tokens_out"] for line in lines if line["outcome"] == "done"] == [3] * 5


def test_where_there_can_be_no_data_folder_it_serves_and_says_what_is_missing(start, tmp_path):
    (tmp_path / "home").write_text("a file is in its place")
    alone = start("gateway", "--listen", "127.0.0.1:0", "--engine", engine(start).url())
    url = alone.url()
    until(lambda: status("POST", f"{url}/v1/chat/completions", json=QUESTION) == 200)
    until(lambda: "usage cannot be written yet" in alone.log.read_text())
    assert "there is no access log" in alone.log.read_text()
    assert status("POST", f"{url}/v1/chat/completions", json=QUESTION) == 200
    assert alone.end() == 0
