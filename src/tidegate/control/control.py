"""The control process: takes over what lives, starts the rest, keeps it running, tells the gateways, ends it all.

Order of a start: take over the gateway and its socket, bind every port, find the models, then start everything at once.
Order of an end: stop listening, let the gateway drain, then end the chat page and the engines, then let go of `run/`.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tidegate import logs
from tidegate.config import ModelSettings, Settings
from tidegate.control import ports, state
from tidegate.control.admin import AdminServer
from tidegate.control.concerns import concerns
from tidegate.control.frontends import Frontends
from tidegate.control.gateways import Gateways, Heard
from tidegate.control.hand import Hand
from tidegate.control.keeper import World
from tidegate.control.launch import Launcher, end_strays
from tidegate.control.logfollow import LogFollowers
from tidegate.control.overview import overview
from tidegate.control.plan import Need, Plan, ReplicaSpec, make_plan, scaled, sources, with_defaults
from tidegate.control.reload import ReloadAnswer, applicable, differences, pools_resized
from tidegate.control.remote_gateways import RemoteGateways
from tidegate.control.replicas import Replicas, unwanted
from tidegate.control.report.recorder import Recorder
from tidegate.control.report.ring import Ring
from tidegate.control.report.weekly import Weekly
from tidegate.control.sizes import scaler
from tidegate.control.snapshot import Keys, build, keys_required, of_a_port
from tidegate.control.status import Status
from tidegate.control.steering import ScaleAnswer, Steering
from tidegate.control.supervisor import Supervisor
from tidegate.control.usage import UsageWriter
from tidegate.engines.base import Engine, ModelFiles, Spawn
from tidegate.errors import OperatorError
from tidegate.fleet import dns
from tidegate.fleet.base import Fleet
from tidegate.fleet.dns import Names, Resolve
from tidegate.fleet.local import process_id
from tidegate.gateway.gpu_metrics import gpu_metrics
from tidegate.gateway.shared_metrics import Shares
from tidegate.home import Home
from tidegate.store.keys import digest_of
from tidegate.types import DataReport, GpuReport, KeyView, ReplicaState, UsageCount

LOOK_AGAIN_S = 1.0
KEYS_POLL_S = 0.5
"""A new or revoked key is in every gateway within a second."""
CHILD_GRACE_S = 5.0
SERVICE_TENANT = "tidegate"


@dataclass(frozen=True)
class Parts:
    """What the command line hands in, the only place that knows every part."""

    environ: Mapping[str, str]
    """What children inherit."""
    gateway: Sequence[str]
    """The command that starts a gateway; told by options where control and the listening socket are."""
    chat: Sequence[str]
    """The command that starts the chat page."""
    settings: Callable[[], Settings]
    """Reads the settings again. Raises SettingError."""
    resolve: Callable[[Mapping[Need, ModelSettings]], Awaitable[Mapping[Need, ModelFiles]]]
    """Finds or fetches the files of each model. Raises ModelError, DownloadError."""
    served: Callable[[Settings], Awaitable[Mapping[str, str]]]
    """What models given only by URLs call themselves."""
    make_engine: Callable[[ReplicaSpec, Spawn], Engine]
    keys: Callable[[], Keys]
    """Reads the store. Blocks; raises StoreError."""
    add_usage: Callable[[Sequence[UsageCount]], None]
    """Writes to the store. Blocks; raises OperatorError."""
    room: Callable[[Sequence[ReplicaSpec]], Awaitable[None]] | None = None
    """Whether these replicas have room beside what runs. Raises OperatorError, with the arithmetic."""
    released: Callable[[str], None] = lambda _: None
    """Told of each replica that is gone for good."""
    gpus: Callable[[], tuple[GpuReport, ...]] | None = None
    """What was read last of this machine's; None where it has none."""
    cluster: Fleet | None = None
    """Where pools with fleet = "ray" have their replicas; opened when there is one."""
    look_up: Resolve = dns.system
    """Addresses of names."""


