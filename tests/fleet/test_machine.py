from tidegate.fleet import machine


def test_memory_is_told_without_caches(tmp_path):
    (tmp_path / "meminfo").write_text(
        "MemTotal:  4000 kB\nMemFree: 100 kB\nMemAvailable:  3000 kB\nHugePages_Total: 0\n"
    )
    assert machine.memory(tmp_path / "meminfo") == machine.Memory(1000 * 1024, 4000 * 1024)


def test_the_memory_of_this_machine_is_read():
    memory = machine.memory()
    assert 0 < memory.used_bytes < memory.total_bytes


def test_gpus_are_what_the_driver_tells(tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA A10, 23028, 550.54.15'\necho 'NVIDIA A10, 23028, 550.54.15'\n")
    tool.chmod(0o755)
    first, second = machine.gpus(str(tool))
    assert first == second == machine.Gpu("NVIDIA A10", 23028 * 1024 * 1024, "550.54.15")


def test_no_driver_and_a_broken_driver_are_no_gpu(tmp_path):
    broken = tmp_path / "nvidia-smi"
    broken.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    broken.chmod(0o755)
    assert machine.gpus(str(tmp_path / "missing")) == ()
    assert machine.gpus(str(broken)) == ()
