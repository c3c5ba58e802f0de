"""What clients reach: the data port, and the chat page; taken over from an earlier control where they can be, then kept."""

from collections.abc import Callable, Sequence

from tidegate.config import Settings, is_loopback
from tidegate.control import ports
from tidegate.control.data_port import NEVER_GIVE_UP, DataPort
from tidegate.control.gateways import Gateways
from tidegate.control.keeper import Keeper, World
from tidegate.control.launch import Launcher
from tidegate.control.lives import ChatLife
from tidegate.control.plan import digest
from tidegate.control.state import SIGN_IN_FILE
from tidegate.fleet.local import LocalChild
from tidegate.home import Home

REPLACED_GRACE_S = 5.0


class Frontends:
    """The data port, and the keeper of the chat page."""

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
        self.chat_url = ""
        self.chat: Keeper | None = None
        self._settings, self._home, self._launcher = settings, home, launcher
        self._world, self._changed = world, changed
        gateway, self._chat_command = commands
        self.port = DataPort(settings, home, launcher, gateways, command=gateway, world=world, changed=changed)

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        return (*self.port.keepers, *([self.chat] if self.chat is not None else []))

    async def open(self) -> None:
        """Adopt or end what lives, and bind the ports. Nothing new runs yet. Raises PortTakenError."""
        await self.port.open()
        if self._settings.chat.enabled:
            self.chat = await self._open_chat()
        else:
            await self._end_recorded("chat")

    def begin_chat(self) -> None:
        """Start the chat page; until there is a gateway, its requests wait in the data port's backlog."""
        if self.chat is not None:
            self.chat.begin()

    async def stop_chat(self, grace_s: float) -> None:
        if self.chat is not None:
            await self.chat.stop(grace_s)

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

        return Keeper(
            "chat",
            life,
            world=self._world,
            changed=self._changed,
            policy=NEVER_GIVE_UP,
            adopted=life(child) if child else None,
            log_tail=lambda: self._launcher.followers.tail("chat"),
        )

    def _chat_argv(self) -> list[str]:
        """How the page is started, but for its address."""
        chat = self._settings.chat
        argv = [*self._chat_command, "--gateway-url", self.port.url]
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

    async def _end_recorded(self, name: str) -> None:
        record = self._launcher.records.get(name)
        if record is not None:
            await self._launcher.end(record, REPLACED_GRACE_S)
