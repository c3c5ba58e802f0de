"""`tidegate top` beside a running `tidegate up`: printed once, and live in a terminal, with its keys."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import httpx
import pytest

from tidegate.control.state import read_admin

PATIENCE_S = 20.0
UP, DOWN = b"\x1b[A", b"\x1b[B"


class Terminal:
    """`tidegate top` in a terminal of its own, 80 by 24."""

    def __init__(self, site, *, columns=80, lines=24):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        environ = {name: value for name, value in site.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", "top"],
            env={**environ, "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        self.seen = b""

    def text(self):
        """Everything that was ever drawn, without what moves and colours it."""
        return re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", self.seen).decode(errors="replace")

    def until(self, words):
        """Wait until `words` are drawn after what `press` left behind."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(words, self.text()):
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, f"{words!r} was not drawn:\n{self.text()[-4000:]}"
            self.read(0.1)

    def read(self, seconds):
        if select.select([self.ours], [], [], seconds)[0]:
            with contextlib.suppress(OSError):  # EIO: it has ended
                self.seen += os.read(self.ours, 65_536)

    def press(self, keys):
        self.seen = b""
        os.write(self.ours, keys)

    def end(self):
        """Its exit code, once it has ended by itself."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text()
            self.read(0.1)
        self.read(0)
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def top(site):
    made = []

    def start(**size):
        made.append(Terminal(site, **size))
        return made[-1]

    yield start
    for one in made:
        one.close()


def admin(site, method, path, **more):
    address = read_admin(site.home)
    headers = {"authorization": f"Bearer {address.token}"}
    answer = httpx.request(
        method, f"{address.url}/admin/v1{path}", headers=headers, trust_env=False, timeout=10, **more
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def told(site, name):
    return next(one for one in admin(site, "GET", "/top")["replicas"] if one["id"] == name)


def test_it_is_printed_once_where_it_is_no_terminal_and_json_is_what_the_admin_port_says(site):
    nothing = site.run("top")
    assert (nothing.returncode, nothing.stdout) == (
        1,
        "Tidegate is not running here; `tidegate up` starts it.\n",
    )
    assert site.run("top", "--json").stdout == '{"running": false}\n'
    site.settings(replicas=2)
    site.up().ready()
    for arguments in ((), ("--once",)):
        printed = site.run("top", *arguments)
        assert printed.returncode == 0, printed.stderr
        assert "p-0" in printed.stdout
        assert "interactive" in printed.stdout
        assert "\x1b" not in printed.stdout
        assert max(map(len, printed.stdout.splitlines())) <= 80
    answer = json.loads(site.run("top", "--json").stdout)
    assert [one["id"] for one in answer["replicas"]] == ["p-0", "p-1"]


def test_keys_choose_a_replica_change_its_limit_and_drain_it(site, top):
    site.settings(replicas=2)
    up = site.up().ready()
    terminal = top()
    terminal.until(r"> p-0 ")
    terminal.press(DOWN)
    terminal.until(r"> p-1 ")
    admin(site, "PUT", "/limits/p-1", json={"sequences": 2})
    terminal.until(r"0/2\*")
    terminal.press(b"+")
    terminal.until(r"p-1: limit 3, set by hand")
    assert told(site, "p-1")["limit_set"] == 3
    terminal.press(b"--")
    terminal.until(r"p-1: limit 1, set by hand")
    terminal.press(b"-")
    terminal.until(r"p-1: 1 is the least limit; d drains it")
    assert told(site, "p-1")["limit_set"] == 1
    terminal.press(b"a")
    terminal.until(r"p-1: the limiter decides")
    assert told(site, "p-1")["limit_set"] is None
    terminal.press(b"d")
    terminal.until(r"p-1: finishes what it has, and gets nothing new")
    terminal.until(r"> p-1 +draining")
    assert told(site, "p-1")["drained"] is True
    assert told(site, "p-0")["drained"] is False
    terminal.press(b"d")
    terminal.until(r"p-1: gets work again")
    terminal.press(UP)
    terminal.until(r"> p-0 ")
    assert told(site, "p-1")["drained"] is False
    terminal.press(b"q")
    assert terminal.end() == 0
    assert b"\x1b[?1049l" in terminal.seen  # the screen from before is back
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    assert up.process.poll() is None


def test_a_drained_replica_is_not_asked_and_takes_part_again_afterwards(site):
    site.settings(replicas=2)
    up = site.up().ready()
    api = site.urls()["api"]
    admin(site, "POST", "/replicas/p-0/drain")
    up.until(lambda: site._told(site.status()))
    before = told(site, "p-0")["seen"]["requests"]
    for _ in range(10):
        site.ask(api)
    up.until(lambda: told(site, "p-1")["seen"]["requests"] >= 10)
    assert told(site, "p-0")["seen"]["requests"] == before
    admin(site, "DELETE", "/replicas/p-0/drain")
    up.until(lambda: site._told(site.status()))
    up.until(lambda: site.ask(api) and told(site, "p-0")["seen"]["requests"] > before)


def test_a_stream_outlives_the_drain_of_its_only_replica_and_the_next_request_is_refused(site):
    site.settings(replicas=1, gap_ms=60)
    up = site.up().ready()
    api = site.urls()["api"]
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "stream": True}
    with httpx.stream("POST", f"{api}/chat/completions", json=body, trust_env=False, timeout=30) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        admin(site, "POST", "/replicas/p-0/drain")
        up.until(lambda: site._told(site.status()))
        refused = httpx.post(f"{api}/chat/completions", json={**body, "stream": False}, trust_env=False, timeout=30)
        assert refused.status_code == 503, refused.text
        events = [line for line in (first, *lines) if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert not any('"error"' in line for line in events)
    assert not site.status().ready
    admin(site, "DELETE", "/replicas/p-0/drain")
    up.until(lambda: site._told(site.status()))
    assert site.ask(api)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_terminal_as_it_was(site, top, number):
    site.up().ready()
    terminal = top()
    terminal.until(r"> p-0 ")
    terminal.process.send_signal(number)
    assert terminal.end() == 128 + number
    assert b"\x1b[?1049l" in terminal.seen
    assert "Traceback" not in terminal.text()
    assert termios.tcgetattr(terminal.theirs) == terminal.before


def test_it_says_when_control_is_gone_and_goes_on_with_the_next_one(site, top):
    up = site.up().ready()
    terminal = top()
    terminal.until(r"> p-0 ")
    up.process.kill()
    up.end()
    terminal.press(b"")
    terminal.until(r"does not answer at")
    site.up().ready()
    terminal.press(b"")
    terminal.until(r"p-0: m, fake")
    terminal.press(b"q")
    assert terminal.end() == 0
