from tidegate import machine

MIB = 1024 * 1024


def meminfo(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:  4096000 kB\nMemFree: 100 kB\nMemAvailable:  3072000 kB\nHugePages_Total: 0\n")
    return path


def container(tmp_path, limit):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{350 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {40 * MIB}\nactive_file {10 * MIB}\n")
    return tmp_path


def test_memory_is_told_without_caches(tmp_path):
    memory = machine.memory(meminfo(tmp_path), tmp_path / "none")
    assert memory == machine.Memory(4000 * MIB, 3000 * MIB)
    assert memory.used_bytes == 1000 * MIB


def test_a_container_s_limit_is_its_memory(tmp_path):
    assert machine.memory(meminfo(tmp_path), container(tmp_path, 400 * MIB)) == machine.Memory(400 * MIB, 100 * MIB)
    assert machine.memory(meminfo(tmp_path), container(tmp_path, "max")) == machine.Memory(4000 * MIB, 3000 * MIB)


def test_a_container_s_quota_counts_in_whole_cores(tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert machine.cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert machine.cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.cores(tmp_path) == machine.cores(tmp_path / "none") >= 1


def test_this_machine_is_read():
    memory = machine.memory()
    assert 0 < memory.used_bytes < memory.total_bytes
