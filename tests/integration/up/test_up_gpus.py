"""GPUs as an operator sees them, of a driver that is not real: `tidegate up`, `status`, `top`, `doctor`, metrics, a gateway alone."""

import re
import signal
import subprocess
import sys
import time

import httpx
from prometheus_client.parser import text_string_to_metric_families

from fake_nvml import A10, GIB, H200, PATIENCE_S, machine

__all__ = ["machine"]  # a fixture


def until(condition):
    """What `condition` gives once it gives something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def gauges(url):
    """What /metrics tells of GPUs: values by metric and id."""
    text = httpx.get(f"{url}/metrics", trust_env=False, timeout=10).text
    samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
    return {(one.name, one.labels["gpu"]): one.value for one in samples if one.name.startswith("tidegate_gpu_")}


def whole(identifier):
    return {
        ("tidegate_gpu_use", identifier): 0.45,
        ("tidegate_gpu_memory_used_bytes", identifier): 8.0 * GIB,
        ("tidegate_gpu_memory_bytes", identifier): 24.0 * GIB,
        ("tidegate_gpu_power_watts", identifier): 143.5,
        ("tidegate_gpu_temperature_celsius", identifier): 62.0,
    }


def test_gpus_are_told_everywhere_and_one_that_is_lost_ends_nothing(site, machine):
    machine.tell([A10, H200])
    site.environ |= machine.whole()
    site.settings(processes=2)
    up = site.up().ready()
    assert "Found 2 GPUs: NVIDIA A10 (24 GiB, driver 550.54.15)" in up.text()
    base = site.urls()["api"].removesuffix("/v1")
    second = whole("GPU-b") | {("tidegate_gpu_memory_bytes", "GPU-b"): 140.0 * GIB}
    up.until(lambda: gauges(base) == whole("GPU-a") | second)  # once, whatever the number of processes
    told = site.run("status").stdout
    assert "GPU 0  NVIDIA A10, 45%, 8/24 GiB, 144 W, 62 °C" in told
    assert "GPU 1: 45%, 8/140 GiB, 144 W, 62 °C" in site.run("top", "--once").stdout
    assert "NVIDIA A10, 15.5 GiB of 24.0 GiB free" in site.run("doctor").stdout

    machine.tell([A10, {**H200, "handle": "!15"}])
    up.until(lambda: gauges(base) == whole("GPU-a"))
    assert "GPU 1  NVIDIA H200, it does not answer" in site.run("status").stdout
    assert site.run("top", "--once").returncode == 0
    lost = 'WARNING gpu trouble cause="NVIDIA H200 (GPU-b): the GPU is lost: it has fallen off the bus"'
    up.until(lambda: lost in up.text())
    machine.tell([], count="!9", init="!9")
    up.until(lambda: gauges(base) == {})
    assert site.ask(site.urls()["api"])
    assert up.text().count("gpu trouble") == 2
    up.interrupt()
    assert up.end() == 0


def test_a_gateway_alone_reads_the_gpus_of_its_machine_itself(site, machine):
    machine.tell([A10])
    argv = [sys.executable, "-m", "tidegate", "gateway", "--listen", "127.0.0.1:0", "--engine", "http://127.0.0.1:9"]
    output = site.folder / "gateway.txt"
    environ = {**site.environ, **machine.whole()}
    with output.open("wb") as file:
        process = subprocess.Popen(argv, env=environ, stdout=file, stderr=file, cwd=site.folder)
    try:
        url = until(lambda: re.search(r"gateway listening url=(\S+)", output.read_text()))[1]
        until(lambda: gauges(url) == whole("GPU-a"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
