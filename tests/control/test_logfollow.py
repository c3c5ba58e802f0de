import os

import pytest

from tidegate.control import logfollow
from tidegate.control.logfollow import LogFollower


@pytest.fixture
def follow(tmp_path):
    told = []
    path = tmp_path / "child.log"
    path.write_bytes(b"from before\n")
    follower = LogFollower(path, lambda line: told.append(line.decode()), max_bytes=100)
    child = os.open(path, os.O_WRONLY | os.O_APPEND)
    yield follower, lambda data: os.write(child, data), told, path
    os.close(child)


def test_following_starts_at_the_end_and_tells_whole_lines_only(follow):
    follower, write, told, _ = follow
    write("一行\nhalf".encode())
    follower.poll()
    assert told == ["一行"]
    write(b" and half\n")
    follower.poll()
    assert told == ["一行", "half and half"]
    follower.close()


def test_a_file_over_its_bound_is_emptied_in_place_and_followed_on(follow):
    follower, write, told, path = follow
    write(b"x" * 120 + b"\n")
    follower.poll()
    assert path.stat().st_size == 0
    write(b"after\n")
    follower.poll()
    assert told == ["x" * 120, "after"]
    assert path.stat().st_size == 6
    follower.close()


def test_a_file_that_somebody_emptied_is_read_from_its_start(follow):
    follower, write, told, path = follow
    write(b"one\n")
    follower.poll()
    os.truncate(path, 0)
    write(b"two\n")
    follower.poll()
    assert told == ["one", "two"]
    follower.close()


def test_the_tail_holds_the_last_lines_and_close_tells_an_unfinished_one(follow):
    follower, write, told, _ = follow
    write(b"".join(b"%d\n" % n for n in range(logfollow.TAIL_LINES + 5)) + b"end")
    assert follower.tail()[-1] == str(logfollow.TAIL_LINES + 4)
    assert len(follower.tail()) == logfollow.TAIL_LINES
    follower.close()
    assert told[-1] == "end"


def test_a_line_without_end_does_not_fill_the_memory(follow):
    follower, write, told, _ = follow
    write(b"y" * (logfollow.MAX_LINE_BYTES + 1))
    follower.poll()
    assert len(told) == 1
    follower.close()
