"""NVIDIA's own bindings against a library that answers as NVML does, each time in a process of its own."""

import json
import os
import subprocess
import sys
import time

import pytest

from fake_nvml import A10, GIB, H200, LIBRARY, PATIENCE_S, Machine, machine

__all__ = ["machine"]  # a fixture

ONCE = """
import dataclasses, json, pathlib, sys
from tidegate import nvml
reading = nvml.read(device=pathlib.Path(sys.argv[1]), timeout_s=float(sys.argv[2]))
print(json.dumps(dataclasses.asdict(reading)))
"""
DOCTOR = """
import json, pathlib, sys
from tidegate.control.doctor import gpu
facts = gpu.gather(devices=pathlib.Path("/nonexistent"), control=pathlib.Path(sys.argv[1]))
print(json.dumps([[one.level, one.text, one.advice] for one in gpu.check(facts)]))
"""
WATCH = """
import json, pathlib, sys, threading, time
import msgspec
from tidegate import nvml

turn = threading.Lock()

def say(**what):
    with turn:
        print(json.dumps(what), flush=True)

watch = nvml.Watch(
    lambda trouble: say(trouble=trouble),
    device=pathlib.Path(sys.argv[1]), every_s=0.005, retry_s=float(sys.argv[2]), stale_s=float(sys.argv[3]),
)
assert watch.begin()
end, last = threading.Event(), None
threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
while not end.wait(0.005):
    if (gpus := msgspec.to_builtins(watch.gpus())) != last:
        last = gpus
        say(gpus=gpus)
watch.end()
deadline = time.monotonic() + 5
while any(thread.name == "gpus" for thread in threading.enumerate()) and time.monotonic() < deadline:
    time.sleep(0.005)
say(left=[thread.name for thread in threading.enumerate() if thread.name == "gpus"])
"""


def read(machine, timeout_s=20.0):
    return machine.run(ONCE, machine.control, timeout_s)


class Watching:
    """A process that watches, and what it says. `troubles` are those it told of."""

    def __init__(self, machine, *, retry_s=0.02, stale_s=20.0):
        self.process = machine.start(WATCH, machine.control, retry_s, stale_s)
        self.troubles = []

    def until(self, wanted):
        """Read on until the GPUs are as wanted; what was seen last."""
        deadline = time.monotonic() + PATIENCE_S
        for line in self.process.stdout:
            assert time.monotonic() < deadline
            said = json.loads(line)
            if "trouble" in said:
                self.troubles.append(said["trouble"])
            elif "gpus" in said and wanted(said["gpus"]):
                return said["gpus"]
        raise AssertionError(f"it ended with {self.process.wait()}")

    def until_troubles(self, count):
        """Read on until it has told of so many troubles."""
        for line in self.process.stdout:
            self.troubles += [said["trouble"]] if "trouble" in (said := json.loads(line)) else []
            if len(self.troubles) >= count:
                return
        raise AssertionError(f"it ended with {self.process.wait()}")

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        """Every process is ended, and at the end nothing reads any more."""
        try:
            rest, _ = self.process.communicate(timeout=PATIENCE_S)
        except BaseException:
            self.process.kill()
            self.process.communicate()
            raise
        said = [json.loads(line) for line in rest.splitlines()]
        self.troubles += [one["trouble"] for one in said if "trouble" in one]
        assert self.process.returncode == 0
        assert failure[0] or said[-1] == {"left": []}


def test_a_whole_card_tells_everything(machine):
    machine.tell([A10])
    reading = read(machine)
    assert reading["driver"] == "550.54.15"
    assert reading["fault"] is None
    assert reading["gpus"] == [
        {
            "id": "GPU-a",
            "name": "NVIDIA A10",
            "memory_bytes": 24 * GIB,
            "free_bytes": 15 * GIB + GIB // 2,
            "used_bytes": 8 * GIB,  # without the half GiB that the driver keeps
            "compute": [8, 6],
            "use_percent": 45,
            "power_mw": 143_500,
            "temperature_c": 62,
            "processes": [4242, 4243],
            "parted": False,
            "fault": "",
        }
    ]


