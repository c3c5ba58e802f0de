"""The addresses to listen on: free, ours already, or held by whom."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidegate.config import split_address
from tidegate.control import ports
from tidegate.control.doctor.findings import Finding, ok, problem
from tidegate.errors import PortTakenError, SettingError


@dataclass(frozen=True)
class Holder:
    """A process that listens."""

    pid: int
    command: str


@dataclass(frozen=True)
class ListenerFacts:
    """What is known of one address."""

    setting: str
    address: str
    fault: str = ""
    """Why it cannot be listened on; empty if it can."""
    holder: Holder | None = None
    """Who holds it, where that may be seen."""


def gather(listeners: Mapping[str, str]) -> tuple[ListenerFacts, ...]:
    """Bind each address for a moment; `listeners` is setting to `HOST:PORT`."""
    return tuple(_look(setting, address) for setting, address in listeners.items())


def check(facts: Iterable[ListenerFacts], ours: frozenset[int]) -> Iterable[Finding]:
    """Findings; `ours` are the processes of the control that runs with this data folder."""
    for fact in facts:
        name, port = fact.setting.partition(".")[0], split_address(fact.address)[1]
        if not fact.fault:
            yield ok(f"port {port}", f"free for {name} ({fact.address})")
        elif fact.holder is not None and fact.holder.pid in ours:
            yield ok(f"port {port}", f"{name} listens there already (process {fact.holder.pid})")
        elif fact.holder is not None:
            yield problem(
                f"port {port}",
                f"{fact.address} is held by process {fact.holder.pid}: {fact.holder.command}",
                f"end it (kill {fact.holder.pid}), or set {fact.setting} to another address",
            )
        else:
            yield problem(f"port {port}", fact.fault, f"set {fact.setting} to another address")


def _look(setting: str, address: str) -> ListenerFacts:
    try:
        ports.bind(address, setting).close()
    except PortTakenError as error:
        return ListenerFacts(setting, address, str(error), holder_of(error.port))
    except SettingError as error:
        return ListenerFacts(setting, address, str(error))
    return ListenerFacts(setting, address)


def holder_of(port: int) -> Holder | None:
    """The process that listens on `port`; None where it cannot be seen (another user's)."""
    import psutil

    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return Holder(connection.pid, " ".join(psutil.Process(connection.pid).cmdline())[:120] or "unknown")
    except (psutil.Error, OSError):
        return None
    return None
