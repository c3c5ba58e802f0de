"""A gateway beside `tidegate up`, with a home of its own and the admin port between them: as on another host."""

import contextlib
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

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
SETTINGS = """\
[gateway]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:{admin}"
[chat]
enabled = false
[limits]
kind = "fixed"
sequences = 4
[[pool]]
name = "p"
model = "m"
engine = "external"
urls = ["{engine}"]
"""


class Program:
    """A `tidegate` command with a home of its own; its output goes to a file that may be read while it runs."""

    def __init__(self, folder, *arguments):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        self.log = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tidegate", *map(str, arguments)],
                cwd=folder,
                env={**clean, "TIDEGATE_HOME": str(folder / "remote-home"), "LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def text(self):
        return self.log.read_text()

    def url(self, pattern=r"https?://[\d.]+:\d+"):
        """The URL that it says it listens on."""
        found = until(lambda: re.search(pattern, self.text()) or self.popen.poll() is not None)
        assert found is not True, self.text()
        return found[0]

    def end(self):
        """SIGTERM; its exit code."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(20)


def until(condition, seconds=20.0, every_s=0.02):
    """What `condition` gives once it gives something."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(every_s)
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(url, *, key=None, **more):
    """The status of one request; 0 while nobody answers."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with contextlib.suppress(httpx.TransportError):
        body = QUESTION | more
        return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, trust_env=False).status_code
    return 0


def limit(url):
    """How much of the replica a gateway has, by its metrics."""
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    found = re.search(r'^tidegate_replica_limit\{replica="p-0"\} ([\d.]+)$', text, re.MULTILINE)
    return float(found[1]) if found else None


@pytest.fixture
def start(site):
    """Start a command on the "other host"."""
    programs = []

    def run(*arguments):
        programs.append(Program(site.folder, *arguments))
        return programs[-1]

    yield run
    for program in programs:
        if program.popen.poll() is None:
            program.popen.kill()
        program.popen.wait()


class Control:
    """`tidegate up` in front of an engine that is not its own, at an admin port that stays the same."""

    def __init__(self, site, start, gap_ms=1):
        self.site, self.start = site, start
        self.admin = free_port()
        self.engine = start("fake-engine", "--port", 0, "--model", "m", "--gap-ms", gap_ms).url()
        (site.home.path / "tidegate.toml").write_text(SETTINGS.format(admin=self.admin, engine=self.engine))
        self.url = f"http://127.0.0.1:{self.admin}"
        self.up = site.up().ready()

    def gateway(self, *arguments, token=None):
        token = token or self.site.home.path / "gateway.token"
        return self.start(
            "gateway", "--control", self.url, "--token-file", token, "--listen", "127.0.0.1:0", *arguments
        )

    def others(self):
        return [one for one in self.site.status().gateways if one.host]

    def key(self, name):
        made = self.site.run("keys", "create", "--name", name)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()


@pytest.fixture
def control(site, start):
    return Control(site, start)


def test_it_serves_what_control_says_and_keys_made_and_revoked_hold_there_too(control, site):
    remote = control.gateway()
    url = remote.url()
    statuses = []

    def answered(status, **options):
        statuses.append(ask(url, **options))
        return statuses[-1] == status

    assert answered(200)
    (told,) = until(lambda: [one for one in control.others() if one.requests.get("done")])
    assert (told.host, told.pid) == (socket.gethostname(), remote.popen.pid)
    assert told.listen == url.removeprefix("http://")
    assert f"gateway on {socket.gethostname()}, {told.listen}" in site.run("status").stdout
    assert f"gateways of other hosts: {socket.gethostname()} {told.listen}" in site.run("top", "--once").stdout
    key = control.key("first")
    until(lambda: answered(401))
    assert answered(200, key=key)
    assert site.run("keys", "revoke", "first").returncode == 0
    until(lambda: answered(401, key=key))
    assert remote.end() == 0
    until(lambda: not control.others())

    def done():
        rows = json.loads(site.run("usage", "--json", "--by", "outcome").stdout)
        return sum(row["requests"] for row in rows if row["outcome"] == "done")

    until(lambda: done() >= statuses.count(200))
    assert done() == statuses.count(200)


def test_the_engines_limit_is_shared_out_while_it_is_there(control, site):
    here = site.urls()["api"].removesuffix("/v1")
    until(lambda: limit(here) == 4)
    remote = control.gateway()
    url = remote.url()
    until(lambda: (limit(here), limit(url)) == (2, 2))
    until(lambda: json.loads(site.run("top", "--json").stdout)["replicas"][0]["seen"]["limit"] == 4)
    assert remote.end() == 0
    until(lambda: limit(here) == 4)


def test_without_control_it_serves_on_and_a_new_control_is_found(control, site):
    remote = control.gateway()
    url = remote.url()
    until(control.others)
    os.kill(control.up.process.pid, signal.SIGKILL)
    control.up.process.wait(10)
    until(lambda: "control is away" in remote.text())
    assert [ask(url) for _ in range(20)] == [200] * 20
    site.up().ready()
    until(control.others)
    assert "control is back" in remote.text()
    key = control.key("later")
    until(lambda: ask(url) == 401, 1.5)
    assert ask(url, key=key) == 200
    rows = until(lambda: json.loads(site.run("usage", "--json", "--by", "outcome").stdout))
    until(lambda: site.run("usage", "--json", "--by", "outcome").stdout.count('"done"') == 1)
    assert rows[0]["requests"] >= 20
    assert "Traceback" not in remote.text()
    assert remote.end() == 0


def test_control_ends_in_order_and_it_serves_on_with_engines_that_are_not_controls(control):
    remote = control.gateway()
    url = remote.url()
    until(control.others)
    control.up.interrupt()
    began = time.monotonic()
    assert control.up.end() == 0
    assert time.monotonic() - began < 8
    assert ask(url) == 200
    assert remote.end() == 0


def test_sigterm_lets_an_answer_finish(site, start):
    control = Control(site, start, gap_ms=100)
    remote = control.gateway()
    url = remote.url()
    body = QUESTION | {"max_tokens": 20, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, trust_env=False, timeout=30) as answer:
        lines = answer.iter_lines()
        next(lines)
        remote.popen.send_signal(signal.SIGTERM)
        text = "".join(lines)
    assert text.endswith("data: [DONE]")
    assert remote.popen.wait(20) == 0
    until(lambda: json.loads(site.run("usage", "--json", "--by", "outcome").stdout))


def test_what_could_not_be_told_is_told_by_the_next_gateway(control, site):
    first = control.gateway()
    url = first.url()
    until(control.others)
    os.kill(control.up.process.pid, signal.SIGKILL)
    control.up.process.wait(10)
    until(lambda: "control is away" in first.text())
    assert [ask(url) for _ in range(5)] == [200] * 5
    assert first.end() == 0
    (kept,) = (site.folder / "remote-home").glob("usage-unsent-*.json")
    assert kept.stat().st_mode & 0o777 == 0o600
    site.up().ready()
    second = control.gateway()
    second.url()

    def done():
        rows = json.loads(site.run("usage", "--json", "--by", "outcome").stdout)
        return sum(row["requests"] for row in rows)

    until(lambda: done() == 5)
    assert not list((site.folder / "remote-home").glob("usage-unsent-*"))
    assert second.end() == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing: apt-get install openssl")
def test_it_has_a_certificate_of_its_own(control, site):
    home = site.folder / "remote-home"
    home.mkdir(mode=0o700, exist_ok=True)
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=gw"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(["openssl", *request, *names], check=True, capture_output=True, cwd=home)
    (home / "tidegate.toml").write_text('[gateway]\ntls_cert_file = "cert.pem"\ntls_key_file = "key.pem"\n')
    url = control.gateway().url()
    assert url.startswith("https://")
    trust = ssl.create_default_context(cafile=home / "cert.pem")
    answer = httpx.post(f"{url}/v1/chat/completions", json=QUESTION, trust_env=False, verify=trust)
    assert answer.status_code == 200


def test_what_cannot_be_is_one_message_and_code_2(control, site, tmp_path):
    wrong = tmp_path / "token"
    wrong.write_text("not-the-token")
    good = site.home.path / "gateway.token"
    api = site.urls()["api"].removesuffix("/v1")
    nobody = f"http://127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, words in (
            (("--token-file", wrong), ("does not know the token", "gateway.token")),
            (("--token-file", tmp_path / "none"), ("--token-file", "cannot be read")),
            (("--control", nobody), ("cannot be reached", "admin.listen")),
            (("--control", api), ("does not answer as control does", "admin port")),
            (("--control", control.engine), ("does not answer as control does",)),
            (("--control", control.url.replace("http", "https")), ("https://",)),
            (("--control", control.url.replace("127.0.0.1", "127.0.0.2")), ("cannot be reached",)),
            (("--control", "control:8001"), ("--control", "http(s)://HOST:PORT")),
            (("--control", control.url, "--engine", nobody), ("--engine", "control says")),
            (("--control-ca", wrong), ("--control-ca", "is for https")),
            (("--listen", "0.0.0.0:0"), ("gateway.listen", "control knows no key")),
            (("--listen", f"127.0.0.1:{port}"), (f"port {port}", "gateway.listen")),
        ):
            refused = control.start(
                "gateway", "--control", control.url, "--token-file", good, "--listen", "127.0.0.1:0", *arguments
            )
            assert refused.popen.wait(20) == 2, refused.text()
            assert all(word in refused.text() for word in words), refused.text()
            assert "Traceback" not in refused.text()
    for arguments, words in (
        (("--control", control.url), ("--token-file", "is needed")),
        (("--token-file", good, "--engine", control.engine), ("--token-file", "goes with --control")),
    ):
        refused = control.start("gateway", *arguments)
        assert refused.popen.wait(20) == 2
        assert all(word in refused.text() for word in words), refused.text()
    assert not control.others()