def test_what_a_card_does_not_support_is_none_and_all_else_is_told(machine):
    without = {key: value for key, value in A10.items() if key not in {"power", "mig", "processes"}}
    machine.tell([without, {**H200, "used": "!3", "use": "!3", "mig": 1, "temperature": "!999", "compute": "!4"}])
    first, second = read(machine)["gpus"]
    assert (first["power_mw"], first["processes"], first["parted"]) == (None, None, False)
    assert (first["use_percent"], first["temperature_c"], first["used_bytes"]) == (45, 62, 8 * GIB)
    assert (second["memory_bytes"], second["free_bytes"], second["used_bytes"]) == (None, None, None)
    assert (second["use_percent"], second["temperature_c"], second["compute"]) == (None, None, None)
    assert (second["power_mw"], second["parted"], second["processes"], second["fault"]) == (143_500, True, [], "")


def test_an_old_driver_without_the_functions_of_today_tells_what_it_can(machine, tmp_path):
    (tmp_path / "old").mkdir()
    machine = Machine(tmp_path / "old", old=True)
    machine.tell([A10])
    (gpu,) = read(machine)["gpus"]
    assert (gpu["used_bytes"], gpu["temperature_c"]) == (8 * GIB + GIB // 2, 62)  # used has what the driver keeps in it
    assert gpu["processes"] is None
    assert gpu["fault"] == ""


def test_a_card_that_may_not_be_asked_does_not_hide_the_others(machine):
    machine.tell([{"handle": "!4"}, H200])
    first, second = read(machine)["gpus"]
    assert first["fault"] == "this user may not use the GPUs"
    assert (second["id"], second["fault"]) == ("GPU-b", "")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (18, "version mismatch"),
        (9, "the driver is not loaded"),
        (4, "this user may not use the GPUs"),
        (999, "the driver says: Unknown Error"),
        (99, "the driver says: an error of tomorrow"),
    ],
)
def test_doctor_says_in_words_why_the_driver_does_not_answer(machine, code, words):
    machine.tell([A10], init=f"!{code}")
    ((level, text, advice),) = machine.run(DOCTOR, machine.control)
    assert level == "problem"
    assert words in text
    assert advice


def test_doctor_names_what_answers(machine):
    machine.tell([A10, H200])
    first, second = machine.run(DOCTOR, machine.control)
    assert first[:2] == [
        "note",
        "NVIDIA A10, 15.5 GiB of 24.0 GiB free, driver 550.54.15, compute 8.6, in use by 2 processes",
    ]
    assert second[1] == "NVIDIA H200, 15.5 GiB of 140.0 GiB free, driver 550.54.15, compute 9.0"


def test_a_device_without_its_library_is_told(machine):
    (machine.folder / LIBRARY).unlink()
    machine.environ["LD_LIBRARY_PATH"] = ""
    ((level, text, advice),) = machine.run(DOCTOR, machine.control)
    assert (level, text) == ("problem", "there is a GPU and no driver library (libnvidia-ml.so.1)")
    assert "NVIDIA_DRIVER_CAPABILITIES" in advice


def test_a_driver_that_hangs_is_waited_for_no_longer_than_was_said(machine):
    machine.tell([A10], init="hang")
    assert "does not answer within 0.2 s" in read(machine, timeout_s=0.2)["fault"]["text"]


