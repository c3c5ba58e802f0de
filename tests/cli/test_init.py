"""`tidegate init` writes a short file that is valid, fits this machine, and replaces nothing unasked."""

import http.server
import json
import socket
import threading

import pytest

from tidegate.cli import init
from tidegate.config import load


def read(tmp_path, text):
    file = tmp_path / "made.toml"
    file.write_text(text, encoding="utf-8")
    return load(file, environ={})


LISTEN = {"gateway": "127.0.0.1:8000", "admin": "127.0.0.1:8001", "chat": "127.0.0.1:8080"}


def test_it_writes_a_short_valid_file_and_says_what_comes_next(tidegate):
    ran = tidegate("init")
    assert ran.returncode == 0, ran.stderr
    assert "`tidegate up`" in ran.stdout
    file = tidegate.here / "tidegate.toml"
    assert len(file.read_text().splitlines()) < 40
    assert tidegate("check-config").returncode == 0
    assert not tidegate.home.exists()


def test_a_file_that_exists_is_not_touched(tidegate):
    file = tidegate.here / "tidegate.toml"
    file.write_text("# mine\n")
    ran = tidegate("init")
    assert ran.returncode == 2
    assert ran.stderr.startswith("tidegate: tidegate.toml exists already")
    assert file.read_text() == "# mine\n"
    assert tidegate("init", "--force").returncode == 0
    assert "[gateway]" in file.read_text()


def test_it_can_write_elsewhere_or_print(tidegate):
    assert tidegate("init", "--out", "other.toml").returncode == 0
    assert (tidegate.here / "other.toml").exists()
    assert tidegate("init", "--out", "-").stdout.startswith("# Settings of Tidegate")
    ran = tidegate("init", "--out", "no/where.toml")
    assert ran.returncode == 2
    assert "no/where.toml cannot be written: No such file" in ran.stderr


@pytest.mark.parametrize("gpu", [False, True])
def test_without_a_model_the_choice_is_left_to_up(tmp_path, gpu):
    text = init.render(init.Found("2 cores", LISTEN, gpu=gpu))
    settings = read(tmp_path, text)
    assert settings.model == settings.pool == ()
    assert ("tidegate engines install vllm" in text) is gpu


def test_a_model_that_is_here_is_served(tmp_path):
    found = init.Found("2 cores", LISTEN, models=(("ernie-4.5-0.3b", "ernie-4.5-0.3b"), ("我的", "/models/我的.gguf")))
    text = init.render(found)
    settings = read(tmp_path, text)
    assert [(model.name, model.source) for model in settings.model] == [("ernie-4.5-0.3b", "ernie-4.5-0.3b")]
    assert "# Also here: 我的." in text


def test_an_engine_that_runs_is_put_behind_the_gateway(tmp_path):
    found = init.Found("2 cores", LISTEN, engine=init.RunningEngine("http://127.0.0.1:8100", 'odd "name"'))
    settings = read(tmp_path, init.render(found))
    assert settings.model[0].name == settings.pool[0].model == 'odd "name"'
    assert settings.pool[0].urls == ("http://127.0.0.1:8100",)


class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": "tiny"}]} if self.path == "/v1/models" else {}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_engines_are_found_by_their_answer():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found = list(init.running_engines((1, server.server_port)))
        server.shutdown()
        thread.join()
    assert found == [init.RunningEngine(f"http://127.0.0.1:{server.server_port}", "tiny")]


def test_a_port_that_is_taken_is_not_chosen(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]

        class Defaults:
            gateway = admin = chat = type("Section", (), {"listen": f"127.0.0.1:{port}"})

        monkeypatch.setattr(init, "Settings", Defaults)
        chosen = [int(address.rpartition(":")[2]) for address in init.free_addresses().values()]
    assert port not in chosen
    assert len(set(chosen)) == 3


def test_a_listener_that_has_to_move_leaves_the_others_their_usual_ports(monkeypatch):
    monkeypatch.setattr(init, "_is_free", lambda address: address != "127.0.0.1:8000")
    assert init.free_addresses() == {"gateway": "127.0.0.1:8002", "admin": "127.0.0.1:8001", "chat": "127.0.0.1:8080"}
