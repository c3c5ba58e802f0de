import json
import socket
import subprocess
import sys

import pytest

from tidegate.apps import serve


def run(tmp_path, *arguments):
    command = [sys.executable, "-m", "tidegate.apps.serve", "--gateway-url", "http://127.0.0.1:1", *arguments]
    return subprocess.run(
        [*command, "--data-dir", str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_port_that_is_taken_is_one_message_and_exit_code_2(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = run(tmp_path, "--listen", f"127.0.0.1:{port}")
    assert told.returncode == 2
    (line,) = told.stderr.splitlines()
    event = json.loads(line)
    assert str(port) in event["event"]
    assert "chat.listen" in event["hint"]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused_by_name(tmp_path, address):
    told = run(tmp_path, "--listen", address)
    assert told.returncode == 2
    assert f"--listen: {address!r}" in told.stderr


def test_the_secret_of_the_cookies_is_kept_and_only_its_owner_can_read_it(tmp_path):
    file = tmp_path / "auth.secret"
    secret = serve._auth_secret(file)
    assert len(secret) >= 48
    assert file.stat().st_mode & 0o777 == 0o600
    assert serve._auth_secret(file) == secret
    file.write_text("short")
    assert len(serve._auth_secret(file)) >= 48


def test_services_that_chainlit_would_switch_on_are_left_out_of_its_environment(tmp_path, monkeypatch):
    for name in ("DATABASE_URL", "LITERAL_API_KEY", "CHAINLIT_URL", "SLACK_BOT_TOKEN", "CHAINLIT_APP_ROOT", "KEPT"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("CHAINLIT_ENV_FILE", "x")
    monkeypatch.setenv("CHAINLIT_AUTH_SECRET", "x")
    serve._set_environment(tmp_path, sign_in=False)
    here = {name: value for name, value in serve.os.environ.items() if name.startswith(serve.FOREIGN)}
    assert here == {"CHAINLIT_APP_ROOT": str(tmp_path), "CHAINLIT_ENV_FILE": "/dev/null"}
    assert "DATABASE_URL" not in serve.os.environ
    assert serve.os.environ["KEPT"] == "x"
