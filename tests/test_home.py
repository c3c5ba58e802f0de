"""The data folder: where it is, closed to others, and files that are whole or not there."""

import os
from pathlib import Path

import pytest

from tidegate.errors import OperatorError
from tidegate.home import Home, find_home, write_private


@pytest.mark.parametrize(
    ("setting", "environ", "path"),
    [
        ("/a", {"TIDEGATE_HOME": "/b"}, "/a"),
        (None, {"TIDEGATE_HOME": "/b", "XDG_DATA_HOME": "/c"}, "/b"),
        (None, {"TIDEGATE_HOME": "", "XDG_DATA_HOME": "/c"}, "/c/tidegate"),
        (None, {}, str(Path.home() / ".local/share/tidegate")),
        ("~/x", {}, str(Path.home() / "x")),
    ],
)
def test_where_it_is(setting, environ, path):
    assert str(find_home(Path(setting) if setting else None, environ).path) == path


def test_a_relative_folder_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_home(None, {"TIDEGATE_HOME": "x"}).path == tmp_path / "x"


def test_it_is_closed_to_others_even_if_it_was_open(tmp_path):
    home = Home(tmp_path / "deep" / "home")
    home.path.mkdir(parents=True, mode=0o755)
    home.create()
    home.create()
    assert {path.name for path in home.path.iterdir()} == {"models", "logs", "run"}
    assert [path.stat().st_mode & 0o777 for path in (home.path, home.run, home.logs)] == [0o700] * 3


def test_a_file_in_its_place_is_told(tmp_path):
    (tmp_path / "home").touch()
    with pytest.raises(OperatorError, match="cannot be made or used: a file is in its place") as caught:
        Home(tmp_path / "home").create()
    assert "TIDEGATE_HOME" in caught.value.hint
    with pytest.raises(OperatorError, match="a file is in its place"):
        Home(tmp_path / "home" / "below").create()


def test_a_place_that_cannot_be_written_is_told():
    with pytest.raises(OperatorError, match="cannot be made or used: "):
        Home(Path("/proc/tidegate")).create()


def test_a_private_file_is_whole_and_its_owner_s_alone(tmp_path):
    old = os.umask(0)
    try:
        write_private(tmp_path / "key", b"secret")
        write_private(tmp_path / "key", b"other")
    finally:
        os.umask(old)
    assert (tmp_path / "key").read_bytes() == b"other"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_private_file_that_cannot_be_put_in_place_leaves_nothing(tmp_path):
    (tmp_path / "key").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_private(tmp_path / "key", b"secret")
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
