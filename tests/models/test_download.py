"""Downloads over a hub with faults: resumed, checked, and never half a file under its name."""

import hashlib
import os

import httpx
import pytest
import stamina

from hub import Hub, git_sha1
from tidegate.errors import DownloadError
from tidegate.models import download
from tidegate.models.download import Wanted, fetch
from tidegate.models.hubs import HuggingFace, client, first_to_answer
from tidegate.models.progress import Silent

DATA = os.urandom(300_000)
ID = "org/name"


@pytest.fixture
def hub():
    with (
        Hub({ID: {"model.gguf": DATA, "config.json": b'{"a": 1}'}}) as hub,
        stamina.set_testing(True, attempts=4, cap=True),
    ):
        yield hub


@pytest.fixture
def http():
    with httpx.Client(follow_redirects=True) as made:
        yield made


def wanted(hub, tmp_path, **changes):
    values = {
        "url": f"{hub.url}/cdn/{ID}/model.gguf",
        "target": tmp_path / "model.gguf",
        "size_bytes": len(DATA),
        "sha256": hashlib.sha256(DATA).hexdigest(),
    }
    return Wanted(**(values | changes))


def files(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def ranges(hub):
    return [asked.headers.get("range") for asked in hub.requests("/cdn/")]


def test_a_file_arrives_whole_through_the_hub_s_redirect(hub, tmp_path):
    place = HuggingFace(hub.url, {"authorization": "Bearer secret"})
    repository = first_to_answer([place], {"huggingface": ID})
    (file,) = repository.matching(".gguf")
    with client(place) as http:
        sha256 = fetch(http, wanted(hub, tmp_path, url=repository.url(file), sha256=file.sha256), Silent())
    assert (tmp_path / "model.gguf").read_bytes() == DATA
    assert sha256 == hashlib.sha256(DATA).hexdigest()
    assert files(tmp_path) == ["model.gguf"]
    assert all("authorization" not in asked.headers for asked in hub.requests("/cdn/"))


def test_cuts_are_gone_on_from_by_range(hub, http, tmp_path):
    hub.faults.cut_after["model.gguf"] = [100_000, 50_000, 0, 1]
    fetch(http, wanted(hub, tmp_path), Silent())
    assert (tmp_path / "model.gguf").read_bytes() == DATA
    assert ranges(hub) == [None, "bytes=100000-", "bytes=150000-", "bytes=150000-", "bytes=150001-"]
    assert {asked.headers.get("if-range") for asked in hub.requests("/cdn/")[1:]} == {
        f'"{hashlib.sha256(DATA).hexdigest()}"'
    }


def test_a_later_command_goes_on_where_the_first_gave_up(hub, http, tmp_path):
    hub.faults.cut_after["model.gguf"] = [120_000] + [0] * 8
    with pytest.raises(DownloadError, match="could not be downloaded") as caught:
        fetch(http, wanted(hub, tmp_path), Silent())
    assert "goes on from there" in caught.value.hint
    assert files(tmp_path) == ["model.gguf.part", "model.gguf.part.json"]
    hub.faults.cut_after.clear()
    hub.asked.clear()
    fetch(http, wanted(hub, tmp_path), Silent())
    assert ranges(hub) == ["bytes=120000-"]
    assert (tmp_path / "model.gguf").read_bytes() == DATA
    assert files(tmp_path) == ["model.gguf"]


def test_a_server_without_ranges_sends_it_all_again(hub, http, tmp_path):
    hub.faults.no_ranges = True
    hub.faults.cut_after["model.gguf"] = [100_000]
    fetch(http, wanted(hub, tmp_path), Silent())
    assert (tmp_path / "model.gguf").read_bytes() == DATA


def test_a_part_of_an_older_file_is_not_mixed_with_a_newer_one(hub, http, tmp_path):
    hub.faults.cut_after["model.gguf"] = [120_000] + [0] * 8
    with pytest.raises(DownloadError):
        fetch(http, wanted(hub, tmp_path), Silent())
    newer = os.urandom(len(DATA))
    hub.repositories[ID]["model.gguf"] = newer
    hub.faults.cut_after.clear()
    # Without a checksum from the hub the etag alone tells (If-Range); with one, the checksum does.
    fetch(http, wanted(hub, tmp_path, sha256=hashlib.sha256(newer).hexdigest()), Silent())
    assert (tmp_path / "model.gguf").read_bytes() == newer


def test_the_etag_tells_an_older_part_where_there_is_no_checksum(hub, http, tmp_path):
    hub.faults.cut_after["model.gguf"] = [120_000] + [0] * 8
    with pytest.raises(DownloadError):
        fetch(http, wanted(hub, tmp_path, sha256=""), Silent())
    newer = os.urandom(len(DATA))
    hub.repositories[ID]["model.gguf"] = newer
    hub.faults.cut_after.clear()
    hub.asked.clear()
    fetch(http, wanted(hub, tmp_path, sha256=""), Silent())
    assert ranges(hub) == ["bytes=120000-"]
    assert (tmp_path / "model.gguf").read_bytes() == newer


def test_a_part_that_went_bad_on_the_disk_is_fetched_anew(hub, http, tmp_path):
    hub.faults.cut_after["model.gguf"] = [120_000] + [0] * 8
    with pytest.raises(DownloadError):
        fetch(http, wanted(hub, tmp_path), Silent())
    hub.faults.cut_after.clear()
    (tmp_path / "model.gguf.part").write_bytes(bytes(120_000))
    fetch(http, wanted(hub, tmp_path), Silent())
    assert (tmp_path / "model.gguf").read_bytes() == DATA


def test_other_bytes_than_announced_are_refused_and_leave_nothing(hub, http, tmp_path):
    hub.faults.wrong_bytes.add("model.gguf")
    with pytest.raises(DownloadError, match=r"the checksum of model\.gguf is wrong"):
        fetch(http, wanted(hub, tmp_path), Silent())
    assert files(tmp_path) == []


def test_a_small_file_is_checked_by_its_git_blob(hub, http, tmp_path):
    data = b'{"a": 1}'
    small = {"url": f"{hub.url}/cdn/{ID}/config.json", "target": tmp_path / "config.json", "size_bytes": len(data)}
    fetch(http, Wanted(**small, git_sha1=git_sha1(data)), Silent())
    assert (tmp_path / "config.json").read_bytes() == data
    (tmp_path / "config.json").unlink()
    hub.faults.wrong_bytes.add("config.json")
    with pytest.raises(DownloadError, match="checksum"):
        fetch(http, Wanted(**small, git_sha1=git_sha1(data)), Silent())
    assert files(tmp_path) == []


def test_a_login_page_in_place_of_the_file_is_named(hub, http, tmp_path):
    hub.faults.wrong_length.add("model.gguf")
    with pytest.raises(DownloadError, match="the hub announced 300,000"):
        fetch(http, wanted(hub, tmp_path), Silent())
    assert files(tmp_path) == []


def test_a_busy_server_is_asked_again_and_a_plain_refusal_is_not(hub, http, tmp_path):
    hub.faults.statuses = [503, 429, 500]
    fetch(http, wanted(hub, tmp_path), Silent())
    assert (tmp_path / "model.gguf").read_bytes() == DATA
    assert len(hub.requests("/cdn/")) == 4
    hub.faults.statuses = [403]
    hub.asked.clear()
    with pytest.raises(DownloadError, match="HTTP 403"):
        fetch(http, wanted(hub, tmp_path, target=tmp_path / "again.gguf"), Silent())
    assert len(hub.requests("/cdn/")) == 1


def test_a_server_that_answers_another_range_is_not_believed(hub, http, tmp_path):
    hub.faults.cut_after["model.gguf"] = [100_000]
    hub.faults.wrong_range = True
    fetch(http, wanted(hub, tmp_path), Silent())
    assert (tmp_path / "model.gguf").read_bytes() == DATA


def test_a_server_that_stalls_is_given_up(hub, http, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "STALL_S", 0.1)
    hub.faults.hang_s = 30
    with pytest.raises(DownloadError, match="could not be downloaded"):
        fetch(http, wanted(hub, tmp_path), Silent())


def test_what_is_here_and_whole_is_not_fetched(hub, http, tmp_path):
    (tmp_path / "model.gguf").write_bytes(DATA)
    fetch(http, wanted(hub, tmp_path), Silent())
    assert hub.asked == []
    (tmp_path / "model.gguf").write_bytes(bytes(len(DATA)))
    fetch(http, wanted(hub, tmp_path), Silent())
    assert (tmp_path / "model.gguf").read_bytes() == DATA


def test_progress_counts_up_to_the_whole_also_after_a_cut(hub, http, tmp_path):
    counted = []

    class Step:
        def __enter__(self):
            return counted.append

        def __exit__(self, *exc):
            return None

    watching = Silent()
    watching.step = lambda what, total_bytes: Step()
    hub.faults.cut_after["model.gguf"] = [100_000]
    fetch(http, wanted(hub, tmp_path), watching)
    assert counted == sorted(counted)
    assert counted[-1] == len(DATA)
