"""`tidegate scale`: how many replicas a pool has, while everything runs. Exit code 1 when a new one does not become ready."""

import time
from collections.abc import Collection, Sequence
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from tidegate.cli.admin import ask, running
from tidegate.control.state import AdminAddress
from tidegate.control.status import ReplicaStatusView, Status
from tidegate.control.steering import ScaleAnswer
from tidegate.errors import OperatorError
from tidegate.types import ReplicaState

app = typer.Typer(add_completion=False)
POLL_S = 0.2


@app.command()
def scale(
    pool: Annotated[str | None, typer.Argument(help="Its name; without one, the pools are listed.")] = None,
    replicas: Annotated[
        int | None, typer.Argument(help="How many; without it, replicas that were given up are started again.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until new replicas are ready.")] = True,
) -> None:
    """Give a pool more or fewer replicas; those that go finish their requests first."""
    address = running()
    if address is None:
        raise OperatorError("Tidegate is not running here", hint="`tidegate up` starts it")
    if pool is None:
        print("\n".join(listed(_status(address).replicas)))
        return
    body = {} if replicas is None else {"replicas": replicas}
    path = f"/admin/v1/pools/{quote(pool, safe='')}/scale"
    answer = msgspec.json.decode(ask(address, "POST", path, body, timeout_s=None), type=ScaleAnswer)
    print("\n".join(told(answer)))
    if wait and answer.begun and not _all_ready(address, answer.begun):
        raise typer.Exit(1)


def told(answer: ScaleAnswer) -> list[str]:
    """What was done, and for how long it holds."""
    lines = [f"{answer.pool}: {answer.before} -> {answer.replicas} replicas"]
    if answer.before == answer.replicas:
        lines = [f"{answer.pool}: {answer.replicas} replica{'' if answer.replicas == 1 else 's'}, as before"]
    if answer.gone:
        lines.append(f"drained and ended: {', '.join(answer.gone)}")
    if answer.begun:
        lines.append(f"begun: {', '.join(answer.begun)}")
    if answer.before != answer.replicas:
        lines.append(
            f"This holds until `tidegate up` is ended (not when it is killed); replicas = {answer.replicas} in the "
            "settings holds for good."
        )
    return lines


def listed(replicas: Sequence[ReplicaStatusView]) -> list[str]:
    """A line for each pool."""
    lines = []
    for pool in dict.fromkeys(one.pool for one in replicas):
        mine = [one for one in replicas if one.pool == pool]
        ready = sum(one.state is ReplicaState.READY for one in mine)
        lines.append(f"{pool:<24}{mine[0].engine:<10}{mine[0].model:<32}{ready} of {len(mine)} ready")
    return lines


def _all_ready(address: AdminAddress, names: Collection[str]) -> bool:
    """Wait for each to become ready, or to be given up; what comes of it is told."""
    began, waiting, well = time.monotonic(), list(names), True
    while waiting:
        here = {one.id: one for one in _status(address).replicas}
        for name in tuple(waiting):
            one = here.get(name)
            if one is None:  # somebody has scaled again
                waiting.remove(name)
            elif one.state is ReplicaState.READY:
                waiting.remove(name)
                print(f"{name} is ready after {time.monotonic() - began:.1f} s", flush=True)
            elif one.state is ReplicaState.FAILED:
                waiting.remove(name)
                well = False
                print("\n".join([f"{name} was given up: {one.cause}", *(f"  | {line}" for line in one.log_tail)]))
        if waiting:
            time.sleep(POLL_S)
    return well


def _status(address: AdminAddress) -> Status:
    return msgspec.json.decode(ask(address, "GET", "/admin/v1/status"), type=Status)
