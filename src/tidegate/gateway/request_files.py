"""What is written down of requests: the access log, and the trace."""

from typing import Final

from tidegate.gateway.access_log import AccessLog
from tidegate.gateway.trace_log import TraceLog
from tidegate.home import Home
from tidegate.types import FleetSnapshot

ACCESS_LOG: Final = "access.log"
TRACE: Final = "trace.jsonl"


class RequestFiles:
    """Both files of one process."""

    def __init__(self, access: AccessLog, trace: TraceLog) -> None:
        self.access, self.trace = access, trace

    @classmethod
    def below(cls, home: Home) -> "RequestFiles":
        """Those in the data folder; none is made before it is asked for."""
        return cls(AccessLog(home.logs / ACCESS_LOG), TraceLog(home.traces / TRACE))

    def apply(self, snapshot: FleetSnapshot) -> None:
        """Begin or end to write, as the settings say."""
        self.access.apply(snapshot.access_log)
        self.trace.apply(snapshot.trace)

    def close(self) -> None:
        """Write what waits."""
        self.access.close()
        self.trace.close()
