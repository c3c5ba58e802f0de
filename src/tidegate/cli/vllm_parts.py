"""How vLLM is made for this machine: which program, which GPU, which flags."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidegate import logs, machine, nvml
from tidegate.config import VllmOptions
from tidegate.control.plan import ReplicaSpec
from tidegate.engines import vllm_program
from tidegate.engines.base import ModelFiles
from tidegate.engines.process import Place
from tidegate.engines.vllm import Flags, VllmEngine
from tidegate.engines.vllm_gpu import Taken, choose_gpu
from tidegate.engines.vllm_program import Program
from tidegate.gpus import Gpu
from tidegate.home import Home

GIB = 1024**3
KV_SHARE, KV_MOST_GIB = 0.25, 4
CPU_SLOTS = 128
SEVERAL = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp")
"""Flags of a replica that takes several GPUs, which it then finds itself."""


@dataclass
class VllmParts:
    """Makes the vLLM engines of one control, each on a GPU of its own."""

    home: Home
    read_gpus: Callable[[], Sequence[Gpu]] = lambda: nvml.read().gpus
    taken: Taken = field(default_factory=dict)
    """GPUs by the replica that was given them."""

    def engine(self, spec: ReplicaSpec, options: VllmOptions, place: Place) -> VllmEngine:
        """The engine of a replica."""
        assert spec.files is not None  # noqa: S101 - the plan gives files to every pool that loads them
        files = spec.files
        return VllmEngine(
            files,
            options,
            place,
            program=lambda: vllm_program.find(options, self.home.engines),
            choose=lambda program: self._choose(program, spec, options, files),
        )

    def _choose(self, program: Program, spec: ReplicaSpec, options: VllmOptions, files: ModelFiles) -> Flags:
        """Blocks for the driver. Raises ModelError where the model fits on no GPU."""
        several = any(argument.partition("=")[0] in SEVERAL for argument in options.args)
        own = options.env.get("CUDA_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = () if program.kind == "cpu" else tuple(self.read_gpus())
        env: dict[str, str] = {}
        if own is not None and not several:
            visible = own.split(",")
            env["CUDA_VISIBLE_DEVICES"] = visible[spec.number % len(visible)]
        elif gpus and not several:
            gpu = choose_gpu(gpus, self.taken, spec.id, files)
            self.taken[spec.id] = gpu.id
            env["CUDA_VISIBLE_DEVICES"] = gpu.id
            logs.get().info("gpu chosen", replica=spec.id, gpu=gpu.name, id=gpu.id)
        if not gpus:
            env |= _cpu(options, spec.siblings)
        argv = ["--scheduling-policy", "priority"]
        argv += [] if gpus else ["--enforce-eager"]
        argv += [] if options.context_tokens is None else ["--max-model-len", str(options.context_tokens)]
        slots = options.slots or CPU_SLOTS
        argv += ["--max-num-seqs", str(slots)]
        return Flags(tuple(argv), env, slots)


def _cpu(options: VllmOptions, siblings: int) -> dict[str, str]:
    """Threads and memory of one replica; they are shared out among those that start beside it."""
    threads = options.threads or max(machine.cores() // siblings, 1)
    kv = max(min(int(machine.memory().available_bytes * KV_SHARE / siblings / GIB), KV_MOST_GIB), 1)
    return {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several replicas would all be bound to the same first cores
        "VLLM_CPU_KVCACHE_SPACE": str(kv),
    }
