"""`tidegate up` as a user runs it: a process of its own, a data folder of its own, ports from the kernel."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import msgspec

from tidegate.control.state import AdminAddress
from tidegate.control.status import Status
from tidegate.home import Home

PATIENCE_S = 40.0
SETTINGS = """\
[gateway]
listen = "127.0.0.1:0"
processes = {processes}
[admin]
listen = "127.0.0.1:0"
[chat]
listen = "127.0.0.1:0"
enabled = {chat}
"""
FAKE = """\
[[pool]]
name = "p"
model = "m"
engine = "fake"
replicas = {replicas}
[pool.options]
tokens = 20
gap_ms = {gap_ms}
"""


def _hears_the_terminal_end():
    """Whoever runs the tests may ignore SIGHUP, as nohup does, and children would inherit it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Up:
    """One process of `tidegate up`."""

    def __init__(self, site, arguments):
        self.output = site.folder / f"up-{len(site.started)}.txt"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidegate", "up", *map(str, arguments)],
                env=site.environ,
                cwd=site.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=_hears_the_terminal_end,  # noqa: PLW1509 - sets a signal, and touches nothing else
            )

    def text(self):
        return self.output.read_text()

    def until(self, condition, seconds=PATIENCE_S):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self.process.poll() is None, f"up ended with {self.process.returncode}:\n{self.text()}"
            assert time.monotonic() < deadline, f"it did not come true:\n{self.text()}"
            time.sleep(0.02)
        return found

    def ready(self):
        self.until(lambda: "] INFO ready " in self.text() and "Stop with Ctrl-C.\n\n" in self.text())
        return self

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def end(self, seconds=PATIENCE_S):
        """Wait for the end; the exit code."""
        return self.process.wait(seconds)


class Site:
    """A data folder, and everything that is ever started in it."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tg-"))
        self.home = Home(self.folder / "home")
        self.home.create()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "HF_"))}
        self.environ = {**clean, "TIDEGATE_HOME": str(self.home.path), "LANG": "C.UTF-8"}
        self.started = []
        self.settings()

    def settings(self, more=None, *, chat=False, replicas=1, gap_ms=1, processes=1):
        """Write the settings file: a pool of fake engines unless `more` says otherwise."""
        more = FAKE.format(replicas=replicas, gap_ms=gap_ms) if more is None else more
        (self.home.path / "tidegate.toml").write_text(
            SETTINGS.format(chat=str(chat).lower(), processes=processes) + more
        )

    def up(self, *arguments):
        self.started.append(Up(self, arguments))
        return self.started[-1]

    def run(self, *arguments):
        """Another command, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "tidegate", *map(str, arguments)],
            env=self.environ,
            cwd=self.folder,
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def status(self):
        address = msgspec.json.decode((self.home.run / "admin.json").read_bytes(), type=AdminAddress)
        headers = {"authorization": f"Bearer {address.token}"}
        answer = httpx.get(f"{address.url}/admin/v1/status", headers=headers, trust_env=False, timeout=10)
        return msgspec.json.decode(answer.content, type=Status)

    def pids(self):
        status = self.status()
        return {one.name: one.pid for one in status.processes} | {one.id: one.pid for one in status.replicas}

    def urls(self):
        return self.status().urls

    def ask(self, api, *, model="m", key=None, **more):
        """The text of an answer. `api` is the API's URL."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, **more}
        headers = {"authorization": f"Bearer {key}"} if key else {}
        answer = httpx.post(f"{api}/chat/completions", json=body, headers=headers, trust_env=False, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]["content"]

    def back(self, up, name, pid):
        """Wait until the process `name`, killed as `pid`, is another one and everything is ready again."""
        up.until(lambda: self.status().ready and self.pids()[name] not in {pid, None})
        up.until(lambda: self._told(self.status()))

    @staticmethod
    def _told(status):
        """Whether every gateway works with the newest snapshot."""
        return {one.snapshot for one in status.gateways} == {status.snapshot}

    def living(self):
        """Pids of this data folder that are still there, but for `up` itself."""
        mark = b"\0TIDEGATE_HOME=%b\0" % os.fsencode(self.home.path)
        found = set()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in b"\0" + (entry / "environ").read_bytes() + b"\0":
                    found.add(int(entry.name))
        return found - {up.process.pid for up in self.started}

    def close(self):
        for up in self.started:
            if up.process.poll() is None:
                up.interrupt()
                up.interrupt()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    up.end(15)
            if up.process.poll() is None:
                up.process.kill()
                up.end()
        left = self.living()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder)
        assert not left, f"left behind: {left}"
