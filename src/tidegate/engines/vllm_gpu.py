"""Which GPU a replica gets. Pure."""

from collections.abc import MutableMapping, Sequence
from typing import Final

from tidegate import gpus as known
from tidegate.engines.base import ModelFiles
from tidegate.errors import ModelError
from tidegate.gpus import Gpu

GIB: Final = 1024**3
BESIDE_WEIGHTS_BYTES: Final = 2 * GIB
"""CUDA itself, its graphs, and the least KV cache that is of use."""

Taken = MutableMapping[str, str]


def choose_gpu(gpus: Sequence[Gpu], taken: Taken, replica: str, files: ModelFiles) -> Gpu:
    """A GPU that nobody computes on and that no other replica was given; the one it had, where it can have that again.

    Raises ModelError, with the numbers, where there is none.
    """
    weights = sum(path.stat().st_size for path in files.path.glob("*.safetensors"))
    needed = weights + BESIDE_WEIGHTS_BYTES
    others = {gpu for name, gpu in taken.items() if name != replica}
    free = [gpu for gpu in known.free(gpus, needed) if gpu.id not in others]
    if free:
        return next((gpu for gpu in free if gpu.id == taken.get(replica)), free[0])
    told = "; ".join(_why(gpu, others, needed) for gpu in gpus)
    raise ModelError(
        f"{replica} has no GPU: it needs {needed / GIB:.1f} GiB ({weights / GIB:.1f} GiB of weights), and {told}",
        hint="end what uses them (`nvidia-smi`), set fewer replicas, or choose one with env = { CUDA_VISIBLE_DEVICES = … }",
    )


def _why(gpu: Gpu, others: set[str], needed: int) -> str:
    if gpu.fault:
        return f"{gpu.name} does not answer"
    if gpu.parted:
        return f"{gpu.name} is cut into instances (MIG)"
    if gpu.id in others:
        return f"{gpu.name} is another replica's"
    if gpu.free_bytes is not None and gpu.free_bytes < needed:
        return f"{gpu.name} has {gpu.free_bytes / GIB:.1f} GiB free"
    return f"{gpu.name} is in use by process {', '.join(map(str, gpu.processes or ()))}"
