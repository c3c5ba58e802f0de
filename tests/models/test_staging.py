"""Copies of weights on a fast disk: made once, whole or not at all, and never used once their source is another."""

import os
import shutil

import msgspec
import pytest

from tidegate.errors import ModelError
from tidegate.models import library, staging
from tidegate.models.progress import Silent

SPARE = 1024**4


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path):
    """A model on a slow disk."""
    folder = tmp_path / "slow" / "ernie"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer").write_text("a")
    (folder / "tokenizer.json").write_text("b")
    (folder / "model.safetensors").write_bytes(os.urandom(3 * 1024 * 1024 + 7))
    return folder


@pytest.fixture
def fast(tmp_path):
    return tmp_path / "fast"


def stage(models, source, fast, room=SPARE):
    return staging.stage(models, source, fast, Silent(), free=lambda _: room)


def test_a_folder_is_copied_whole_and_known_from_then_on(models, folder, fast):
    made = stage(models, folder, fast)
    assert made.path.parent == fast
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in made.path.iterdir() if path.name != staging.RECORD
    }
    assert made.copied_bytes == made.size_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert staging.staged(models, folder).path == made.path
    assert [path.name for path in fast.iterdir() if path.name[0] != "."] == [made.path.name]


def test_a_file_is_copied_and_what_is_given_to_the_engine_is_a_file(models, tmp_path, fast):
    source = tmp_path / "m-Q8_0.gguf"
    source.write_bytes(b"GGUF" * 1000)
    made = stage(models, source, fast)
    assert made.path.name == source.name
    assert made.path.read_bytes() == source.read_bytes()


def test_what_is_there_is_not_copied_again(models, folder, fast):
    made = stage(models, folder, fast)
    before = (made.path / "model.safetensors").stat()
    again = stage(models, folder, fast, room=0)
    assert (again.path, again.copied_bytes) == (made.path, 0)
    assert (made.path / "model.safetensors").stat().st_ino == before.st_ino


def test_a_cut_copy_is_gone_on_with_and_was_never_used(models, folder, fast, monkeypatch):
    big, whole = folder / "model.safetensors", folder.joinpath("model.safetensors").read_bytes()
    copy = staging._copy_file

    def cut(source, target, sha256, step):
        def fail(now):
            if source == big and now > 2 * 1024 * 1024:
                raise KeyboardInterrupt
            step(now)

        return copy(source, target, sha256, fail)

    monkeypatch.setattr(staging, "_copy_file", cut)
    with pytest.raises(KeyboardInterrupt):
        stage(models, folder, fast)
    assert staging.staged(models, folder) is None
    monkeypatch.setattr(staging, "_copy_file", copy)
    made = stage(models, folder, fast)
    assert 0 < made.copied_bytes < 2 * 1024 * 1024
    assert (made.path / big.name).read_bytes() == whole


def test_a_begun_copy_whose_bytes_are_wrong_is_begun_anew(models, folder, fast):
    growing = fast / (staging.GROWING + staging._name_of(folder))
    growing.mkdir(parents=True)
    big = folder / "model.safetensors"
    (growing / big.name).write_bytes(b"x" * 1000)
    begun = staging.Begun(big.stat().st_size, big.stat().st_mtime_ns)
    (growing / f".{big.name}.begun").write_bytes(msgspec.json.encode(begun))
    made = stage(models, folder, fast)
    assert (made.path / big.name).read_bytes() == big.read_bytes()


def test_a_begun_copy_of_an_older_source_is_begun_anew(models, folder, fast):
    growing = fast / (staging.GROWING + staging._name_of(folder))
    growing.mkdir(parents=True)
    (growing / "model.safetensors").write_bytes(b"x" * 1000)
    (growing / ".model.safetensors.begun").write_bytes(msgspec.json.encode(staging.Begun(1000, 1)))
    (growing / "of-older-weights.safetensors").write_bytes(b"x")
    made = stage(models, folder, fast)
    assert made.copied_bytes == made.size_bytes
    assert not (made.path / "of-older-weights.safetensors").exists()


