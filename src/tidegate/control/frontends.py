"""The gateway and the chat page: taken over from an earlier control where they can be, else started; then kept.

The data port's listening socket is control's. A gateway of an earlier control hands it back, so that the port passes
from one control, and from one gateway, to the next without refusing a connection.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence

import msgspec

from tidegate.config import Settings, is_loopback
from tidegate.control import ports
from tidegate.control.gateways import Gateways
from tidegate.control.keeper import Keeper, World
from tidegate.control.launch import Launcher
from tidegate.control.lives import ChatLife, GatewayLife
from tidegate.control.plan import digest
from tidegate.control.restarts import RestartPolicy
from tidegate.control.state import SIGN_IN_FILE, ProcessKind
from tidegate.fleet.local import LocalChild
from tidegate.home import Home

HANDOVER_S = 3.0
"""A living gateway looks for a new control every 0.25 s."""
REPLACED_GRACE_S = 5.0
SILENT_S = 30.0
"""A gateway that reports every second and is not heard for so long hangs, and is replaced."""
NEVER_GIVE_UP = RestartPolicy(give_up=None, longest_s=2.0)
"""Without them nothing is served, whatever their faults; only one that never came up is left alone."""


class Frontends:
    """Keepers of the gateway and the chat page, and the data port's socket."""

    def __init__(
        self,
        settings: Settings,
        home: Home,
        launcher: Launcher,
        gateways: Gateways,
        *,
        commands: tuple[Sequence[str], Sequence[str]],
        world: World,
        changed: Callable[[], None],
    ) -> None:
        self.gateway_url = self.chat_url = ""
        self.chat: Keeper | None = None
        self._settings, self._home, self._launcher = settings, home, launcher
        self._gateways, self._world, self._changed = gateways, world, changed
        self._gateway_command, self._chat_command = commands
        self._listening: socket.socket | None = None
        self._gateway: Keeper | None = None
        self._retiring: list[asyncio.Task[None]] = []

    @property
    def gateway(self) -> Keeper:
        assert self._gateway is not None  # noqa: S101 - after `open`
        return self._gateway

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        return tuple(keeper for keeper in (self._gateway, self.chat) if keeper is not None)

    async def open(self) -> None:
        """Adopt or end what lives, and bind the ports. Nothing new runs yet. Raises PortTakenError, SettingError."""
        adopted = await self._take_over_gateway()
        if self._listening is None:
            self._listening = ports.bind(self._settings.gateway.listen, "gateway.listen")
        scheme = "https" if self._settings.gateway.tls_cert_file else "http"
        self.gateway_url = ports.url_of(ports.address_of(self._listening), scheme)
        self._gateway = self._gateway_keeper(self._listening, adopted)
        if self._settings.chat.enabled:
            self.chat = await self._open_chat()
        else:
            await self._end_recorded("chat")

    def begin_chat(self) -> None:
        """Start the chat page; until there is a gateway, its requests wait in the data port's backlog."""
        if self.chat is not None:
            self.chat.begin()

    def begin_gateway(self) -> None:
        self.gateway.begin()

    async def stop_gateway(self, grace_s: float) -> None:
        """Refuse new connections, and end the gateway once its answers are whole."""
        self._gateways.refuse()
        if self._listening is not None:
            self._listening.close()
        await asyncio.gather(self.gateway.stop(grace_s), *self._retiring)

    async def stop_chat(self, grace_s: float) -> None:
        if self.chat is not None:
            await self.chat.stop(grace_s)

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()

    def _gateway_digest(self) -> str:
        gateway = self._settings.gateway
        what = {"tls_cert": str(gateway.tls_cert_file), "tls_key": str(gateway.tls_key_file), "listen": gateway.listen}
        return digest(what)

    def _gateway_keeper(self, listening: socket.socket, child: LocalChild | None) -> Keeper:
        argv = [*self._gateway_command, "--control", str(self._home.run / "control.sock")]
        for name, file in (
            ("--tls-cert", self._settings.gateway.tls_cert_file),
            ("--tls-key", self._settings.gateway.tls_key_file),
        ):
            argv += [name, str(file)] if file else []

        def life(child: LocalChild | None = None) -> GatewayLife:
            return GatewayLife(
                self._launcher,
                self._gateways,
                argv,
                digest=self._gateway_digest(),
                listening=listening,
                url=self.gateway_url,
                child=child,
            )

        return self._keeper("gateway", life, life(child) if child else None)

    async def _take_over_gateway(self) -> LocalChild | None:
        """The gateway that lives and fits; its socket is kept even where it does not fit, if the address does."""
        for left in self._launcher.records.all():
            if left.kind is ProcessKind.GATEWAY and left.name != "gateway":  # it was draining when control was killed
                await self._launcher.end(left, REPLACED_GRACE_S)
        record = self._launcher.records.get("gateway")
        child = self._launcher.adopt(record) if record is not None else None
        if record is None or child is None:
            return None
        link = await self._gateways.arrival(record.id, timeout_s=HANDOVER_S)
        if (
            link is not None
            and link.listening is not None
            and ports.matches(link.listening, self._settings.gateway.listen)
        ):
            self._listening, link.listening = link.listening, None
            self._listening.setblocking(False)
            if record.digest == self._gateway_digest():
                self._world.log.info("gateway adopted", pid=record.id.pid)
                return child
        self._world.log.info("gateway from before is replaced", pid=record.id.pid)
        if self._listening is not None:  # its clients keep their answers, the port is served on meanwhile
            old = msgspec.structs.replace(record, name=f"gateway-{record.id.pid}")
            self._launcher.records.put(old)
            retiring = self._launcher.end(old, self._settings.gateway.drain_timeout_s)
            self._retiring.append(asyncio.get_running_loop().create_task(retiring))
        else:
            await self._launcher.end(record, REPLACED_GRACE_S)
        self._launcher.ended("gateway", record.id)
        return None

    async def _open_chat(self) -> Keeper:
        record = self._launcher.records.get("chat")
        argv = self._chat_argv()
        chat_digest = digest({"argv": argv, "listen": self._settings.chat.listen})
        child: LocalChild | None = None
        if record is not None and record.digest == chat_digest and record.url:
            child = self._launcher.adopt(record)
        if child is None or record is None:
            await self._end_recorded("chat")
            address = ports.free_port(self._settings.chat.listen, "chat.listen")
            self.chat_url = ports.url_of(address)
        else:
            self._world.log.info("chat page adopted", pid=record.id.pid)
            self.chat_url, address = record.url, record.url.removeprefix("http://")

        def life(child: LocalChild | None = None) -> ChatLife:
            return ChatLife(
                self._launcher,
                [*argv, "--listen", address],
                digest=chat_digest,
                address=address,
                url=self.chat_url,
                child=child,
            )

        return self._keeper("chat", life, life(child) if child else None)

    def _chat_argv(self) -> list[str]:
        """How the page is started, but for its address."""
        chat = self._settings.chat
        argv = [*self._chat_command, "--gateway-url", self.gateway_url]
        argv += ["--data-dir", str(self._home.path), "--key-file", str(self._home.run / "service.key")]
        if self._settings.gateway.tls_cert_file is not None:
            argv += ["--gateway-certificate", str(self._settings.gateway.tls_cert_file)]
        argv += ["--language", chat.language, f"--system-prompt={chat.system_prompt}"]
        argv += ["--history-tokens", str(chat.history_tokens)]
        for name in chat.allowed_hosts:
            argv += ["--allowed-host", name]
        if not is_loopback(chat.listen) and not self._settings.gateway.allow_anonymous:
            argv += ["--sign-in-keys-file", str(self._home.run / SIGN_IN_FILE)]
        return argv

    def _keeper(
        self, name: str, make: Callable[[], GatewayLife | ChatLife], adopted: GatewayLife | ChatLife | None
    ) -> Keeper:
        return Keeper(
            name,
            make,
            world=self._world,
            changed=self._changed,
            policy=NEVER_GIVE_UP,
            adopted=adopted,
            log_tail=lambda: self._launcher.followers.tail(name),
        )

    async def _end_recorded(self, name: str) -> None:
        record = self._launcher.records.get(name)
        if record is not None:
            await self._launcher.end(record, REPLACED_GRACE_S)

    async def watch(self) -> None:
        """Replace a gateway that lives and says nothing; runs until cancelled."""
        heard = self._world.clock()
        while True:
            await asyncio.sleep(1.0)
            view, life, now = self.gateway.view, self.gateway.life, self._world.clock()
            child = life.child if life else None
            link = self._gateways.links.get(child.id) if child is not None else None
            if view.ready_since is None or child is None:
                heard = now
                continue
            heard = max(heard, view.ready_since, link.reported_at_s if link else 0.0)
            if now - heard > SILENT_S and isinstance(child, LocalChild):
                self._world.log.error("gateway hangs and is replaced", pid=child.id.pid, silent_s=round(now - heard))
                child.kill()
                heard = now
