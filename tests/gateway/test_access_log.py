"""The access log: whole lines, from several processes at once, in files of bounded size; never content, never a key."""

import errno
import json
import os
import subprocess
import sys
import threading

import pytest

from gateway.test_accounting import NOON, ended
from tidegate.gateway.access_log import AccessLog, Refused
from tidegate.gateway.line_file import SharedFile
from tidegate.gateway.record import Caller
from tidegate.types import LineFileOptions, Outcome


@pytest.fixture
def file(tmp_path):
    return tmp_path / "access.log"


@pytest.fixture
def shared(file):
    opened = SharedFile(file)
    yield opened
    opened.close()


def lines(*files):
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


def test_a_request_is_one_line_that_says_who_what_and_how_long(file):
    log = AccessLog(file)
    log.apply(LineFileOptions(enabled=True))
    log.add(
        [
            ended(at_s=NOON + 0.25, caller=Caller("sales", "anna", "k1"), queue_s=0.00123, first_s=0.0456, moves=1),
            ended(at_s=NOON + 1, first_s=None, outcome=Outcome.FAILED, status=502, code="engine_failed"),
            Refused(NOON + 2, "req-9", Caller(), "/wp-admin", 404, "unknown_path", "192.0.2.7"),
        ]
    )
    log.close()
    first, second, third = lines(file)
    assert first == {
        "time": "2026-09-21T12:00:00.250Z",
        "id": "req-1",
        "tenant": "sales",
        "user": "anna",
        "key": "k1",
        "class": "interactive",
        "model": "m",
        "replica": "p-0",
        "path": "/v1/chat/completions",
        "status": 200,
        "outcome": "done",
        "stream": True,
        "queue_ms": 1.2,
        "first_ms": 45.6,
        "total_ms": 1020.0,
        "tokens_in": 5,
        "tokens_out": 11,
        "code": "",
        "moves": 1,
        "client": "",
    }
    assert (second["outcome"], second["status"], second["code"], second["first_ms"]) == (
        "failed",
        502,
        "engine_failed",
        None,
    )
    assert (third["outcome"], third["path"], third["code"]) == ("refused", "/wp-admin", "unknown_path")
    assert third["client"] == "192.0.2.7"
    assert list(third) == list(first), "every line has the same fields"
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_a_client_sends_cannot_break_a_line_or_make_it_long(file):
    log = AccessLog(file)
    log.apply(LineFileOptions(enabled=True))
    long = Caller(user="\ud800\n\x00" + "x" * 9999)
    log.add([Refused(NOON, "r", long, "/" + "y" * 9999, 404, "c"), ended(caller=long, code="z" * 9999)])
    log.close()
    assert len(file.read_bytes()) < 2000
    for line in lines(file):
        assert line["user"].startswith("?\n\x00x")


def test_a_log_that_is_not_wanted_makes_no_file(file):
    log = AccessLog(file)
    log.apply(LineFileOptions(enabled=False))
    log.close()
    assert not file.exists()


def test_the_file_is_put_aside_at_its_size_and_the_oldest_goes(file, shared):
    shared.max_bytes, shared.backups = 100, 2
    for number in range(50):
        shared.write(b"%029d\n" % number)
    kept = sorted(file.parent.iterdir())
    assert [path.name for path in kept] == ["access.log", "access.log.1", "access.log.2"]
    numbers = [int(line) for path in (kept[2], kept[1], kept[0]) for line in path.read_bytes().split()]
    assert numbers == list(range(numbers[0], 50)), "what is kept is whole and in order"
    assert all(path.stat().st_size <= 130 for path in kept)


def test_without_backups_only_the_newest_file_is_kept(file, shared):
    shared.max_bytes, shared.backups = 100, 0
    for number in range(50):
        shared.write(b"%029d\n" % number)
    assert list(file.parent.iterdir()) == [file]
    assert int(file.read_bytes().split()[-1]) == 49


def test_a_file_that_somebody_else_moved_is_begun_anew(file, shared):
    shared.write(b"1\n")
    file.rename(file.with_name("moved"))
    shared.write(b"2\n")
    assert file.read_bytes() == b"2\n"
    file.unlink()
    shared.write(b"3\n")
    assert file.read_bytes() == b"3\n"


WRITER = """
import sys
from pathlib import Path
from tidegate.gateway.line_file import SharedFile
name, file = sys.argv[1:]
shared = SharedFile(Path(file))
shared.max_bytes, shared.backups = 20_000, 1000
for number in range(0, 2000, 5):
    shared.write(b"".join(b"%s %06d %s\\n" % (name.encode(), n, b"x" * 80) for n in range(number, number + 5)))
"""


def test_several_processes_write_one_file_and_no_line_is_torn_or_lost(file):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name, file]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    found = sorted(line for path in file.parent.iterdir() for line in path.read_bytes().splitlines())
    assert found == sorted(b"%s %06d %s" % (name, n, b"x" * 80) for name in (b"a", b"b", b"c") for n in range(2000))
    assert len(list(file.parent.iterdir())) > 20


def test_a_full_disk_costs_lines_which_are_counted_and_writing_goes_on_once_there_is_room(shared, file, monkeypatch):
    real = os.write

    def half(descriptor, data):
        monkeypatch.setattr(os, "write", full)
        return real(descriptor, data[:5])

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space left"):
        shared.write(b"one\ntwo\nthree\n")
    assert shared.unwritten == 2
    with pytest.raises(OSError, match="No space left"):
        shared.write(b"four\n")
    assert shared.unwritten == 1
    monkeypatch.setattr(os, "write", real)
    shared.write(b"five\n")
    assert file.read_bytes() == b"one\nt\nfive\n"


def test_a_disk_that_is_full_for_real_is_told_once_and_its_lines_are_counted(file, caplog):
    log = AccessLog(file)
    file.symlink_to("/dev/full")
    log.apply(LineFileOptions(enabled=True))
    for _ in range(10):
        log.add([ended()])
    log.close()
    assert log.dropped == {"full": 0, "disk": 10, "rate": 0}


def test_the_end_writes_what_waits_and_leaves_no_thread(file):
    log = AccessLog(file)
    log.apply(LineFileOptions(enabled=True))
    for _ in range(3):
        log.add([ended(status=status) for status in range(200, 300)])
    log.close()
    assert [line["status"] for line in lines(file)] == 3 * list(range(200, 300))
    assert "the access log" not in {thread.name for thread in threading.enumerate()}
