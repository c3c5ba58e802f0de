"""GPUs as Prometheus sees them. Told by whoever reads them: control, or a gateway that has none on its machine."""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from tidegate.types import GpuReport

GAUGES: Final = {
    "tidegate_gpu_use": "Share of the last second in which the GPU computed.",
    "tidegate_gpu_memory_used_bytes": "Memory in use.",
    "tidegate_gpu_memory_bytes": "Memory of the GPU.",
    "tidegate_gpu_power_watts": "Power that it draws.",
    "tidegate_gpu_temperature_celsius": "Temperature of its core.",
}


def gpu_metrics(gpus: Iterable[GpuReport]) -> Iterator[Metric]:
    """One gauge for each value; what a GPU does not tell is missing."""
    families = [GaugeMetricFamily(name, text, labels=("gpu", "name")) for name, text in GAUGES.items()]
    for gpu in gpus:
        values = (gpu.use, gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.power_w, gpu.temperature_c)
        for family, value in zip(families, values, strict=True):
            if value is not None:
                family.add_metric((gpu.id, gpu.name), float(value))
    return iter(families)
