"""Real llama.cpp that loads its weights from a fast disk, tells where the time of its start went, and is scaled."""

import os
import shutil
from pathlib import Path

import pytest

from up_site import Site

MODEL = """\
[engines]
{stage}
[[model]]
name = "smol"
source = {source!r}
[[pool]]
name = "p"
model = "smol"
[pool.options]
slots = 2
context_tokens = {context}
threads = 1
"""


@pytest.fixture
def site():
    site = Site()
    try:
        yield site
    finally:
        site.close()


def loaded(site):
    """The file that the engine was given."""
    words = Path(f"/proc/{site.pids()['p-0']}/cmdline").read_bytes().split(b"\0")
    return Path(os.fsdecode(words[words.index(b"--model") + 1]))


def test_weights_come_from_the_fast_disk_until_their_source_is_another(site, demo_model):
    source, fast = site.folder / "smol.gguf", site.folder / "fast"
    shutil.copyfile(demo_model, source)
    site.settings(MODEL.format(source=str(source), context=512, stage=f'stage_to = "{fast}"'))
    up = site.up().ready()
    assert loaded(site).is_relative_to(fast)
    assert site.ask(site.urls()["api"], model="smol")
    one = site.status().replicas[0]
    assert 0 < one.start.load_s < one.started_s
    assert f"load_s={one.start.load_s:g}" in up.text()
    up.interrupt()
    assert up.end() == 0

    copy = next(fast.glob("*/*.gguf"))
    os.truncate(copy, 1000)  # a broken copy is made anew
    up = site.up().ready()
    assert loaded(site) == copy
    assert copy.stat().st_size > 1000
    up.interrupt()
    assert up.end() == 0

    site.settings(MODEL.format(source=str(source), context=512, stage=""))
    resolved = next(site.home.path.glob("models/.staged.json"))
    assert str(copy.parent) in resolved.read_text()
    os.truncate(copy, 1000)  # staged by hand, as it were: the model itself is served, and it is said why
    up = site.up().ready()
    assert not loaded(site).is_relative_to(fast)
    assert "is not used: smol.gguf in it is not as it was written" in up.text()
    assert site.ask(site.urls()["api"], model="smol")


def test_more_replicas_than_memory_holds_are_refused_with_the_sum_and_one_more_is_begun(site, demo_model):
    site.settings(MODEL.format(source=str(demo_model), context=8192, stage=""))
    site.up().ready()
    told = site.run("scale", "p", 64)
    assert told.returncode == 2
    assert "does not fit in memory: it needs weights" in told.stderr
    assert "for each of 63" in told.stderr
    assert [one.id for one in site.status().replicas] == ["p-0"]
    told = site.run("scale", "p", 2)
    assert told.returncode == 0, told.stderr
    assert "p-1 is ready after" in told.stdout


def test_a_model_is_staged_by_hand_and_the_copy_taken_away(site, demo_model):
    source, fast = site.home.models / "smol.gguf", site.folder / "fast"
    shutil.copyfile(demo_model, source)
    assert "where to is not said" in site.run("models", "stage", "smol").stderr
    told = site.run("models", "stage", "smol", "--to", fast)
    assert told.returncode == 0, told.stderr
    copy = Path(told.stdout.strip())
    assert copy.read_bytes() == demo_model.read_bytes()
    assert "the copy was read back at" in told.stderr
    assert "it was there already" in site.run("models", "stage", "smol", "--to", fast).stderr
    assert site.run("models", "stage", "smol", "--remove").stdout.endswith("MiB freed\n")
    assert not copy.exists()
    assert "there is no copy of smol" in site.run("models", "stage", "smol", "--remove").stdout
    assert "there is no model 'nothing' on this machine" in site.run("models", "stage", "nothing", "--to", fast).stderr
