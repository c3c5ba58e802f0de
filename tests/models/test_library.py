"""What counts as a model of the data folder, and what never does."""

import json
import multiprocessing
import os
import shutil
import threading

import pytest
import tiny

from tidegate.errors import ModelError
from tidegate.models import library, pull
from tidegate.models.in_use import users_of
from tidegate.models.library import MANIFEST, Source
from tidegate.models.progress import Silent
from tidegate.models.prune import prune


def put(models, ernie_gguf, name="tiny", variant="Q8_0", **source):
    """A finished model of the data folder."""
    staging = library.staging_of(models, name, variant)
    staging.mkdir(parents=True)
    shutil.copy(ernie_gguf, staging / "tiny.gguf")
    sha256 = library.sha256_of(staging / "tiny.gguf")
    records = [library.record(staging, "tiny.gguf", sha256)]
    origin = Source(**({"kind": "file", "where": "x"} | source))
    manifest = library.new_manifest(name, variant, "tiny.gguf", records, digest=sha256, source=origin, licence="")
    return library.install(models, staging, manifest)


def test_a_finished_model_is_found_with_its_path_and_size(models, ernie_gguf):
    put(models, ernie_gguf)
    (found,) = library.stored(models)
    assert (found.name, found.variant) == ("tiny", "Q8_0")
    assert found.path == models / "tiny" / "Q8_0" / "tiny.gguf"
    assert found.size_bytes == ernie_gguf.stat().st_size
    assert library.check(found).architecture == "ernie4_5"
    assert library.find(models, "tiny", "Q8_0") == found
    assert library.find(models, "tiny", "Q4_0") is None


def test_a_folder_without_a_whole_manifest_is_no_model(models, ernie_gguf):
    model = put(models, ernie_gguf)
    manifest = (model.folder / MANIFEST).read_bytes()
    for broken in (b"", b"{", manifest[:-40], b"[]"):
        (model.folder / MANIFEST).write_bytes(broken)
        assert library.stored(models) == []
    (model.folder / MANIFEST).unlink()
    assert library.stored(models) == []


def test_a_model_that_still_grows_is_no_model(models, ernie_gguf):
    staging = library.staging_of(models, "tiny", "Q8_0")
    staging.mkdir()
    shutil.copy(ernie_gguf, staging / "tiny.gguf")
    (staging / MANIFEST).write_text("{}")
    assert library.stored(models) == []
    assert library.by_hand(models) == []


