"""A report that is cut short keeps what it has, and says that it is partial; mistakes are told in a sentence."""

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from tidegate.cli.report import span_s
from tidegate.errors import OperatorError


class Stand(BaseHTTPRequestHandler):
    """A Prometheus that answers the first day, and then as `then` has it."""

    def do_POST(self):
        asked = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        server = self.server
        server.first = min(server.first, float(asked["start"][0]))
        if float(asked["start"][0]) > server.first:
            server.second_day.set()
            if server.then == "hang":
                server.over.wait(30)
                return
            self.send_error(500)
            return
        result = []
        if "tidegate_requests_total" in asked["query"][0]:
            values = [[float(asked["end"][0]), "7"]]
            result = [{"metric": {"class": "batch", "outcome": "done"}, "values": values}]
        body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def stand():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stand)
    server.first, server.second_day, server.over, server.then = float("inf"), threading.Event(), threading.Event(), ""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def command(tmp_path, *arguments):
    environ = {**os.environ, "TIDEGATE_HOME": str(tmp_path)}
    program = [sys.executable, "-m", "tidegate", "report", *arguments]
    return subprocess.Popen(program, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("then", ["hang", "fail"])
def test_what_was_read_is_kept_and_called_partial(tmp_path, stand, then):
    stand.then = then
    url = f"http://127.0.0.1:{stand.server_port}"
    with command(tmp_path, "--since", "2d", "--json", "--prometheus", url) as running:
        assert stand.second_day.wait(30)
        if then == "hang":
            running.send_signal(signal.SIGINT)
        told, error = running.communicate(timeout=30)
    assert running.returncode == 0, error
    report = json.loads(told)
    assert report["requests"] == 7
    words = "interrupted after 24 h" if then == "hang" else "ends early"
    assert words in report["partial"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--since", "soon"), "is no time of up to a year"),
        (("--json", "--html"), "three forms of one report"),
        (("--prometheus", "here:9090"), "is no URL"),
        (("--profile", "missing.json"), "cannot be read"),
        (("--profile", "/dev/null"), "is no profile"),
    ],
)
def test_mistakes_are_told_in_a_sentence(tmp_path, arguments, words):
    with command(tmp_path, *arguments) as running:
        _, error = running.communicate(timeout=30)
    assert running.returncode == 2
    assert words in error
    assert "Traceback" not in error


def test_spans():
    assert (span_s("1h"), span_s("7d"), span_s("2w")) == (3600, 604_800, 1_209_600)
    for wrong in ("0d", "7", "d", "-1d", "999w"):
        with pytest.raises(OperatorError):
            span_s(wrong)
