"""Gathering facts from the real machine, without leaving a trace on it."""

import fcntl
import http.server
import os
import socket
import sys
import threading
import time

import pytest

from tidegate.control.doctor import disk, folder, gpu, hub, listeners, machine, models
from tidegate.control.state import ProcessKind, ProcessRecord, Records
from tidegate.fleet.local import process_id
from tidegate.home import Home
from tidegate.models.hubs import HuggingFace, ModelScope
from tidegate.types import ProcessId


def test_the_machine_is_described():
    facts = machine.gather()
    assert facts.python == sys.version_info[:3]
    assert facts.cores >= 1
    assert 0 < facts.available_bytes <= facts.memory_bytes
    assert facts.open_files <= facts.open_files_hard


def test_the_disk_is_tried_and_left_as_it_was(tmp_path):
    facts = disk.gather(tmp_path / "not" / "there", trial_bytes=1 << 20)
    assert facts.fault == ""
    assert facts.write_bytes_s > 0
    assert facts.read_bytes_s > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_is_a_fact(tmp_path):
    facts = disk.gather(type(tmp_path)("/proc/self/fdinfo"))
    assert facts.write_bytes_s is None
    assert facts.fault


def test_who_holds_a_port_is_found():
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        (fact,) = listeners.gather({"chat.listen": address})
    assert "already in use" in fact.fault
    assert fact.holder.pid == os.getpid()
    assert "pytest" in fact.holder.command
    (fact,) = listeners.gather({"chat.listen": address})
    assert fact.fault == ""


def test_an_address_this_machine_does_not_have_is_told():
    (fact,) = listeners.gather({"chat.listen": "192.0.2.1:8080"})
    assert "does not have that address" in fact.fault
    assert fact.holder is None


def test_a_broken_gguf_file_is_found(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF and then nothing")
    (fact,) = models.gather(tmp_path)
    assert "is not a whole GGUF file" in fact.fault
    assert str(tmp_path / "broken.gguf") in fact.advice
    assert models.gather(tmp_path / "nowhere") == ()


class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if "silent" in self.headers.get("x-how", ""):
            self.server.released.wait(10)
        self.send_response(200 if "wrong" not in self.headers.get("x-how", "") else 503)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def base():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.released = threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.released.set()
        server.shutdown()
        thread.join()


def test_hubs_are_asked_side_by_side_and_not_for_long(base):
    asked = (
        HuggingFace(base),
        ModelScope(base, {"x-how": "wrong"}),
        HuggingFace(base, {"x-how": "silent"}),
        ModelScope("http://127.0.0.1:1"),
    )
    begun = time.monotonic()
    good, wrong, silent, closed = hub.gather(asked, within_s=3.0)
    assert time.monotonic() - begun < 6
    assert good.seconds < 3
    assert abs(good.clock_skew_s) < 5
    assert wrong.fault == "HTTP 503"
    assert silent.seconds is None
    assert silent.fault
    assert "refused" in closed.fault
    assert "Errno" not in closed.fault


def test_nvidia_cards_are_seen_without_a_driver(tmp_path):
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x1002", "0x030000")):
        (tmp_path / "pci" / name).mkdir(parents=True)
        (tmp_path / "pci" / name / "vendor").write_text(vendor + "\n")
        (tmp_path / "pci" / name / "class").write_text(kind + "\n")
    assert gpu.gather(devices=tmp_path / "pci", control=tmp_path / "none") == gpu.GpuFacts(cards=1)


def test_the_data_folder_s_processes_are_told_apart(tmp_path):
    home = Home(tmp_path / "home")
    assert not folder.gather(home).exists
    home.create()
    records = Records.load(home)
    records.put(ProcessRecord(name="gateway", kind=ProcessKind.GATEWAY, id=process_id(os.getpid()), digest=""))
    records.put(ProcessRecord(name="chat", kind=ProcessKind.CHAT, id=ProcessId(os.getpid(), 1), digest=""))
    (home.path / "state.db").touch(mode=0o644)
    (home.path / "state.db").chmod(0o644)
    with (home.run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = folder.gather(home)
    assert [record.name for record in held.alive] == ["gateway"]
    assert [record.name for record in held.dead] == ["chat"]
    assert held.open_files == ("state.db",)
    assert held.mode == 0o700
    assert held.control == os.getpid()
    assert held.ours == {os.getpid()}
    assert folder.gather(home).control == 0
