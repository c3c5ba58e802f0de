"""How vLLM is made for this machine: which program, which GPU, which flags."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidegate import logs, machine, nvml
from tidegate.cli.engines_plan import tuned_preset
from tidegate.config import VllmOptions
from tidegate.control.plan import ReplicaSpec
from tidegate.engines import model_facts, old_flags, plan_types, profiles, vllm_flags, vllm_program
from tidegate.engines.base import ModelFiles
from tidegate.engines.plan_presets import TUNED
from tidegate.engines.process import Place
from tidegate.engines.vllm import Flags, VllmEngine
from tidegate.engines.vllm_cpu import this_cpu
from tidegate.engines.vllm_gpu import Taken, choose_gpu
from tidegate.engines.vllm_program import Program
from tidegate.errors import ModelError
from tidegate.gpus import Gpu
from tidegate.home import Home

SEVERAL = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp")
"""Flags of a replica that takes several GPUs, which it then finds itself."""
SHARED_OUT = ("--tensor-parallel-size", "--pipeline-parallel-size")


@dataclass
class VllmParts:
    """Makes the vLLM engines of one control, each on a GPU of its own."""

    home: Home
    read_gpus: Callable[[], Sequence[Gpu]] = lambda: nvml.read().gpus
    taken: Taken = field(default_factory=dict)
    """GPUs by the replica that was given them."""

    def engine(self, spec: ReplicaSpec, options: VllmOptions, place: Place) -> VllmEngine:
        """The engine of a replica."""
        files = spec.loaded
        return VllmEngine(
            files,
            options,
            place,
            program=lambda: vllm_program.find(options, self.home.engines),
            choose=lambda program: self._choose(program, spec, options, files),
        )

    def room(self, specs: Sequence[ReplicaSpec]) -> None:
        """Whether each vLLM among these replicas can have a GPU of its own. Blocks; raises ModelError with the numbers.

        Without GPUs, and where the settings say themselves which are used, the start itself tells.
        """
        gpus = tuple(self.read_gpus())
        taken = dict(self.taken)
        for spec in specs:
            options = spec.options
            if not isinstance(options, VllmOptions):
                continue
            several = any(argument.partition("=")[0] in SEVERAL for argument in options.args)
            if gpus and not several and "CUDA_VISIBLE_DEVICES" not in {**os.environ, **options.env}:
                taken[spec.id] = choose_gpu(numbered(gpus, spec), taken, spec.id, spec.loaded).id

    def released(self, replica: str) -> None:
        """A replica is gone for good: others may have its GPU."""
        self.taken.pop(replica, None)

    def _choose(self, program: Program, spec: ReplicaSpec, options: VllmOptions, files: ModelFiles) -> Flags:
        """Blocks for the driver. Raises ModelError where the model fits on no GPU."""
        several = any(argument.partition("=")[0] in SEVERAL for argument in options.args)
        own = options.env.get("CUDA_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = () if program.kind == "cpu" else tuple(self.read_gpus())
        env: dict[str, str] = {}
        hardware: plan_types.Gpu | plan_types.Cpu
        if own is not None and not several:
            visible = own.split(",")
            env["CUDA_VISIBLE_DEVICES"] = visible[spec.number % len(visible)]
            gpu = next((one for one in gpus if one.id == env["CUDA_VISIBLE_DEVICES"]), gpus[0] if gpus else None)
        elif gpus and not several:
            gpu = choose_gpu(numbered(gpus, spec), self.taken, spec.id, files)
            self.taken[spec.id] = gpu.id
            env["CUDA_VISIBLE_DEVICES"] = gpu.id
            logs.get().info("gpu chosen", replica=spec.id, gpu=gpu.name, id=gpu.id)
        else:
            gpu = gpus[0] if gpus else None
        if gpu is not None:
            hardware = _gpu(gpu)
        else:
            hardware = _cpu(spec.siblings, spec.starting)
            env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # several replicas would all be bound to the same first cores
        wishes = plan_types.Wishes(options.context_tokens, options.slots, options.memory_share, options.fp8)
        plan = profiles.plan(
            model_facts.read(files.path, name=files.name),
            hardware,
            version=program.version or vllm_flags.PINNED,
            preset=options.preset,
            wishes=wishes,
            tuned=tuned_preset(self.home, files.name, hardware) if options.preset == TUNED else None,
            gpus=_shared_among(options.args),
        )
        env |= {one.name: one.value for one in plan.environment if one.value is not None}
        if options.threads is not None:
            env["OMP_NUM_THREADS"] = str(options.threads)
        for choice in plan.choices:
            logs.get().debug("flag chosen", replica=spec.id, flag=choice.name, value=choice.value, why=choice.reason)
        slots = plan.value("--max-num-seqs")
        if slots is not None:
            return Flags(plan.argv(), env, int(slots))
        return Flags(
            plan.argv(), env, profiles.engine_defaults(hardware)[1] if isinstance(hardware, plan_types.Gpu) else None
        )


def _shared_among(arguments: Sequence[str]) -> int:
    """How many GPUs one copy of the model is shared out among; several copies are whole each."""
    count = 1
    for one in old_flags.parse(arguments):
        if one.flag is not None and one.flag.name in SHARED_OUT and one.values and one.values[0].isdigit():
            count *= max(int(one.values[0]), 1)
    return count


def _gpu(gpu: Gpu) -> plan_types.Gpu:
    """A GPU that shares the processor's memory has that."""
    memory = machine.memory()
    return plan_types.Gpu(
        gpu.name,
        memory.total_bytes if gpu.memory_bytes is None else gpu.memory_bytes,
        memory.available_bytes if gpu.free_bytes is None else gpu.free_bytes,
        gpu.compute or (9, 0),
    )


def numbered(gpus: Sequence[Gpu], spec: ReplicaSpec) -> Sequence[Gpu]:
    """Those that the pool of a replica may have. Raises ModelError for one that is not there."""
    missing = [number for number in spec.gpus if number >= len(gpus)]
    if missing:
        there = ", ".join(f"{number} ({gpu.name})" for number, gpu in enumerate(gpus))
        raise ModelError(
            f"pool {spec.pool!r} wants GPU {missing[0]}, and this machine has {there}", hint="look at gpus of the pool"
        )
    return [gpus[number] for number in spec.gpus] or gpus


def _cpu(siblings: int, starting: int) -> plan_types.Cpu:
    """One replica's share: those that start beside one another all see the same memory free."""
    cpu = this_cpu()
    cores = max(cpu.cores // siblings, 1)
    return plan_types.Cpu(cpu.flags, cores, cpu.total_bytes, cpu.available_bytes // starting)
