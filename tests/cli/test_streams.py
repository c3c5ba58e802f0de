"""Commands whose standard streams are not what they should be."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate import cli
from tidegate.cli import status

SAY = "from tidegate.cli import mend_streams; mend_streams(); from tidegate.cli.say import say; "


def python(code, **streams):
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    return subprocess.run([sys.executable, "-c", code], check=False, timeout=60, env=environ, **streams)


def test_what_the_terminal_cannot_write_is_escaped():
    ran = python(SAY + "say('a\u6807')", capture_output=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"a\\u6807\n", b"")


def test_a_reader_that_is_gone_stops_nothing():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = python(
            SAY + "say('one'); say('two'); open(2, 'w').write('went on')", stdout=writing, stderr=subprocess.PIPE
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, b"went on")


def test_closed_streams_are_replaced_before_their_numbers_go_to_others():
    code = "import os; [os.close(n) for n in range(3)]; import sys; sys.stdout = sys.stderr = None; "
    code += SAY + "say('hello'); sys.exit(os.open('/dev/null', os.O_RDONLY) - 3)"
    assert python(code).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_message(tidegate):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ran = subprocess.run(
            [sys.executable, "-u", "-m", "tidegate", "check-config", "--example"],
            check=False,
            timeout=60,
            cwd=tidegate.here,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ran.returncode == 2
    assert ran.stderr.startswith("tidegate: No space left on device\n")
    assert len(ran.stderr.splitlines()) == 2


def test_a_data_folder_of_another_user_is_one_message(monkeypatch, capsys):
    def refused():
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/tidegate/run/admin.json")

    monkeypatch.setattr(status, "running", refused)
    with pytest.raises(SystemExit) as ended:
        cli.main(["status"])
    assert ended.value.code == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "tidegate: Permission denied: /srv/tidegate/run/admin.json"
    assert "another user" in told[1]
