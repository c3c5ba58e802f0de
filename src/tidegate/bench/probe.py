"""Two or three questions before the load: does the server answer, what is its model, how many characters are a token?"""

import asyncio
import contextlib
import ssl
from random import Random
from typing import Final
from urllib.parse import urlsplit

import msgspec

from tidegate.bench.prompts import Prose, Sizes
from tidegate.bench.wire import decode, explanation
from tidegate.bench.workload import Wire
from tidegate.errors import EngineError, OperatorError, SettingError
from tidegate.http import Endpoint
from tidegate.http.fetch import fetch

MOST_BYTES = 8 * 1024 * 1024
PORTS: Final = {"http": 80, "https": 443}
HINT: Final = "is it running, and is this its address?"
SHORT_CHARACTERS, LONG_CHARACTERS = 100, 400


class Model(msgspec.Struct):
    id: str


class Models(msgspec.Struct):
    data: list[Model] = []


def base_url(written: str) -> str:
    """`http://HOST:PORT` or `https://HOST:PORT` of what somebody typed: HOST:PORT alone, or with /v1 behind it. Raises SettingError."""
    text = written if "://" in written else f"http://{written}"
    parts = urlsplit(text)
    try:
        port, host = parts.port, parts.hostname
    except ValueError:
        port = host = None
    if (
        parts.scheme not in {*PORTS}
        or not host
        or parts.path.rstrip("/") not in {"", "/v1"}
        or parts.query
        or parts.username
    ):
        raise SettingError("URL", f"{written!r} is not the address of a server, as in http://127.0.0.1:8000")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port or PORTS[parts.scheme]}"


async def model_name(endpoint: Endpoint, api_key: str, timeout_s: float) -> str:
    """The first that the server lists. Raises OperatorError."""
    key = b"authorization: Bearer %b\r\n" % api_key.encode() if api_key else b""
    status, body = await _ask(
        endpoint, b"GET /v1/models HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (endpoint.host_header, key), timeout_s
    )
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        if status == 200 and (models := msgspec.json.decode(body, type=Models).data):
            return models[0].id
    raise OperatorError(
        f"{endpoint.url}/v1/models names no model (status {status}: {explanation(body)})",
        hint="name one with --model" if status not in {401, 403} else "it wants a key: --api-key-file",
    )


async def sizes(endpoint: Endpoint, wire: Wire, timeout_s: float) -> Sizes | None:
    """What two prompts were counted as; None where the server does not count. Raises OperatorError if it will not answer."""
    random = Random(0)  # noqa: S311 - a load is no secret
    prose = Prose(random)
    counted = []
    for characters in (SHORT_CHARACTERS, LONG_CHARACTERS):
        request = wire.request(prose.text(characters, random), 1, stream=False)
        status, body = await _ask(endpoint, request, timeout_s)
        if status != 200:
            raise OperatorError(
                f"{endpoint.url} refuses a first, short request: status {status}: {explanation(body)}",
                hint={401: "it wants a key: --api-key-file", 404: "is --model one of its models?"}.get(status, ""),
            )
        try:
            usage = decode(body).usage
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise OperatorError(f"{endpoint.url} answers what is no OpenAI answer: {error}") from None
        if usage is None or not usage.prompt_tokens:
            return None
        counted.append((characters, usage.prompt_tokens))
    return Sizes.fit(*counted)


async def _ask(endpoint: Endpoint, request: bytes, timeout_s: float) -> tuple[int, bytes]:
    try:
        async with asyncio.timeout(timeout_s):
            return await fetch(endpoint, request, max_bytes=MOST_BYTES)
    except TimeoutError:
        raise OperatorError(
            f"{endpoint.url} does not answer within {timeout_s:g} s", hint="--timeout allows more"
        ) from None
    except EngineError as error:
        untrusted = isinstance(error.__cause__, ssl.SSLCertVerificationError)
        hint = "--ca-file names who signed it; --insecure believes anybody" if untrusted else HINT
        raise OperatorError(str(error), hint=hint) from None
