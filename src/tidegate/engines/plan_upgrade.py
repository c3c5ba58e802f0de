"""Which way of upgrading a plan leaves open. Pure.

Blue-green on one GPU runs the old engine and the new one side by side for a while, so that both shares have to fit.
"""

from dataclasses import replace
from typing import Final

from tidegate.engines.plan_fit import Sizes
from tidegate.engines.plan_memory import MemorySum
from tidegate.engines.plan_types import Cpu, Gpu, Upgrade

SIDE_BY_SIDE_SHARE: Final = 0.45
"""Of all memory, for each of two engines: what is left is CUDA's own and the measuring of what is free."""


def on_gpu(share: float, gpu: Gpu, memory: MemorySum, sizes: Sizes) -> tuple[Upgrade, str]:
    """The way, and why."""
    most = min(SIDE_BY_SIDE_SHARE, gpu.free_bytes * 100 // (2 * gpu.total_bytes) / 100)
    if share <= most:
        return "blue-green", (
            f"with a share of {share:g} the new engine starts beside the old one on the same GPU, and clients are moved over"
        )
    beside = replace(memory, budget_bytes=int(most * gpu.total_bytes))
    why = (
        f"a share of {share:g} leaves no room for a second engine on this GPU: with several replicas they are replaced one "
        "by one, with one alone it stops and starts"
    )
    if beside.kv_tokens >= sizes.context_tokens:
        why += f"; blue-green needs --memory-share {most:g} or less, which would hold {beside.kv_tokens:,} tokens"
    return "rolling or stop-start", why


def on_cpu(cpu: Cpu, needed_bytes: int) -> tuple[Upgrade, str]:
    """The way, and why: a second engine needs as much memory again."""
    if 2 * needed_bytes <= cpu.available_bytes:
        return "blue-green", "memory holds a second engine; both share the cores while clients are moved over"
    return "rolling or stop-start", "memory holds no second engine beside this one"
