"""Whether more replicas have room on this machine, told before any of them is started."""

from collections.abc import Sequence

from tidegate.cli.vllm_parts import VllmParts
from tidegate.config import LlamaCppOptions
from tidegate.control.plan import ReplicaSpec
from tidegate.engines import llamacpp_fit
from tidegate.engines.llamacpp_fit import Machine, this_machine
from tidegate.errors import ModelError
from tidegate.gguf import read_header


def check_room(specs: Sequence[ReplicaSpec], vllm: VllmParts) -> None:
    """Whether these replicas of this machine have room, all of them, beside what runs. Blocks; raises ModelError."""
    on_cpu = [(spec.loaded, spec.options) for spec in specs if isinstance(spec.options, LlamaCppOptions)]
    machine = shared_out(len(on_cpu))
    for files, options in on_cpu:
        try:
            llamacpp_fit.fit(read_header(files.path), options, machine, model=files.name)
        except ModelError as error:
            many = f", for each of {len(on_cpu)}" if len(on_cpu) > 1 else ""
            raise ModelError(f"{error}{many}", hint=error.hint) from None
    vllm.room(specs)


def shared_out(starting: int) -> Machine:
    """The machine as one of so many engines finds it that start together: none has taken its memory yet."""
    whole = this_machine()
    return Machine(whole.cores, whole.available_bytes // max(starting, 1))