def cut(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


def flip(path):
    """Change some bytes; what the file system said of it before."""
    found = path.stat()
    with path.open("r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"0123456789")
    return found


def test_a_file_cut_after_it_was_checked_is_noticed_at_the_next_start(models, ernie_gguf):
    model = put(models, ernie_gguf)
    cut(model.path)
    with pytest.raises(ModelError, match="instead of") as caught:
        library.check(model)
    assert "tidegate models pull tiny" in caught.value.hint


def test_a_changed_file_is_noticed_by_its_time_and_an_untouched_one_of_a_newer_time_is_not(models, ernie_gguf):
    model = put(models, ernie_gguf)
    os.utime(model.path)
    library.check(model)
    flip(model.path)
    with pytest.raises(ModelError, match="checksum"):
        library.check(model)


def test_rot_that_changed_neither_size_nor_time_is_found_by_verify(models, ernie_gguf):
    model = put(models, ernie_gguf)
    library.verify(model, Silent())
    before = flip(model.path)
    os.utime(model.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    library.check(model)
    with pytest.raises(ModelError, match="checksum"):
        library.verify(model, Silent())


def test_a_missing_file_is_named(models, ernie_gguf):
    model = put(models, ernie_gguf)
    model.path.unlink()
    for look in (library.check, lambda found: library.verify(found, Silent())):
        with pytest.raises(ModelError, match=r"tiny\.gguf is missing"):
            look(model)


def test_a_newer_model_takes_the_older_one_s_place_while_it_is_open(models, ernie_gguf, tmp_path):
    first = put(models, ernie_gguf)
    with first.path.open("rb") as held:
        put(models, ernie_gguf, where="y")
        assert held.read(4) == b"GGUF"
    (found,) = library.stored(models)
    assert found.manifest.source.where == "y"
    assert sorted(path.name for path in models.iterdir()) == ["tiny"]


def test_the_checksum_of_a_file_of_one_s_own_is_kept_until_it_changes(models, ernie_gguf, tmp_path, monkeypatch):
    mine = tmp_path / "mine.gguf"
    shutil.copy(ernie_gguf, mine)
    read = []
    monkeypatch.setattr(library, "sha256_of", lambda path: read.append(path) or "0" * 64)
    for _ in range(3):
        assert library.checksum(models, mine) == "0" * 64
    assert len(read) == 1
    os.utime(mine, (1, 1))
    library.checksum(models, mine)
    assert len(read) == 2


def hold(models, ready, release):
    with library.locked(models, "tiny", Silent()):
        ready.set()
        release.wait(30)


def test_a_second_process_waits_for_the_first_and_says_so(models):
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(models, ready, release))
    other.start()
    try:
        assert ready.wait(30)
        with library.try_locked(models, "tiny") as mine:
            assert not mine
        said = Silent()
        # The first lets go once the second has said that it waits.
        said.say = lambda sentence: release.set() if "waiting" in sentence else None
        with library.locked(models, "tiny", said):
            assert release.is_set()
    finally:
        release.set()
        other.join(30)
    with library.try_locked(models, "tiny") as mine:
        assert mine


def test_two_pulls_at_once_give_one_whole_model(models, ernie_folder):
    made = []
    pulls = [
        threading.Thread(target=lambda: made.append(pull.convert_folder(models, ernie_folder, "Q8_0", Silent())))
        for _ in range(3)
    ]
    for thread in pulls:
        thread.start()
    for thread in pulls:
        thread.join()
    assert len({model.manifest.created_s for model in made}) == 1
    library.verify(made[0], Silent())


def test_an_open_model_is_known_to_be_in_use(models, ernie_gguf):
    import mmap

    model = put(models, ernie_gguf)
    assert users_of(model.path) == []
    with model.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert users_of(model.path) == [os.getpid()]
        assert users_of(model.folder) == [os.getpid()]
    assert users_of(model.path) == []


def test_prune_takes_partial_downloads_and_leaves_models_and_what_is_being_written(models, ernie_gguf):
    put(models, ernie_gguf)
    shutil.copy(ernie_gguf, models / "mine.gguf")
    (models / "my-folder").mkdir()
    for name in (".pull-tiny@Q4_0", ".pull-busy@Q8_0", ".old-tiny@Q8_0"):
        (models / name).mkdir()
        (models / name / "x.gguf.part").write_bytes(bytes(1000))
    with library.locked(models, "busy", Silent()):
        gone = prune(models)
    assert {(item.path.name, item.freed_bytes) for item in gone} == {
        (".pull-tiny@Q4_0", 1000),
        (".old-tiny@Q8_0", 1000),
    }
    left = {path.name for path in models.iterdir()}
    assert left == {"tiny", "mine.gguf", "my-folder", ".pull-busy@Q8_0", ".locks"}


def test_prune_takes_conversions_of_weights_that_changed_or_are_gone(models, tmp_path):
    folder = tmp_path / "weights"
    tiny.write_ernie(folder)
    first = pull.convert_folder(models, folder, "Q8_0", Silent())
    assert prune(models) == []
    tiny.write_ernie(folder, seed=1)
    second = pull.convert_folder(models, folder, "Q8_0", Silent())
    assert second.path != first.path
    (gone,) = prune(models)
    assert gone.path == first.folder
    assert "has changed since" in gone.why
    shutil.rmtree(folder)
    (gone,) = prune(models)
    assert gone.path == second.folder
    assert library.stored(models) == []


def test_a_manifest_is_readable_json_for_people(models, ernie_gguf):
    model = put(models, ernie_gguf)
    said = json.loads((model.folder / MANIFEST).read_text())
    assert said["source"]["kind"] == "file"
    assert said["files"][0]["sha256"] == library.sha256_of(model.path)
