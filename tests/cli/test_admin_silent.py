import os
import socket

import msgspec
import pytest

from tidegate.cli import admin
from tidegate.control import state
from tidegate.home import Home


def test_a_control_that_hangs_is_not_taken_for_none(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(admin, "TIMEOUT_S", 0.05)
    home = Home(tmp_path)
    home.create()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (home.run / "admin.json").write_bytes(msgspec.json.encode(state.AdminAddress(url, "token", os.getpid())))
        with pytest.raises(admin.SilentError, match=f"process {os.getpid()} has not answered at {url} for 0.05 s"):
            admin.running()
    assert admin.running() is None
