"""The chat page as a process, as control starts it."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 40.0


@dataclass
class Page:
    process: subprocess.Popen[bytes]
    url: str
    data: Path
    cwd: Path
    log: Path

    def events(self):
        return [json.loads(line) for line in self.log.read_text("utf-8").splitlines()]


@contextlib.contextmanager
def page_process(tmp_path: Path, gateway_url: str, *arguments: str, listen: str = "127.0.0.1:0") -> Iterator[Page]:
    """Start it on a port from the kernel; at the end it is asked to end, and has to, in good order."""
    data, cwd, log = tmp_path / "data", tmp_path / "cwd", tmp_path / "page.log"
    cwd.mkdir()
    command = [sys.executable, "-m", "tidegate.apps.serve", "--listen", listen, "--gateway-url", gateway_url]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*command, "--data-dir", str(data), *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={
                **os.environ,
                "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
                "http_proxy": "http://127.0.0.1:1",
            },
        )
    page = Page(process, "", data, cwd, log)
    try:
        page.url = _url(page)
        yield page
        if process.poll() is None:
            process.terminate()
        assert process.wait(10) == 0, log.read_text("utf-8")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _url(page: Page) -> str:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for event in page.events() if page.log.read_bytes().endswith(b"\n") else []:
            if event["event"] == "chat page ready":
                return event["url"]
        if page.process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"the page did not start: {page.log.read_text('utf-8')}")