def test_without_a_driver_nothing_is_imported_or_started(tmp_path):
    script = (
        "import pathlib, sys, threading\n"
        "from tidegate import nvml\n"
        "import tidegate.cli.up, tidegate.cli.gateway\n"
        "device = pathlib.Path(sys.argv[1])\n"
        "assert nvml.read(device=device) == nvml.Reading()\n"
        "watch = nvml.Watch(print, device=device)\n"
        "assert not watch.begin() and watch.gpus() == ()\n"
        "assert threading.active_count() == 1\n"
        "sys.exit('pynvml' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, tmp_path / "none"], env=os.environ, check=False)
    assert ran.returncode == 0


def test_a_watch_follows_what_the_driver_says(machine):
    machine.tell([A10])
    with Watching(machine) as watching:
        (gpu,) = watching.until(bool)
        assert gpu == {
            "id": "GPU-a",
            "name": "NVIDIA A10",
            "use": 0.45,
            "memory_used_bytes": 8 * GIB,
            "memory_total_bytes": 24 * GIB,
            "power_w": 143.5,
            "temperature_c": 62,
        }
        machine.tell([{**A10, "use": 99}])
        watching.until(lambda gpus: gpus[0]["use"] == 0.99)
    assert watching.troubles == []


@pytest.mark.parametrize("lost", [{"handle": "!15"}, {"use": "!15"}])
def test_a_card_lost_in_mid_run_keeps_its_name_is_told_once_and_may_come_back(machine, lost):
    machine.tell([A10, H200])
    with Watching(machine) as watching:
        watching.until(lambda gpus: len(gpus) == 2)
        machine.tell([{**A10, **lost}, {**H200, "use": 7}])
        first, second = watching.until(lambda gpus: gpus[0]["use"] is None and gpus[1]["use"] == 0.07)
        assert (first["id"], first["name"], first["memory_total_bytes"]) == ("GPU-a", "NVIDIA A10", None)
        assert second["name"] == "NVIDIA H200"
        machine.tell([A10, H200])
        watching.until(lambda gpus: [gpu["use"] for gpu in gpus] == [0.45, 0.45])
    assert watching.troubles == ["NVIDIA A10 (GPU-a): the GPU is lost: it has fallen off the bus"]


def test_a_card_that_the_driver_has_no_more_is_told_once(machine):
    machine.tell([A10, H200])
    with Watching(machine) as watching:
        watching.until(lambda gpus: len(gpus) == 2)
        machine.tell([H200])
        first, second = watching.until(lambda gpus: gpus[0]["id"] == "GPU-b")
        assert (first["use"], second["id"], second["use"]) == (0.45, "GPU-a", None)
    assert watching.troubles == ["NVIDIA A10 (GPU-a): the driver has it no more"]


def test_a_driver_that_is_reloaded_is_opened_anew(machine):
    machine.tell([A10])
    with Watching(machine) as watching:
        watching.until(bool)
        machine.tell([A10], count="!9", init="!9")
        (gone,) = watching.until(lambda gpus: gpus[0]["use"] is None)
        assert gone["name"] == "NVIDIA A10"
        machine.tell([{**A10, "use": 3}])
        watching.until(lambda gpus: gpus[0]["use"] == 0.03)
    assert len(watching.troubles) == 1
    assert watching.troubles[0].startswith("the driver is not loaded -> ")


def test_a_driver_of_the_wrong_version_is_told_once_and_ends_nothing(machine):
    machine.tell([A10], init="!18")
    with Watching(machine, retry_s=0.005) as watching:
        watching.until_troubles(1)
        machine.tell([A10])
        watching.until(bool)
    assert len(watching.troubles) == 1
    assert "version mismatch" in watching.troubles[0]


def test_a_driver_that_hangs_leaves_names_without_values(machine):
    machine.tell([A10])
    with Watching(machine, stale_s=0.2) as watching:
        watching.until(bool)
        machine.tell([{**A10, "power": "hang"}])
        (gone,) = watching.until(lambda gpus: gpus[0]["use"] is None)
        assert gone["name"] == "NVIDIA A10"
        machine.tell([A10])
        watching.until(lambda gpus: gpus[0]["use"] == 0.45)
    assert watching.troubles == ["the driver does not answer"]
