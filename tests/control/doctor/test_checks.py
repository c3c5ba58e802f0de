"""From facts to findings: what is well, what is worth knowing, what has to be mended."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidegate.control.doctor import disk, folder, gpu, hub, listeners, machine, models
from tidegate.control.doctor.findings import Level
from tidegate.control.state import ProcessKind, ProcessRecord
from tidegate.engines.llamacpp_fit import Machine
from tidegate.gpus import FAULTS, Gpu
from tidegate.types import ProcessId

MACHINE = machine.MachineFacts(
    python=(3, 12, 1),
    system="Linux",
    architecture="x86_64",
    cpu_flags=frozenset({"avx2", "fma", "f16c", "sse"}),
    cores=2,
    memory_bytes=8 << 30,
    available_bytes=4 << 30,
    open_files=100_000,
    open_files_hard=100_000,
    now_s=1_800_000_000.0,
)


def only(found):
    (finding,) = found
    return finding


def test_a_machine_that_is_well_has_nothing_to_mend():
    found = list(machine.check(MACHINE, 20_000))
    assert {finding.level for finding in found} == {Level.OK}
    assert [finding.subject for finding in found] == ["python", "processor", "memory", "open files", "clock"]


@pytest.mark.parametrize(
    ("change", "subject", "level", "text"),
    [
        ({"python": (3, 10, 9)}, "python", Level.PROBLEM, "Python 3.10.9 is too old"),
        ({"cpu_flags": frozenset({"sse", "fma"})}, "processor", Level.PROBLEM, "without AVX2, F16C"),
        ({"cpu_flags": frozenset(), "architecture": "aarch64"}, "processor", Level.OK, "2 cores, aarch64"),
        ({"cores": 1}, "processor", Level.OK, "1 core, x86_64"),
        ({"available_bytes": 100 << 20}, "memory", Level.NOTE, "100.0 MiB of 8.0 GiB"),
        ({"open_files": 1024}, "open files", Level.NOTE, "enough for about 412 connections"),
        ({"open_files": 100}, "open files", Level.NOTE, "enough for about 0 connections"),
        ({"now_s": 0.0}, "clock", Level.PROBLEM, "it says 1970-01-01"),
    ],
)
def test_what_is_wrong_with_a_machine_is_told(change, subject, level, text):
    found = {finding.subject: finding for finding in machine.check(replace(MACHINE, **change), 20_000)}
    assert found[subject].level is level
    assert text in found[subject].text
    assert bool(found[subject].advice) is (level is not Level.OK)


def test_the_limit_of_open_files_can_be_raised_by_the_user_or_not():
    advice = [
        next(
            f.advice for f in machine.check(replace(MACHINE, open_files=1024, open_files_hard=hard), 20_000) if f.advice
        )
        for hard in (1024, 100_000)
    ]
    assert "LimitNOFILE" in advice[0]
    assert "ulimit -n 40200" in advice[1]


@pytest.mark.parametrize(
    ("free", "has_model", "level"),
    [
        (100 << 20, True, Level.PROBLEM),
        (500 << 20, True, Level.OK),
        (500 << 20, False, Level.NOTE),
        (5 << 30, False, Level.OK),
    ],
)
def test_room_on_the_disk_is_judged_by_what_is_still_to_come(free, has_model, level):
    facts = disk.DiskFacts(Path("/x"), free, 100 << 30, 500e6, 500e6)
    assert next(iter(disk.check(facts, has_model=has_model))).level is level


def test_a_slow_disk_and_one_that_cannot_be_written_are_told():
    facts = disk.DiskFacts(Path("/x"), 5 << 30, 9 << 30, 500e6, 10e6)
    slow = list(disk.check(facts, has_model=True))[1]
    assert (slow.level, slow.text) == (Level.NOTE, "writes 500 MB/s, reads 10 MB/s, which is slow")
    none = list(disk.check(disk.DiskFacts(Path("/x"), 5 << 30, 9 << 30, fault="Permission denied"), has_model=True))[1]
    assert none.level is Level.PROBLEM
    assert "nothing can be written at /x: Permission denied" in none.text


def test_a_port_is_free_ours_or_somebody_else_s():
    holder = listeners.Holder(77, "python -m http.server")
    facts = [
        listeners.ListenerFacts("gateway.listen", "127.0.0.1:8000"),
        listeners.ListenerFacts("admin.listen", "127.0.0.1:8001", "port 8001 …", holder),
        listeners.ListenerFacts("chat.listen", "127.0.0.1:8080", "port 8080 on 127.0.0.1 cannot be used", None),
    ]
    free, ours, unknown = listeners.check(facts, frozenset({77}))
    assert (free.level, free.text) == (Level.OK, "free for gateway (127.0.0.1:8000)")
    assert (ours.level, ours.text) == (Level.OK, "admin listens there already (process 77)")
    assert (unknown.level, unknown.advice) == (Level.PROBLEM, "set chat.listen to another address")
    theirs = list(listeners.check(facts, frozenset()))[1]
    assert theirs.level is Level.PROBLEM
    assert theirs.text == "127.0.0.1:8001 is held by process 77: python -m http.server"
    assert "kill 77" in theirs.advice
    assert "admin.listen" in theirs.advice


HEADER = SimpleNamespace(
    weights_bytes=400 << 20,
    context_tokens=8192,
    hidden=1024,
    feed_forward=3072,
    vocabulary=50_000,
    kv_values_per_token=9216,
)
"""What the fit reads of a header."""
ROOMY, POOR = Machine(2, 4 << 30), Machine(2, 200 << 20)


def test_models_are_whole_broken_too_large_or_missing():
    facts = [models.ModelFacts("a (Q8_0)", 400 << 20, header=HEADER)]
    assert only(models.check(facts, ROOMY, running=False)).text == "a (Q8_0) is whole, 400.0 MiB"
    large = list(models.check(facts, POOR, running=False))
    assert [finding.level for finding in large] == [Level.OK, Level.PROBLEM]
    assert "weights 400" in large[1].text
    assert len(list(models.check(facts, POOR, running=True))) == 1
    broken = only(models.check([models.ModelFacts("a", 1, "is cut", "pull it")], ROOMY, running=False))
    assert (broken.level, broken.text, broken.advice) == (Level.PROBLEM, "is cut", "pull it")
    assert only(models.check([], ROOMY, running=False)).level is Level.NOTE


def test_a_hub_that_cannot_be_reached_is_no_problem():
    one = hub.HubFacts("huggingface", "https://a", fault="no answer within 3 s")
    two = hub.HubFacts("modelscope", "https://b", seconds=0.12)
    assert [f.level for f in hub.check([one, two], has_model=False)] == [Level.NOTE, Level.OK]
    none = list(hub.check([one, replace(two, seconds=None, fault="refused")], has_model=False))
    assert [f.level for f in none] == [Level.NOTE] * 2
    assert none[0].advice == ""
    assert "demo model" in none[1].advice
    assert "needs none" in next(iter(hub.check([one], has_model=True))).advice


def test_a_clock_that_all_hubs_contradict_is_a_problem():
    near = hub.HubFacts("a", "https://a", seconds=0.1, clock_skew_s=2.0)
    far = hub.HubFacts("b", "https://b", seconds=0.1, clock_skew_s=-3600.0)
    assert all(f.level is Level.OK for f in hub.check([near, far], has_model=True))
    found = list(hub.check([far], has_model=True))[-1]
    assert (found.subject, found.level, found.text) == ("clock", Level.PROBLEM, "it is 60 minutes behind the hub's")


def test_gpus_are_told_with_the_command_that_uses_them():
    a10 = Gpu("GPU-a", "NVIDIA A10", memory_bytes=23028 << 20, free_bytes=22500 << 20, compute=(8, 6))
    shared = Gpu("GPU-b", "NVIDIA GB10", compute=(12, 1), processes=(7,))  # its memory is the processor's
    first, second = gpu.check(gpu.GpuFacts((a10, shared), 2, "580.1"))
    assert first.text == "NVIDIA A10, 22.0 GiB of 22.5 GiB free, driver 580.1, compute 8.6"
    assert "install" in first.advice
    assert "vllm" in first.advice
    assert second.text == "NVIDIA GB10, driver 580.1, compute 12.1, in use by 1 process"


def test_a_gpu_that_is_lost_is_a_problem_beside_those_that_answer():
    lost = Gpu("GPU-b", "NVIDIA A10", fault=FAULTS[15].text)
    first, second = gpu.check(gpu.GpuFacts((Gpu("GPU-a", "NVIDIA A10", parted=True), lost), 2, "580.1"))
    assert first.text == "NVIDIA A10, driver 580.1, cut into instances (MIG)"
    assert second.level is Level.PROBLEM
    assert second.text == "NVIDIA A10 (GPU-b): the GPU is lost: it has fallen off the bus"


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        (gpu.GpuFacts(), Level.OK, "none; llama.cpp runs on the processor"),
        (gpu.GpuFacts(cards=1), Level.NOTE, "1 NVIDIA card without a driver"),
        (gpu.GpuFacts(cards=1, fault=FAULTS[18]), Level.PROBLEM, "version mismatch"),
    ],
)
def test_without_a_usable_gpu_it_says_why(facts, level, text):
    found = only(gpu.check(facts))
    assert found.level is level
    assert text in found.text
    assert bool(found.advice) is (level is not Level.OK)


def record(name):
    return ProcessRecord(name=name, kind=ProcessKind.ENGINE, id=ProcessId(5, 6), digest="")


FOLDER = folder.FolderFacts(Path("/h"), exists=True, mode=0o700, owner=7, user=7)


@pytest.mark.parametrize(
    ("change", "level", "text"),
    [
        ({"exists": False}, Level.OK, "will be made at the first start"),
        ({}, Level.OK, "/h is yours alone"),
        ({"mode": 0o755}, Level.PROBLEM, "/h is open to other users"),
        ({"owner": 8}, Level.PROBLEM, "belongs to user 8, and this is user 7"),
        ({"open_files": ("state.db",)}, Level.PROBLEM, "/h/state.db can be read by other users"),
        ({"control": 9, "alive": (record("default-0"),)}, Level.OK, "control runs (process 9), with default-0"),
        ({"control": 9, "dead": (record("chat"),)}, Level.NOTE, "chat ended"),
        ({"alive": (record("gateway"),)}, Level.NOTE, "no control runs, but gateway still do"),
        ({"dead": (record("gateway"),)}, Level.NOTE, "none runs; gateway did not end in order"),
    ],
)
def test_the_data_folder_is_private_and_its_processes_are_known(change, level, text):
    found = list(folder.check(replace(FOLDER, **change)))
    assert [finding.level for finding in found if text in finding.text] == [level]
