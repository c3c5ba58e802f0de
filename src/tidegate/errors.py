"""Every error of the project, as one tree.

    TidegateError
    ├── OperatorError            something an operator wrote or has to mend; one message, exit code 2
    │   ├── SettingError         a setting is unknown, of the wrong type, or contradicts another
    │   ├── PortTakenError       an address cannot be listened on
    │   ├── HomeLockedError      another control process owns the data folder
    │   ├── ModelError           a model is missing, broken, or does not fit
    │   ├── StoreError           the database cannot be reached, read or written
    │   └── DownloadError        a hub or registry did not give what was asked of it
    ├── RequestError             something a client sent, or what it has to be told; an OpenAI error body
    │   ├── BadRequest 400, Unauthorized 401, Forbidden 403, NotFound 404, MethodNotAllowed 405, RequestTimeout 408,
    │   ├── TooLarge 413, UnsupportedMediaType 415, RateLimited 429, HeadTooLarge 431,
    │   └── NotSupported 501, BadGateway 502, Unavailable 503, GatewayTimeout 504
    └── EngineError              an engine did not do what its contract says
        ├── EngineStartError     it did not become ready
        ├── ConnectError         no connection to it could be made
        ├── UpstreamClosedError  it closed, or broke the protocol, before its answer was whole
        └── StalledError         it stopped in the middle of an answer

Lower errors (OSError, msgspec and httptools errors) are translated into these at one border each: the place where the
file is read, the socket is bound, the bytes are parsed.
"""

from typing import ClassVar


class TidegateError(Exception):
    """The root of the tree."""


class OperatorError(TidegateError):
    """Something an operator can mend. `str(error)` says what was wrong and where; `hint` says what to do."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SettingError(OperatorError):
    """A setting is unknown, of the wrong type, or contradicts another. `setting` is its dotted name."""

    def __init__(self, setting: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"{setting}: {message}", hint=hint)
        self.setting = setting


class PortTakenError(OperatorError):
    """`host:port` cannot be listened on; `setting` is the setting that names it."""

    def __init__(self, host: str, port: int, setting: str, *, reason: str = "it is already in use") -> None:
        super().__init__(
            f"port {port} on {host} cannot be used: {reason}",
            hint=f"end the program that holds it, or set {setting} to another address",
        )
        self.host, self.port, self.setting = host, port, setting


class HomeLockedError(OperatorError):
    """Another control process owns the data folder."""

    def __init__(self, home: str, pid: int) -> None:
        super().__init__(
            f"Tidegate is already running with the data folder {home} (process {pid})",
            hint="see it with `tidegate status`, end it with Ctrl-C where it runs, or set TIDEGATE_HOME to another folder",
        )
        self.home, self.pid = home, pid


class ModelError(OperatorError):
    """A model is missing, broken, or does not fit in memory."""


class StoreError(OperatorError):
    """The database cannot be reached, read or written, or is not what this program knows."""


class DownloadError(OperatorError):
    """A hub or a package registry did not give what was asked of it."""


class RequestError(TidegateError):
    """What a client is told. Carries the HTTP status and the fields of an OpenAI error body.

    `type` and `code` follow OpenAI's names (https://platform.openai.com/docs/guides/error-codes).
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "api_error"

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.param, self.retry_after_s = message, code, param, retry_after_s


class BadRequest(RequestError):
    status, type = 400, "invalid_request_error"


class Unauthorized(RequestError):
    status, type = 401, "invalid_request_error"


class Forbidden(RequestError):
    status, type = 403, "permission_error"


class NotFound(RequestError):
    status, type = 404, "invalid_request_error"


class MethodNotAllowed(RequestError):
    status, type = 405, "invalid_request_error"


class RequestTimeout(RequestError):
    status, type = 408, "invalid_request_error"


class TooLarge(RequestError):
    status, type = 413, "invalid_request_error"


class UnsupportedMediaType(RequestError):
    status, type = 415, "invalid_request_error"


class HeadTooLarge(RequestError):
    status, type = 431, "invalid_request_error"


class RateLimited(RequestError):
    status, type = 429, "rate_limit_error"


class NotSupported(RequestError):
    status, type = 501, "not_supported_error"


class BadGateway(RequestError):
    status, type = 502, "engine_error"


class Unavailable(RequestError):
    status, type = 503, "service_unavailable"


class GatewayTimeout(RequestError):
    status, type = 504, "timeout_error"


class EngineError(TidegateError):
    """An engine did not do what its contract says."""


class EngineStartError(EngineError):
    """An engine did not become ready. `log_tail` holds its last log lines, `cause` the likeliest reason, if known."""

    def __init__(self, message: str, *, log_tail: tuple[str, ...] = (), cause: str = "") -> None:
        super().__init__(message)
        self.log_tail, self.cause = log_tail, cause


class ConnectError(EngineError):
    """No connection to a replica could be made."""


class UpstreamClosedError(EngineError):
    """A replica closed the connection, or broke the protocol, before its answer was whole."""


class StalledError(EngineError):
    """A replica has stopped in the middle of an answer, without closing anything."""
