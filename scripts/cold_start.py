"""Time `make up` as a new user meets it, and hold it to the promise: `cold_start.py [--keep]`.

In a fresh clone with no `.venv`, an empty data folder and no pip cache: seconds from the command to the moment when the
chat page answers and the API streams a token. Then Ctrl-C, after which nothing may be left; then the same again, warm,
three times at most, of which the quickest counts (seconds this short feel whatever else the machine does). Exits 1
where a limit is passed or anything is left behind. Needs git and make besides Python; everything is on loopback.
"""

import http.client
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLD_LIMIT_S = 120.0
WARM_LIMIT_S = 5.0
WARM_TRIES = 3
GIVE_UP_S = 300.0
STOP_LIMIT_S = 30.0


class PromiseError(Exception):
    """Something that is promised does not hold."""


@dataclass(frozen=True)
class Ports:
    api: int
    admin: int
    chat: int

    @classmethod
    def free(cls) -> "Ports":
        """Three ports that are free now, held together until all are known."""
        sockets = [socket.socket() for _ in range(3)]
        try:
            for each in sockets:
                each.bind(("127.0.0.1", 0))
            return cls(*(each.getsockname()[1] for each in sockets))
        finally:
            for each in sockets:
                each.close()


def start(tree: Path, home: Path, ports: Ports, output: Path) -> subprocess.Popen[bytes]:
    flags = f"--api-port {ports.api} --admin-port {ports.admin} --chat-port {ports.chat}"
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "PYTHON"}
    }
    environment |= {"TIDEGATE_HOME": str(home), "PIP_NO_CACHE_DIR": "1"}
    with output.open("ab") as file:
        return subprocess.Popen(
            ["make", "up", f"ARGS={flags}"],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, so that SIGINT reaches all of it as Ctrl-C on a terminal does
        )


def page_answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/")
        answer = connection.getresponse()
        whole = answer.read()
        connection.close()
    except (OSError, http.client.HTTPException):
        return False
    return answer.status == 200 and b"<html" in whole.lower()


def first_token(port: int) -> str | None:
    """The first text that the API streams, and the model that wrote it; None while there is none to be had."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/v1/models")
        models = json.loads(connection.getresponse().read())["data"]
        if not models:
            return None
        body = {
            "model": models[0]["id"],
            "messages": [{"role": "user", "content": "Say hello."}],
            "stream": True,
            "max_tokens": 16,
        }
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            return None
        text = None
        for line in answer:
            if text is None and line.startswith(b"data: {"):
                choices = json.loads(line.removeprefix(b"data: "))["choices"]
                if choices and choices[0]["delta"].get("content"):
                    text = f"{choices[0]['delta']['content']!r} from {models[0]['id']}"
                    break
        connection.close()
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None
    return text


def wait_for_token(process: subprocess.Popen[bytes], ports: Ports, started: float) -> tuple[float, float, str]:
    """Seconds from `started` to the page and to the first token, and that token. Raises PromiseError."""
    page_s = token_s = None
    token: str | None = None
    while page_s is None or token_s is None:
        if process.poll() is not None:
            raise PromiseError(f"make up ended with status {process.returncode}")
        if time.monotonic() - started > GIVE_UP_S:
            raise PromiseError(f"page {page_s or 'never'}, token {token_s or 'never'} within {GIVE_UP_S:.0f} s")
        if token_s is None and (token := first_token(ports.api)):
            token_s = time.monotonic() - started
        if page_s is None and page_answers(ports.chat):
            page_s = time.monotonic() - started
        time.sleep(0.05)
    return page_s, token_s, token or ""


def left_behind(home: Path) -> list[str]:
    """Processes that were started with this data folder and still live."""
    mark = f"TIDEGATE_HOME={home}".encode()
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                left.append(f"{folder.name} {(folder / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        except OSError:
            continue
    return left


def stop(process: subprocess.Popen[bytes], home: Path, ports: Ports) -> float:
    """Ctrl-C; seconds until nothing was left. Raises PromiseError."""
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise PromiseError(f"Ctrl-C did not end it within {STOP_LIMIT_S:.0f} s") from None
    if left := left_behind(home):
        raise PromiseError("left behind after Ctrl-C:\n  " + "\n  ".join(left))
    for name, port in vars(ports).items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                raise PromiseError(f"the {name} port is still taken after Ctrl-C") from None
    return time.monotonic() - started


def end(process: subprocess.Popen[bytes], home: Path) -> None:
    """End what is ours after a failure, by pid."""
    for pid in [process.pid, *(int(line.split()[0]) for line in left_behind(home))]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def measure(name: str, tree: Path, home: Path, output: Path) -> float:
    """One start and stop; seconds until page and API had both answered. Raises PromiseError."""
    ports = Ports.free()
    started = time.monotonic()
    process = start(tree, home, ports, output)
    try:
        page_s, token_s, token = wait_for_token(process, ports, started)
        stopped_s = stop(process, home, ports)
    except BaseException:
        end(process, home)
        raise
    print(f"{name} make up: page after {page_s:.1f} s, first token after {token_s:.1f} s ({token})", flush=True)
    print(f"{name} Ctrl-C: nothing left after {stopped_s:.1f} s", flush=True)
    return max(page_s, token_s)


def hold(name: str, seconds: float, limit_s: float) -> None:
    """Raises PromiseError."""
    if seconds > limit_s:
        raise PromiseError(f"{name}: {seconds:.1f} s; promised are {limit_s:.0f} s")


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-cold-"))
    tree, home, output = folder / "tree", folder / "home", folder / "output"
    print(f"cold start on {os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}", flush=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
    try:
        hold("cold", measure("cold", tree, home, output), COLD_LIMIT_S)
        warm_s = measure("warm", tree, home, output)
        for _ in range(WARM_TRIES - 1):
            if warm_s > WARM_LIMIT_S:
                warm_s = min(warm_s, measure("warm", tree, home, output))
        hold("warm", warm_s, WARM_LIMIT_S)
    except PromiseError as error:
        shown = output.read_text(errors="replace")[-6000:] if output.exists() else ""
        print(f"{shown}\ncold start FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        if "--keep" not in sys.argv:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
