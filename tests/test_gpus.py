"""What is made of NVML's answers, without NVML."""

import pytest

from tidegate.gpus import FAULTS, Gpu, fault, free, report
from tidegate.types import GpuReport

GIB = 1 << 30
IDLE = Gpu("GPU-a", "NVIDIA A10", memory_bytes=24 * GIB, free_bytes=23 * GIB, used_bytes=GIB, processes=())


def test_a_report_has_shares_watts_and_degrees():
    gpu = Gpu("GPU-a", "NVIDIA A10", 24, 16, 8, use_percent=45, power_mw=143_500, temperature_c=62)
    assert report(gpu) == GpuReport("GPU-a", "NVIDIA A10", 0.45, 8, 24, 143.5, 62)


def test_what_a_gpu_does_not_tell_is_none_in_its_report_and_zero_is_not():
    assert report(Gpu("GPU-a", "NVIDIA A10")) == GpuReport("GPU-a", "NVIDIA A10")
    assert report(Gpu("GPU-a", use_percent=0, power_mw=0, temperature_c=0)) == GpuReport(
        "GPU-a", use=0.0, power_w=0.0, temperature_c=0
    )


@pytest.mark.parametrize(
    ("changes", "least_bytes", "is_free"),
    [
        ({}, 20 * GIB, True),
        ({}, 23 * GIB, True),
        ({}, 23 * GIB + 1, False),  # of 24: memory counts as free, not as total
        ({"processes": (7,)}, 0, False),
        ({"processes": None}, 20 * GIB, True),  # where processes are not told, memory has the word
        ({"free_bytes": 2 * GIB, "processes": ()}, 20 * GIB, False),  # as in a container beside another
        ({"memory_bytes": None, "free_bytes": None}, 20 * GIB, True),  # shares the processor's memory
        ({"parted": True}, 0, False),
        ({"fault": "the GPU is lost"}, 0, False),
    ],
)
def test_a_gpu_is_free_if_nobody_computes_there_and_enough_memory_is_free(changes, least_bytes, is_free):
    gpu = Gpu(**{**IDLE.__dict__, **changes})
    assert free([gpu], least_bytes) == ((gpu,) if is_free else ())


def test_free_gpus_keep_their_order():
    gpus = [Gpu("GPU-c", free_bytes=9), Gpu("GPU-b", free_bytes=1), Gpu("GPU-a", free_bytes=9)]
    assert [gpu.id for gpu in free(gpus, 5)] == ["GPU-c", "GPU-a"]


def test_every_error_has_words_and_an_advice():
    assert fault(18, "?") is FAULTS[18]
    assert "version mismatch" in fault(18, "?").text
    other = fault(999, "Unknown Error")
    assert other.text == "the driver says: Unknown Error"
    assert other.advice
    assert all(one.text and one.advice for one in FAULTS.values())
