"""Two hubs asked side by side, over real sockets."""

import socket
import time

import pytest

from hub import Hub
from tidegate.config import HubEnvironment
from tidegate.errors import DownloadError, SettingError
from tidegate.models.hubs import (
    HUGGING_FACE,
    MODELSCOPE,
    HuggingFace,
    ModelScope,
    NoRepositoryError,
    first_to_answer,
    hubs_for,
    safe_path,
)

FILES = {"config.json": b"{}", "model.safetensors": bytes(5000)}
IDS = {"huggingface": "baidu/ERNIE", "modelscope": "PaddlePaddle/ERNIE"}


@pytest.fixture
def hf():
    with Hub({"baidu/ERNIE": FILES}) as hub:
        yield hub


@pytest.fixture
def ms():
    with Hub({"PaddlePaddle/ERNIE": FILES}) as hub:
        yield hub


def both(hf, ms):
    return HuggingFace(hf.url), ModelScope(ms.url)


def test_either_hub_lists_files_with_sizes_and_checksums(hf, ms):
    hugging_face, modelscope = both(hf, ms)
    for hub in (hugging_face, modelscope):
        repository = first_to_answer([hub], IDS)
        assert repository.hub is hub
        sizes = {file.path: file.size_bytes for file in repository.files}
        assert sizes == {"config.json": 2, "model.safetensors": 5000}
        assert all(len(file.sha256) == 64 or len(file.git_sha1) == 40 for file in repository.files)
    assert first_to_answer([hugging_face], IDS).licence == "apache-2.0"


def test_the_first_to_answer_serves_and_the_slow_one_is_not_waited_for(hf, ms):
    hf.faults.hang_s = 30
    begun = time.monotonic()
    assert first_to_answer(both(hf, ms), IDS).hub.name == "modelscope"
    assert time.monotonic() - begun < 15
    hf.faults.hang_s, ms.faults.hang_s = 0, 30
    assert first_to_answer(both(hf, ms), IDS).hub.name == "huggingface"


def test_a_quick_refusal_does_not_hide_the_hub_that_has_it(hf, ms):
    hf.repositories.clear()
    assert first_to_answer(both(hf, ms), IDS).hub.name == "modelscope"
    hf.faults.listing_status = 503
    assert first_to_answer(both(hf, ms), IDS).hub.name == "modelscope"


def test_hubs_that_hang_cost_the_time_allowed_and_each_is_named(hf, ms):
    hf.faults.hang_s = ms.faults.hang_s = 30
    begun = time.monotonic()
    with pytest.raises(DownloadError) as caught:
        first_to_answer(both(hf, ms), IDS, within_s=0.5)
    assert 0.4 < time.monotonic() - begun < 15
    assert "huggingface at 127.0.0.1" in str(caught.value)
    assert "modelscope at 127.0.0.1" in str(caught.value)
    assert "no answer within 0.5 s" in str(caught.value)
    assert "TIDEGATE_HUB" in caught.value.hint


def test_a_hub_that_never_accepts_costs_the_time_allowed():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        # The queue of connections is filled, so that the next one gets no answer, as from behind a firewall.
        others = [socket.socket() for _ in range(4)]
        for other in others:
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        begun = time.monotonic()
        with pytest.raises(DownloadError, match="no answer within"):
            first_to_answer([HuggingFace(f"http://127.0.0.1:{full.getsockname()[1]}")], IDS, within_s=0.5)
        assert time.monotonic() - begun < 15
        for other in others:
            other.close()


def test_a_hub_that_cannot_be_reached_costs_nothing(unused):
    with pytest.raises(DownloadError, match="refused"):
        first_to_answer([HuggingFace(unused), ModelScope(unused)], IDS)


@pytest.fixture
def unused():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_hubs_without_the_repository_say_so_in_a_kind_of_its_own(hf, ms):
    with pytest.raises(NoRepositoryError, match="nobody/nothing"):
        first_to_answer(both(hf, ms), {"huggingface": "nobody/nothing", "modelscope": "nobody/nothing"})
    hf.faults.listing_status = ms.faults.listing_status = 500
    with pytest.raises(DownloadError, match="HTTP 500") as caught:
        first_to_answer(both(hf, ms), IDS)
    assert not isinstance(caught.value, NoRepositoryError)


@pytest.mark.parametrize(
    "listing",
    [
        [],
        "text",
        {"siblings": None},
        {"siblings": [{"rfilename": 3}]},
        {"Data": None},
        {"sha": "1", "siblings": [{"rfilename": "../../.bashrc", "size": 3}]},
        {"Data": {"Files": [{"Path": "/etc/cron.d/x", "Size": 3}]}},
    ],
)
def test_an_answer_that_is_no_list_of_files_or_names_files_outside_is_refused(hf, ms, listing):
    hf.faults.listing = ms.faults.listing = listing
    with pytest.raises(DownloadError, match="not a list of files"):
        first_to_answer(both(hf, ms), IDS)


@pytest.mark.parametrize("path", ["", "/a", "../a", "a/../../b", "a\\b", "C:/x", "a\0b", ".."])
def test_names_that_leave_their_folder_are_refused(path):
    with pytest.raises(ValueError, match="leaves its folder"):
        safe_path(path)


@pytest.mark.parametrize("path", ["a", "a/b.gguf", "a..b", "..a/b", "模型.gguf"])
def test_other_names_are_kept(path):
    assert safe_path(path) == path


def test_the_environment_chooses_the_hubs():
    def bases(**environment):
        return [(hub.name, hub.base) for hub in hubs_for(HubEnvironment(**environment))]

    assert bases() == [("huggingface", HUGGING_FACE), ("modelscope", MODELSCOPE)]
    assert bases(hub="hf") == [("huggingface", HUGGING_FACE)]
    assert bases(hub="ModelScope") == [("modelscope", MODELSCOPE)]
    assert bases(hf_endpoint="https://mirror.example.com/")[0] == ("huggingface", "https://mirror.example.com")
    assert bases(hub="hf", hf_endpoint="http://m") == [("huggingface", "http://m")]
    assert bases(hub="http://m:1/") == [("huggingface", "http://m:1"), ("modelscope", "http://m:1")]
    for wrong in ({"hub": "hugging"}, {"hf_endpoint": "mirror.example.com"}):
        with pytest.raises(SettingError, match="is not a hub"):
            bases(**wrong)


def test_a_url_may_speak_either_hub_s_language(hf):
    hf.faults.speaks = ("ms",)
    ids = {"huggingface": "baidu/ERNIE", "modelscope": "baidu/ERNIE"}
    assert first_to_answer(hubs_for(HubEnvironment(hub=hf.url)), ids).hub.name == "modelscope"


def test_the_token_goes_to_hugging_face_alone(hf, ms):
    token = "secret"  # noqa: S105 - of no real hub
    environment = HubEnvironment(hf_endpoint=hf.url, hf_token=token)
    first_to_answer(hubs_for(environment)[:1], IDS)
    assert hf.asked[-1].headers["authorization"] == "Bearer secret"
    first_to_answer(hubs_for(HubEnvironment(hub=ms.url, hf_token=token)), IDS)
    assert all("authorization" not in asked.headers for asked in ms.asked)
    assert "secret" not in repr(hubs_for(environment))