class Control:
    """One run of `tidegate up`. The lock is held by the caller."""

    def __init__(self, settings: Settings, home: Home, parts: Parts, world: World) -> None:
        self.settings = with_defaults(settings)
        self._asked = settings
        self._home, self._parts, self._world = home, parts, world
        self._began = world.clock()
        self._followers = LogFollowers(world.log)
        self.launcher = Launcher(home, state.Records.load(home), self._followers, parts.environ)
        self._usage = UsageWriter(parts.add_usage, log=world.log)
        self.gateways = Gateways(
            home.run / "control.sock",
            clock=world.clock,
            log=world.log,
            reported=self._reported,
        )
        self.remote = RemoteGateways(
            clock=world.clock,
            log=world.log,
            reported=self._reported,
            changed=self._on_change,
            own=lambda: of_a_port(self.settings.gateway.options()),
        )
        self.hand = Hand.load(home, self._on_change)
        self.settings = scaled(self.settings, self.hand.replicas)
        self.steering = Steering(self, clock=world.clock)
        self.weekly = Weekly(
            home,
            lambda: self.settings.report,
            lambda: self.settings.policy().classes,
            wall=world.wall,
            log=world.log,
        )
        self._recorder = Recorder(
            Ring(home.samples).write, self.steering.sums, clock=world.clock, wall=world.wall, log=world.log
        )
        self.replicas = Replicas(
            self.launcher,
            parts.make_engine,
            world=world,
            changed=self._on_change,
            idle=self._idle,
            drained=self.hand.is_drained,
            released=parts.released,
            elsewhere=lambda spec: parts.cluster.adopt(spec.id, spec.digest) if parts.cluster else None,
        )
        self._supervisor = Supervisor(
            self.replicas,
            heard=self.heard,
            drained=self.hand.is_drained,
            stuck_s=lambda: self.settings.gateway.stuck_s,
            world=world,
        )
        self.frontends = Frontends(
            self.settings,
            home,
            self.launcher,
            self.gateways,
            commands=(parts.gateway, parts.chat),
            world=world,
            changed=self._on_change,
        )
        self.admin: state.AdminAddress | None = None
        self.keys = Keys()
        self._sign_in: tuple[str, ...] | None = None
        self._service: tuple[KeyView, ...] = ()
        self._admin_server: AdminServer | None = None
        self._publishing = False
        self._publish_due = False
        self._resting: dict[str, int] = {}
        """Replicas that gateways may not ask, with the number of the first snapshot that said so."""
        self._cluster_open = False
        self._moved = asyncio.Event()
        """Set when a name has other addresses than before."""
        self._names = Names(self._moved.set, log=world.log, resolve=parts.look_up)
        self._files: Mapping[Need, ModelFiles] = {}
        self._served: Mapping[str, str] = {}
        self._progress = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Take over the gateway and the chat page if they live, and bind every port. Raises OperatorError."""
        await self._reach_cluster(self.settings)
        self._read_keys(self._parts.keys())
        secret = state.service_key(self._home)
        self._service = (KeyView(digest_of(secret), "chat", SERVICE_TENANT, service=True),)
        admin_listening: socket.socket | None = None
        try:
            admin_listening = ports.bind(self.settings.admin.listen, "admin.listen")
            self.gateways.open()
            known = {record.id for record in self.launcher.records.all()}
            await end_strays(self._home, known, CHILD_GRACE_S)  # before their ports are asked for
            await self.frontends.open()
        except BaseException:
            if admin_listening is not None:
                admin_listening.close()
            raise
        self._open_admin(admin_listening)
        self._following = asyncio.get_running_loop().create_task(self._followers.run())
        self._usage.open()

    async def start(self) -> None:
        """Find the models, adopt or start everything. Raises OperatorError if a model cannot be had."""
        self._write_sign_in()
        self.frontends.begin_chat()
        self.frontends.port.begin()  # it says that the model is on its way until it is told of one
        plan = await self._plan(self.settings)
        self._tell_concerns(plan)
        records = self.launcher.records
        useless = [record for name in unwanted(self.launcher, plan) if (record := records.get(name))]
        await asyncio.gather(*(self.launcher.end(record, CHILD_GRACE_S) for record in useless))
        self.hand.forget_others({spec.id for spec in plan.replicas})
        await self.replicas.apply(plan)
        self._keep_on_cluster(plan)
        await self._until(lambda: not self.replicas.adopting())  # an adopted gateway keeps what it knows until then
        self._publishing = True
        self._publish()
        loop = asyncio.get_running_loop()
        self._tasks |= {
            loop.create_task(self._watch_keys()),
            loop.create_task(self.frontends.port.watch()),
            loop.create_task(self._supervisor.run()),
            loop.create_task(self._follow_names()),
            loop.create_task(self._recorder.run()),
            loop.create_task(self.weekly.run()),
            loop.create_task(scaler(self, clock=self._world.clock, log=self._world.log).run()),
        }
        if self._parts.gpus is not None:
            shares = Shares(self._home.run / state.METRICS_FOLDER, process_id(self.pid))
            self._tasks.add(loop.create_task(shares.run(lambda: gpu_metrics(self.gpus()))))

    async def ready(self) -> None:
        """Wait until everything runs. Raises OperatorError if the gateway or every engine cannot be started."""
        await self._until(self._settled)
        views = [keeper.view for keeper in (*self.replicas.keepers.values(), *self.frontends.keepers)]
        for view in views:
            if view.error is not None:
                raise view.error
        failed = [view for view in views if view.state is ReplicaState.FAILED]
        engines = all(keeper.view.state is ReplicaState.FAILED for keeper in self.replicas.keepers.values())
        if self.frontends.port.failed or engines:
            raise _cannot_start(failed[0].name, failed[0].cause, failed[0].log_tail)
        number = self.gateways.snapshot.number  # the answer to the first request must not depend on who is faster
        children = [keeper.life.child for keeper in self.frontends.port.keepers if keeper.life]
        own = [child.id for child in children if child is not None and child.id is not None]
        await asyncio.gather(*(self.gateways.arrival(one, snapshot=number, timeout_s=3.0) for one in own))
        self._followers.poll()  # what children told of their start comes before "ready"

    async def stop(self) -> None:
        """End everything in order; open answers have gateway.drain_timeout_s to finish."""
        await self._end_tasks()
        self._publishing = False
        for keeper in (*self.frontends.keepers, *self.replicas.keepers.values()):
            keeper.hold()
        await self.frontends.port.stop(self.settings.gateway.drain_timeout_s + 1.0)
        await asyncio.gather(self.frontends.stop_chat(CHILD_GRACE_S), self.replicas.stop(CHILD_GRACE_S))
        await self.close()
        state.clear(self._home)

    async def abandon(self) -> None:
        """End what an `open` that was interrupted had found alive."""
        await asyncio.gather(*(self.launcher.end(record, CHILD_GRACE_S) for record in self.launcher.records.all()))
        if self._cluster_open and self._parts.cluster is not None:
            self._parts.cluster.kill()
        await self.close()
        state.clear(self._home)

    async def close(self) -> None:
        """Let go of what this process itself holds; children live on."""
        await self._end_tasks()
        await self._names.close()
        if self._cluster_open and self._parts.cluster is not None:
            await self._parts.cluster.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        self.remote.close()
        if self._admin_server is not None:
            await self._admin_server.close()
        self.frontends.port.close()
        await self.gateways.close()
        await self._usage.close()  # after the last report
        await self._recorder.close()
        self._followers.close()

    def kill(self) -> None:
        """SIGKILL to every child; a `stop` that is under way then ends at once."""
        for record in self.launcher.records.all():
            self.launcher.kill(record)
        if self._cluster_open and self._parts.cluster is not None:
            self._parts.cluster.kill()

    def gpus(self) -> tuple[GpuReport, ...]:
        """Of this machine."""
        return self._parts.gpus() if self._parts.gpus is not None else ()

    def status(self) -> Status:
        return overview(self, now=self._world.clock(), began=self._began)

    async def reload(self, *, apply: bool) -> ReloadAnswer:
        async with self._reloading:  # the file is read inside: of two at once, the later one knows the newer file
            asked = self._parts.settings()
            changes = differences(self._asked, asked)
            if not apply or not changes:
                return ReloadAnswer(changes, applied=False)
            held = applicable(self._asked, asked)
            for pool in pools_resized(changes):
                self.hand.set_replicas(pool, None)
            settings = scaled(with_defaults(held), self.hand.replicas)
            plan = await self._plan(settings)
            self._asked, self.settings = held, settings
            logs.set_level(settings.log.level)
            await self.frontends.port.apply(settings)
            await self.replicas.apply(plan, settings.gateway.drain_timeout_s)
            self.hand.forget_others({spec.id for spec in plan.replicas})
            self._publish()
        self._world.log.info("settings reloaded", changes=len(changes))
        self._tell_concerns(plan)
        return ReloadAnswer(changes, applied=True)

    async def resize(self, pool: str, replicas: int | None) -> ScaleAnswer:
        """Give a pool so many replicas, None as many as it has: those that go are drained first. Begins again what was
        given up in it. Raises OperatorError where there is no room.
        """
        async with self._reloading:
            if not self._publishing:
                raise OperatorError(
                    "models are still being looked for", hint="try again once `tidegate status` answers"
                )
            before = [spec.id for spec in self.replicas.plan.replicas if spec.pool == pool]
            replicas = len(before) if replicas is None else replicas
            settings = scaled(self.settings, {pool: replicas})
            plan = make_plan(settings, self._files, self._served, self._names.urls())
            new = [spec for spec in plan.replicas if spec.id not in self.replicas.keepers]
            here = [spec for spec in new if spec.fleet == "local"]
            if self._parts.room is not None and here:
                await self._parts.room(here)
            own = next((one.replicas for one in with_defaults(self._asked).pool if one.name == pool), None)
            self.hand.set_replicas(pool, None if replicas == own else replicas)
            self.settings = settings
            await self.replicas.apply(plan, settings.gateway.drain_timeout_s)
            again = self.replicas.start_again(pool)
            self.hand.forget_others({spec.id for spec in plan.replicas})
        gone = before[replicas:]
        begun = tuple(spec.id for spec in new) + again
        self._world.log.info("pool scaled", pool=pool, before=len(before), replicas=replicas, begun=begun, gone=gone)
        return ScaleAnswer(pool, len(before), replicas, begun, tuple(gone))

    async def replace_gateways(self) -> tuple[str, ...]:
        return await self.frontends.port.replace()

    @property
    def home(self) -> Home:
        return self._home

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def keys_required(self) -> bool:
        return keys_required(self.settings.gateway, self.keys)

    async def _plan(self, settings: Settings) -> Plan:
        await self._reach_cluster(settings)
        self._files = await self._parts.resolve(sources(settings))
        self._served = await self._parts.served(settings)
        addresses = await self._names.use({pool.name: pool.dns for pool in settings.pool if pool.fleet == "dns"})
        return make_plan(settings, self._files, self._served, addresses)

    async def _reach_cluster(self, settings: Settings) -> None:
        """Raises OperatorError where there are pools on a cluster that does not answer."""
        needed = any(pool.fleet == "ray" for pool in settings.pool)
        if needed and not self._cluster_open and self._parts.cluster is not None:
            await self._parts.cluster.open(settings.ray)
            self._cluster_open = True

    def _keep_on_cluster(self, plan: Plan) -> None:
        """What an earlier control has placed and nobody wants any more is ended."""
        if self._cluster_open and self._parts.cluster is not None:
            self._parts.cluster.keep_only({spec.id: spec.digest for spec in plan.replicas if spec.fleet == "ray"})

    async def _follow_names(self) -> None:
        """Replicas come and go with the addresses of names."""
        while True:
            await self._moved.wait()
            async with self._reloading:
                self._moved.clear()
                plan = make_plan(self.settings, self._files, self._served, self._names.urls())
                await self.replicas.apply(plan, self.settings.gateway.drain_timeout_s)
                self.hand.forget_others({spec.id for spec in plan.replicas})

    def _tell_concerns(self, plan: Plan) -> None:
        for sentence in concerns(self._asked, models=plan.models, keys=self.keys.views):
            self._world.log.warning("look at the settings", advice=sentence)

    def _open_admin(self, listening: socket.socket) -> None:
        listen = self.settings.admin.listen
        self.admin = state.write_admin(self._home, ports.url_of(ports.address_of(listening)))
        hosts = self.settings.admin.allowed_hosts
        self._admin_server = AdminServer(
            self,
            self.steering,
            token=self.admin.token,
            listen=listen,
            allowed_hosts=hosts,
            remote=self.remote,
            gateway_token=state.gateway_token(self._home),
        )
        self._admin_server.open(listening)

    def _settled(self) -> bool:
        ends = {ReplicaState.READY, ReplicaState.FAILED}
        if any(keeper.view.error for keeper in self.replicas.keepers.values()):
            return True
        if self.frontends.port.failed:
            return True
        frontends = all(keeper.view.state in ends for keeper in self.frontends.keepers)
        return frontends and all(self.replicas.settled(name) for name in self.replicas.keepers)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            with contextlib.suppress(TimeoutError):  # not everything that happens elsewhere is progress here
                await asyncio.wait_for(self._progress.wait(), LOOK_AGAIN_S)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_change(self) -> None:
        """Something changed: who waits looks again, and the gateways are told once this turn of the loop is over."""
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()
        if self._publishing and not self._publish_due:
            self._publish_due = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        self._publish_due = False
        last = self.gateways.snapshot
        # Larger than any number of an earlier control, whose snapshots an adopted gateway may hold.
        number = max(last.number + 1, int(self._world.wall() * 1000))
        snapshot = build(
            number,
            settings=self.settings.gateway,
            plan=self.replicas.plan,
            status=self.replicas.status(),
            keys=self.keys,
            service=self._service,
            access_log=self.settings.log.access_log(),
            trace=self.settings.log.traced(),
            redis=self.settings.limits.redis(),
            policy=self.settings.policy(),
            limits_set=self.hand.limits,
            elsewhere=len(self.remote.links),
        )
        at_rest = (one.id for one in snapshot.replicas if one.state is not ReplicaState.READY)
        self._resting = {name: self._resting.get(name, number) for name in at_rest}
        if self._publishing and msgspec.structs.replace(snapshot, number=last.number) != last:
            self.gateways.publish(snapshot)
            self.remote.publish(snapshot)

    def _reported(self, report: DataReport) -> None:
        self._usage.add(report.usage)
        self._recorder.add(report)

    def heard(self) -> tuple[Heard, ...]:
        """What every gateway has reported, of this host and of others."""
        return (*self.gateways.links.values(), *self.remote.links.values())

    def _idle(self, replica: str) -> bool:
        """Whether every gateway knows that a replica is not to be asked, and has nothing there any more."""
        since = self._resting.get(replica)
        reports = [one.report for one in self.heard()]
        return since is not None and all(
            report is not None
            and report.snapshot >= since
            and not any(one.in_flight for one in report.replicas if one.id == replica)
            for report in reports
        )

    def _read_keys(self, keys: Keys) -> None:
        if keys != self.keys:
            self.keys = keys
            self._on_change()
        self._write_sign_in()

    def _write_sign_in(self) -> None:
        digests = tuple(key.digest for key in self.keys.views if not key.service)
        if digests != self._sign_in:
            state.write_sign_in(self._home, digests)
            self._sign_in = digests

    async def _watch_keys(self) -> None:
        trouble = ""
        while True:
            await asyncio.sleep(KEYS_POLL_S)
            try:
                self._read_keys(await asyncio.to_thread(self._parts.keys))
                trouble = ""
            except OperatorError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    self._world.log.error("keys cannot be taken over; the last known ones hold", cause=trouble)  # noqa: TRY400 - a sentence, no traceback


def _cannot_start(name: str, cause: str, tail: tuple[str, ...]) -> OperatorError:
    lines = "".join(f"\n  | {line}" for line in tail[-20:])
    return OperatorError(
        f"{name} cannot be started: {cause}{lines}", hint="its whole log is in logs/ of the data folder"
    )
