"""`tidegate engines plan`: how an engine would be started for a model on this machine, or another, and why."""

import re
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer

from tidegate import machine, nvml
from tidegate.cli.data_folder import data_folder
from tidegate.engines import model_facts, profiles
from tidegate.engines.model_facts import ModelFacts
from tidegate.engines.plan_presets import DEFAULT, TUNED, Preset, named, read_tuned, tuned_file
from tidegate.engines.plan_types import Choice, Cpu, Fp8, Gpu, Plan, Wishes
from tidegate.engines.vllm_cpu import this_cpu
from tidegate.engines.vllm_flags import PINNED
from tidegate.errors import ModelError, SettingError
from tidegate.home import Home
from tidegate.models import catalogue, library

UNITS: Final = {"mib": 1 << 20, "gib": 1 << 30, "mb": 10**6, "gb": 10**9}
DRIVER_KEEPS: Final = 0.02
"""Of a GPU's memory, where only its size is given."""


def add_plan(app: typer.Typer) -> None:
    """Give `tidegate engines` its `plan`."""
    app.command("plan")(plan)


def plan(  # noqa: PLR0917 - typer reads flags, which have no position
    model: Annotated[str, typer.Option(help="A name of `tidegate models list`, or a folder.")] = catalogue.ERNIE.name,
    preset: Annotated[str, typer.Option(help="default, balanced, production … or tuned.")] = DEFAULT,
    engine: Annotated[
        Literal["auto", "vllm", "llamacpp"], typer.Option(help="auto: vLLM on a GPU, else llama.cpp.")
    ] = "auto",
    gpu: Annotated[str, typer.Option(help="Another GPU than this machine's: 'NVIDIA L4,24GiB,8.9'.")] = "",
    cpu: Annotated[bool, typer.Option("--cpu", help="As if there were no GPU.")] = False,
    context_tokens: Annotated[int | None, typer.Option(min=1, help="Prompt and answer of one request.")] = None,
    sequences: Annotated[int | None, typer.Option(min=1, help="Requests at once.")] = None,
    memory_share: Annotated[float | None, typer.Option(min=0.01, max=1.0, help="Of all memory.")] = None,
    fp8: Annotated[Fp8, typer.Option(help="none, weights, kv or both.")] = "none",
    version: Annotated[str, typer.Option(help="Of vLLM.")] = PINNED,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show flags, the reason of each, and the arithmetic; starts nothing."""
    home = data_folder()
    hardware = parse_gpu(gpu) if gpu else this_machine(use_gpu=not cpu)
    facts = find_model(model, home.models)
    made = profiles.plan(
        facts,
        hardware,
        engine=engine,
        version=version,
        preset=preset,
        wishes=Wishes(context_tokens, sequences, memory_share, fp8),
        tuned=tuned_preset(home, facts.name, hardware) if preset == TUNED else None,
    )
    print(_json(made) if as_json else "\n".join(_lines(made)))


def parse_gpu(text: str) -> Gpu:
    """A GPU from `NAME,MEMORY[,FREE],COMPUTE`, as in `NVIDIA L4,24GiB,8.9`. Raises SettingError."""
    parts = [part.strip() for part in text.split(",")]
    name, middle, compute = parts[0], parts[1:-1], parts[-1]
    sizes = [_bytes(part) for part in middle]
    found = re.fullmatch(r"(\d+)\.(\d)", compute)
    if not name or not found or len(sizes) not in {1, 2} or None in sizes:
        raise SettingError(
            "--gpu", f"{text!r} is no GPU", hint="as in 'NVIDIA L4,24GiB,8.9' or 'NVIDIA L4,24GiB,10GiB,8.9'"
        )
    total, free = sizes[0] or 0, sizes[-1] or 0
    if free > total or not total:
        raise SettingError("--gpu", f"{text!r}: no more can be free than there is")
    free = free if len(sizes) == 2 else int(total * (1 - DRIVER_KEEPS))
    return Gpu(name, total, free, (int(found[1]), int(found[2])))


def this_machine(*, use_gpu: bool) -> Gpu | Cpu:
    """The GPU with the most free memory, or the processor. Raises SettingError for a driver that does not answer."""
    reading = nvml.read() if use_gpu else None
    if reading is not None and reading.fault is not None:
        raise SettingError("gpu", reading.fault.text, hint=f"{reading.fault.advice}; --cpu plans without it")
    memory = machine.memory()
    cards = [
        Gpu(
            one.name,
            one.memory_bytes or memory.total_bytes,  # none of its own: it shares the machine's
            one.free_bytes if one.free_bytes is not None else memory.available_bytes,
            one.compute,
        )
        for one in (reading.gpus if reading else ())
        if one.compute is not None and not one.fault and not one.parted
    ]
    if cards:
        return max(cards, key=lambda card: card.free_bytes)
    return this_cpu()


def find_model(name: str, models: Path) -> ModelFacts:
    """A folder, a model of the data folder, or the reference model, which is known without its files. Raises ModelError."""
    known = catalogue.find(name)
    names = {name, known.name} if known else {name}
    for stored in library.stored(models):
        if stored.name in names and stored.variant == library.SAFETENSORS:
            return model_facts.read(stored.path, name=stored.name)
    if Path(name).exists():
        return model_facts.read(Path(name))
    if known is catalogue.ERNIE:
        return model_facts.from_config(model_facts.ERNIE_CONFIG, name=known.name)
    raise ModelError(
        f"there is no model {name!r} with config.json and safetensors here",
        hint=f"give a folder, {catalogue.ERNIE.name}, or pull it: `tidegate models pull {name} --format safetensors`",
    )


def tuned_preset(home: Home, model: str, hardware: Gpu | Cpu) -> Preset:
    """What the tuner left for this model on this machine. Raises SettingError where there is nothing."""
    return read_tuned(tuned_file(home.path / "profiles", model, machine_name(hardware)))


def machine_name(hardware: Gpu | Cpu) -> str:
    """What a tuned preset is kept under: a GPU's name, or the number of cores."""
    return hardware.name if isinstance(hardware, Gpu) else f"cpu-{hardware.cores}"


def _bytes(text: str) -> int | None:
    found = re.fullmatch(r"([\d.]{1,12})\s*([KMG]i?B)?", text, re.IGNORECASE)
    unit = (found[2] or "GiB").lower() if found else ""
    return int(float(found[1]) * UNITS[unit]) if found and unit in UNITS and found[1].count(".") < 2 else None


def _lines(made: Plan) -> list[str]:
    why = "what was tuned" if made.preset == TUNED else named(made.preset).why
    engine = f"vLLM {made.version}" if made.engine == "vllm" else "llama.cpp"
    lines = [f"{made.model.name} on {made.hardware.words}, {engine}, preset {made.preset}: {why}", ""]
    lines += [f"  {_said(one, made.engine):<38}  {one.reason}" for one in (*made.choices, *made.environment)]
    lines.append("")
    if made.memory is not None:
        lines.append(f"memory   {made.memory.arithmetic()}")
    lines.append(f"upgrade  {made.upgrade}: {made.upgrade_reason}")
    lines += [f"note     {note}" for note in made.notes]
    return lines


def _said(one: Choice, engine: str) -> str:
    if one.name.startswith("--"):
        return f"{one.name} {one.value or ''}".rstrip()
    if engine == "llamacpp":
        value = one.value or ""
        return f"{one.name} = " + (value if value.isdigit() else f'"{value}"')
    return f"{one.name}={one.value}"


def _json(made: Plan) -> str:
    told = {
        "engine": made.engine,
        "version": made.version,
        "preset": made.preset,
        "model": made.model,
        "hardware": made.hardware,
        "choices": made.choices,
        "environment": {one.name: one.value for one in made.environment},
        "argv": made.argv() if made.engine == "vllm" else (),
        "memory": None if made.memory is None else {"arithmetic": made.memory.arithmetic(), **_sum(made)},
        "upgrade": {"way": made.upgrade, "reason": made.upgrade_reason},
        "notes": made.notes,
    }
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode()


def _sum(made: Plan) -> dict[str, int]:
    memory = made.memory
    if memory is None:
        return {}
    return {
        "budget_bytes": memory.budget_bytes,
        "weights_bytes": memory.weights_bytes,
        "working_bytes": memory.working_bytes,
        "kv_bytes": memory.kv_bytes,
        "kv_tokens": memory.kv_tokens,
    }
