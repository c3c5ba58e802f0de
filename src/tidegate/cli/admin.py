"""How commands reach the control process of this data folder: by the URL and token in `run/admin.json`."""

import json
import urllib.error
import urllib.request
from typing import Any

from tidegate.cli.data_folder import data_folder
from tidegate.control.state import AdminAddress, read_admin
from tidegate.errors import OperatorError

TIMEOUT_S = 10.0


class SilentError(OperatorError):
    """It listens, and says nothing: stopped with Ctrl-Z, or hanging."""


def running() -> AdminAddress | None:
    """The control process of this data folder; None if none runs. Raises SilentError."""
    address = read_admin(data_folder())
    if address is None:
        return None
    try:
        ask(address, "GET", "/health", timeout_s=TIMEOUT_S)
    except SilentError:
        raise
    except OperatorError:
        return None
    return address


def ask(
    address: AdminAddress, method: str, path: str, body: Any = None, *, timeout_s: float | None = TIMEOUT_S
) -> bytes:
    """The answer's body. Raises OperatorError with the reason that control gives."""
    request = urllib.request.Request(  # noqa: S310 - the URL is http, and our own
        address.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Bearer {address.token}", "content-type": "application/json"},
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy of the environment stands between
    try:
        with direct.open(request, timeout=timeout_s) as answer:
            told: bytes = answer.read()
            return told
    except urllib.error.HTTPError as error:
        with error:
            raise OperatorError(_reason(error.read()) or f"the admin port answered {error.code}") from None
    except OSError as error:
        if isinstance(getattr(error, "reason", error), TimeoutError):
            raise SilentError(
                f"the control process {address.pid} has not answered at {address.url} for {timeout_s:g} s",
                hint=f"it may be suspended (`kill -CONT {address.pid}`), or the machine be too busy",
            ) from None
        raise OperatorError(
            f"the control process {address.pid} does not answer at {address.url}: {error}",
            hint="is it still running? `tidegate up` adopts what it left",
        ) from None


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""