@pytest.mark.parametrize("change", ["bytes", "time", "more", "less"])
def test_a_source_that_has_changed_is_seen_and_copied_anew(models, folder, fast, change):
    made = stage(models, folder, fast)
    config = folder / "config.json"
    if change == "bytes":
        config.write_text('{"a": 1}')
    elif change == "time":
        os.utime(config, ns=(1, 1))
    elif change == "more":
        (folder / "more.safetensors").write_bytes(b"z")
    else:
        (folder / "tokenizer").unlink()
    with pytest.raises(ModelError, match="is not used: "):
        staging.staged(models, folder)
    again = stage(models, folder, fast)
    assert again.path == made.path
    assert {path.name for path in again.path.iterdir()} - {staging.RECORD} == {path.name for path in folder.iterdir()}
    assert (again.path / "config.json").read_bytes() == config.read_bytes()
    assert staging.staged(models, folder) is not None


@pytest.mark.parametrize("harm", ["cut", "gone", "record", "all"])
def test_a_broken_copy_is_never_used_and_is_made_anew(models, folder, fast, harm):
    made = stage(models, folder, fast)
    if harm == "cut":
        os.truncate(made.path / "model.safetensors", 1000)
    elif harm == "gone":
        (made.path / "config.json").unlink()
    elif harm == "record":
        (made.path / staging.RECORD).write_text("{")
    else:
        shutil.rmtree(made.path)
    with pytest.raises(ModelError, match=r"the copy of ernie in .* is not used"):
        staging.staged(models, folder)
    again = stage(models, folder, fast)
    assert (again.path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_without_space_nothing_is_copied_and_the_sum_is_told(models, folder, fast):
    with pytest.raises(ModelError, match=r"needs 3 MiB in .*fast, and 10 MiB are free"):
        stage(models, folder, fast, room=10 * 1024 * 1024)
    assert not list(fast.rglob("*.safetensors"))


def test_the_copy_of_an_older_source_makes_room_for_the_newer_one(models, folder, fast):
    made = stage(models, folder, fast)
    (folder / "config.json").write_text('{"a": 1}')

    def free(_):
        return 0 if made.path.exists() else SPARE

    again = staging.stage(models, folder, fast, Silent(), free=free)
    assert (again.path / "config.json").read_text() == '{"a": 1}'


def test_a_disk_that_returns_other_bytes_is_found_out(models, folder, fast, monkeypatch):
    monkeypatch.setattr(staging, "_sum_from_disk", lambda path: "0" * 64)
    with pytest.raises(ModelError, match="is not what was written"):
        stage(models, folder, fast)
    assert staging.staged(models, folder) is None


def test_a_damaged_model_of_the_data_folder_is_not_copied(models, fast):
    folder = models / "m" / "safetensors"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"good")
    record = library.record(folder, "model.safetensors", "0" * 64)
    manifest = library.new_manifest(
        "m", "safetensors", "", [record], digest="d", source=library.Source("file", ""), licence=""
    )
    (folder / library.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(ModelError, match="is damaged"):
        stage(models, folder, fast)


def test_a_folder_that_cannot_be_written_and_one_that_is_empty_are_told(models, folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="ernie cannot be copied to"):
        stage(models, folder, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="there is no model at"):
        stage(models, tmp_path / "empty", tmp_path / "fast")


def test_copies_are_taken_away_by_hand_and_with_their_models(models, folder, fast):
    made = stage(models, folder, fast)
    assert staging.remove(models, folder) > made.size_bytes
    assert not made.path.exists()
    assert staging.staged(models, folder) is None
    assert staging.remove(models, folder) == 0
    made = stage(models, folder, fast)
    assert staging.prune(models) == []
    shutil.rmtree(folder)
    assert [place for place, _ in staging.prune(models)] == [made.path]
    assert not made.path.exists()


def test_two_models_of_one_name_have_copies_of_their_own(models, folder, tmp_path, fast):
    other = tmp_path / "elsewhere" / "ernie"
    shutil.copytree(folder, other)
    assert stage(models, folder, fast).path != stage(models, other, fast).path
