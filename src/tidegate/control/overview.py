"""Puts the answer of `/admin/v1/status` together from what each part knows."""

from typing import TYPE_CHECKING

from tidegate import __version__, machine
from tidegate.control.gateways import Heard
from tidegate.control.keeper import Keeper, KeeperView
from tidegate.control.plan import ReplicaSpec
from tidegate.control.snapshot import ReplicaStatus
from tidegate.control.status import GatewayStatus, ModelStatus, ProcessStatus, ReplicaStatusView, Status
from tidegate.engines.start_times import StartTimes
from tidegate.fleet.local import memory_bytes
from tidegate.types import DataReport, Hello, ReplicaState

if TYPE_CHECKING:
    from tidegate.control.control import Control


def overview(control: "Control", *, now: float, began: float) -> Status:
    """Everything at this moment; `now` and `began` are of the clock that control was given."""
    reports = [one.report for one in control.heard() if one.report]
    status = control.replicas.status()
    replicas = tuple(
        _replica(spec, control.replicas.keepers[spec.id], status[spec.id], reports, now)
        for spec in control.replicas.plan.replicas
        if spec.id in control.replicas.keepers
    )
    models = tuple(
        ModelStatus(
            name=model.name,
            aliases=model.aliases,
            replicas=sum(replica.model == model.name for replica in replicas),
            ready=sum(replica.model == model.name and replica.state is ReplicaState.READY for replica in replicas),
        )
        for model in control.replicas.plan.models
    )
    frontends = control.frontends
    urls = {"api": f"{frontends.port.url}/v1", "admin": control.admin.url if control.admin else ""}
    if frontends.chat is not None:
        urls["chat"] = frontends.chat_url
    processes = tuple(
        _process(keeper, frontends.chat_url if keeper is frontends.chat else frontends.port.url, now)
        for keeper in frontends.keepers
    )
    memory = machine.memory()
    return Status(
        version=__version__,
        pid=control.pid,
        home=str(control.home.path),
        up_s=round(now - began, 1),
        ready=frontends.port.serving and bool(models) and all(model.ready for model in models),
        snapshot=control.gateways.snapshot.number,
        keys_required=control.keys_required,
        memory_used_bytes=memory.used_bytes,
        memory_total_bytes=memory.total_bytes,
        urls=urls,
        processes=processes,
        models=models,
        replicas=replicas,
        gateways=(
            *(_gateway(one, one.hello, now) for one in control.gateways.links.values()),
            *(_gateway(one, one.remote.hello, now, one.host) for one in control.remote.links.values()),
        ),
        gpus=control.gpus(),
        notices=control.weekly.notices(),
    )


def _gateway(heard: Heard, hello: Hello, now: float, host: str = "") -> GatewayStatus:
    report = heard.report
    return GatewayStatus(
        pid=hello.process.pid,
        snapshot=report.snapshot if report else 0,
        connections=report.connections if report else 0,
        in_flight=report.in_flight if report else 0,
        requests=report.requests if report else {},
        report_age_s=round(now - heard.reported_at_s, 2) if report else None,
        host=host,
        listen=hello.listen,
    )


def _process(keeper: Keeper, url: str, now: float) -> ProcessStatus:
    view = keeper.view
    return ProcessStatus(
        name=view.name,
        state=view.state,
        pid=view.pid,
        url=url,
        restarts=view.restarts,
        memory_bytes=_memory(keeper),
        ready_s=_since(view, now),
        cause=view.cause,
    )


def _replica(
    spec: ReplicaSpec, keeper: Keeper, status: ReplicaStatus, reports: list[DataReport], now: float
) -> ReplicaStatusView:
    view, facts = keeper.view, status.facts
    mine = [one for report in reports for one in report.replicas if one.id == spec.id]
    return ReplicaStatusView(
        id=spec.id,
        pool=spec.pool,
        model=spec.model,
        engine=spec.engine,
        state=status.state,
        url=status.url if facts else spec.url,
        pid=view.pid,
        restarts=view.restarts,
        memory_bytes=_memory(keeper),
        ready_s=_since(view, now),
        slots=facts.slots if facts else None,
        context_tokens=facts.context_tokens if facts else None,
        version=(facts.version if facts else "") or (spec.files.digest if spec.files else ""),
        in_flight=sum(one.in_flight for one in mine),
        requests=sum(one.requests for one in mine),
        failures=sum(one.failures for one in mine),
        health=", ".join(sorted({one.health for one in mine if one.health})),
        continues=facts.continues if facts else False,
        cause=view.cause,
        log_tail=view.log_tail,
        start_again=f"tidegate scale {spec.pool}" if status.state is ReplicaState.FAILED else "",
        started_s=round(facts.started_s, 2) if facts and facts.started_s else None,
        start=facts.start if facts else StartTimes(),
        slow=facts.start.slow_disk(facts.started_s) if facts else "",
    )


def _memory(keeper: Keeper) -> int | None:
    child = keeper.life.child if keeper.life else None
    return memory_bytes(child.id) if child is not None and child.id is not None else None


def _since(view: KeeperView, now: float) -> float | None:
    return None if view.ready_since is None else round(now - view.ready_since, 1)
