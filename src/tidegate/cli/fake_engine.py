"""`tidegate fake-engine`: an engine without a model, with faults on demand."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop

from tidegate.engines.base import ReadyFile
from tidegate.engines.fake_faults import Fault, parse
from tidegate.engines.fake_schedule import StepCost
from tidegate.engines.fake_server import FakeServer, FakeServerOptions, kill_this_process
from tidegate.errors import SettingError
from tidegate.home import write_private
from tidegate.types import DialectName

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def fake_engine(  # noqa: PLR0917 - typer reads options from the signature
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 is any free one.")] = 9000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    model: Annotated[str, typer.Option(help="Name of its model.")] = "fake",
    dialect: Annotated[str, typer.Option(help="vllm or llamacpp: names of metrics, paths, shape of errors.")] = "vllm",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 64,
    first_ms: Annotated[float, typer.Option(min=0, help="Time to the first token.")] = 0.0,
    gap_ms: Annotated[float, typer.Option(min=0, help="Time between two tokens.")] = 10.0,
    slots: Annotated[int | None, typer.Option(min=1, help="Sequences at once (vLLM: max-num-seqs).")] = None,
    batching: Annotated[
        bool, typer.Option(help="Steps of continuous batching instead of first-ms and gap-ms.")
    ] = False,
    step_ms: Annotated[float, typer.Option(min=0, help="With batching: time of a step.")] = 20.0,
    per_sequence_ms: Annotated[float, typer.Option(min=0, help="With batching: more for each sequence.")] = 0.1,
    per_prompt_token_ms: Annotated[
        float, typer.Option(min=0, help="With batching: more for a new prompt's token.")
    ] = 0.05,
    context_tokens: Annotated[int, typer.Option(min=1, help="Longest prompt plus answer.")] = 32_768,
    idle_timeout_s: Annotated[float, typer.Option(min=0.1, help="How long an idle connection is kept.")] = 75.0,
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds the key requests must carry.")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="KIND[=NUMBER][@TOKENS][xCOUNT]; may be given often.")] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Where to write pid and URL once it listens.")] = None,
) -> None:
    """Run an engine without a model: OpenAI's API with latency, queue and faults as asked for.

    A request asks for its own with [[fault:..]], [[tokens:..]], [[first_ms:..]], [[gap_ms:..]] or [[text:..]] in its
    last user message; POST /fake/faults sets one while it runs. --fault help lists the kinds.
    """
    options = FakeServerOptions(
        model=model,
        dialect=_dialect(dialect),
        tokens=tokens,
        first_ms=first_ms,
        gap_ms=gap_ms,
        slots=slots or (32 if batching else None),
        batching=StepCost(step_ms, per_sequence_ms, per_prompt_token_ms) if batching else None,
        context_tokens=context_tokens,
        api_key=_key(api_key_file),
        idle_timeout_s=idle_timeout_s,
        faults=tuple(map(_fault, fault or ())),
    )
    uvloop.run(_serve(options, host, port, ready_file))


async def _serve(options: FakeServerOptions, host: str, port: int, ready_file: Path | None) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = FakeServer(options, die=kill_this_process)
    await server.start(host, port)
    print(f"fake engine {options.model!r} listens on {server.url}", flush=True)
    try:
        if ready_file is not None:
            _write_ready(ready_file, server.url)
        await ended.wait()
    finally:
        await server.close()


def _write_ready(file: Path, url: str) -> None:
    try:
        write_private(file, msgspec.json.encode(ReadyFile(pid=os.getpid(), url=url)))
    except OSError as error:
        raise SettingError("--ready-file", f"{file} cannot be written: {error.strerror}") from None


def _dialect(name: str) -> DialectName:
    if name not in {DialectName.VLLM, DialectName.LLAMACPP}:
        raise SettingError("--dialect", f"{name!r} is neither vllm nor llamacpp")
    return DialectName(name)


def _fault(written: str) -> Fault:
    try:
        return parse(written)
    except ValueError as error:
        raise SettingError("--fault", str(error)) from None


def _key(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingError("--api-key-file", f"{file} cannot be read: {error.strerror}") from None
