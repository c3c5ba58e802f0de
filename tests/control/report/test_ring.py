"""Samples outlive whatever happens to their writer, and never grow past their bounds."""

import os
import signal
import subprocess
import sys

import pytest

from tidegate.control.report.ring import Ring
from tidegate.control.report.samples import ClassSample, Sample

DAY = 86_400.0
NOON = 20_000 * DAY + DAY / 2


def sample(at_s, requests=1):
    return Sample(at_s, 60.0, {"batch": ClassSample({"done": requests})})


def test_what_was_written_is_read_in_order_of_time_within_the_span(tmp_path):
    ring = Ring(tmp_path / "samples")
    ring.write([sample(NOON + 60), sample(NOON)])
    ring.write([sample(NOON + DAY)])
    assert [one.at_s for one in ring.read(NOON, NOON + DAY).samples] == [NOON, NOON + 60]
    assert [one.at_s for one in ring.read(NOON + 1, NOON + 2 * DAY).samples] == [NOON + 60, NOON + DAY]
    assert (tmp_path / "samples").stat().st_mode & 0o077 == 0


def test_without_a_folder_there_is_nothing(tmp_path):
    assert Ring(tmp_path / "samples").read(0, NOON) == ([], 0)


def test_a_line_cut_short_is_passed_over_and_the_next_one_stands_alone(tmp_path):
    ring = Ring(tmp_path)
    ring.write([sample(NOON), sample(NOON + 60)])
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    ring.write([sample(NOON + 120)])
    read = ring.read(NOON, NOON + DAY)
    assert ([one.at_s for one in read.samples], read.broken) == ([NOON, NOON + 120], 1)


def test_the_oldest_days_go_by_their_number_and_their_size(tmp_path):
    ring = Ring(tmp_path, days=3)
    for day in range(6):
        ring.write([sample(NOON + day * DAY)])
    assert [one.at_s for one in ring.read(0, NOON + 9 * DAY).samples] == [NOON + day * DAY for day in (3, 4, 5)]
    small = Ring(tmp_path, most_bytes=1)
    small.write([sample(NOON + 6 * DAY)])
    assert [one.at_s for one in ring.read(0, NOON + 9 * DAY).samples] == [NOON + 6 * DAY]


def test_a_clock_that_was_set_wrong_for_a_while_takes_nothing_away(tmp_path):
    ring = Ring(tmp_path)
    for at_s in (NOON, NOON + 9000 * DAY, NOON - 3600, NOON + 60, -5.0, 1e18):
        ring.write([sample(at_s)])
    assert [one.at_s for one in ring.read(NOON - DAY, NOON + DAY).samples] == [NOON - 3600, NOON, NOON + 60]


def test_a_full_disk_leaves_what_was_there_and_no_half_a_line(tmp_path):
    ring = Ring(tmp_path)
    ring.write([sample(NOON)])
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()
    code = (  # in a process of its own, whose files may not grow any more
        "import resource, signal, sys; from pathlib import Path\n"
        "from tidegate.control.report.ring import Ring; from tidegate.control.report.samples import Sample\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 20},) * 2)\n"
        f"try: Ring(Path(sys.argv[1])).write([Sample({NOON + 60}, 60.0)] * 9)\n"
        "except OSError: sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 7
    assert file.read_bytes() == before


def test_a_writer_killed_outright_leaves_whole_samples(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from tidegate.control.report.ring import Ring; from tidegate.control.report.samples import Sample\n"
        "ring, number = Ring(Path(sys.argv[1])), 0\n"
        "while True:\n"
        f"    ring.write([Sample({NOON} + number % 9, 60.0)]); number += 1\n"
        "    if number == 50: print('going', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"going\n"
        os.kill(writer.pid, signal.SIGKILL)
    ring = Ring(tmp_path)
    ring.write([sample(NOON + 30)])
    read = ring.read(NOON, NOON + DAY)
    assert len(read.samples) >= 51
    assert read.broken <= 1


@pytest.mark.parametrize("junk", [b"\xff\xfe\n", b"[]\n", b'{"at_s": "x"}\n', b"\n\n"])
def test_lines_of_others_do_no_harm(tmp_path, junk):
    ring = Ring(tmp_path)
    ring.write([sample(NOON)])
    (file,) = tmp_path.iterdir()
    file.write_bytes(junk + file.read_bytes())
    assert [one.at_s for one in ring.read(NOON, NOON + DAY).samples] == [NOON]
