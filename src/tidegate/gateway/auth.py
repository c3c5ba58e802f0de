"""Who asks: the key of a request, whom it may speak for, and what an anonymous listener lets in.

A key is looked up by its SHA-256, or, once it was shown and found valid, by the header as it came. Nothing here
compares secrets byte by byte: how long a look-up takes depends on a digest or a keyed hash that whoever guesses keys can
neither choose nor see, so it tells nothing about how near a guess was.

An anonymous listener serves the people of its own machine. A browser there could be made to speak for a stranger's
page, so it answers only to its own names (DNS rebinding), takes no forms, and nothing that a proxy forwarded.
"""

import hashlib
import ipaddress
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from tidegate.errors import BadRequest, Forbidden, RequestError, Unauthorized
from tidegate.gateway.addresses import FORWARDED
from tidegate.gateway.fleet import ModelEntry
from tidegate.gateway.quotas import Quota, Quotas
from tidegate.gateway.record import ANONYMOUS, Caller
from tidegate.http import Request
from tidegate.types import BUILT_IN_CLASSES, FleetSnapshot, KeyView

LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "[::1]", "::1"))
JSON_TYPE: Final = b"application/json"
FORMS: Final = (b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain")

REQUEST_TYPE: Final = b"x-request-type"
TENANT: Final = b"x-tidegate-tenant"
USER: Final = b"x-tidegate-user"
CLASS: Final = b"x-tidegate-class"
_ACT_AS: Final = frozenset((TENANT, USER, CLASS))
_NOTABLE: Final = FORWARDED | _ACT_AS | {REQUEST_TYPE}
MAX_SHOWN: Final = 4096
MAX_NAME_CHARS: Final = 200
"""Of a tenant or user that a service key speaks for."""


class Admitted:
    """A request that was let in: who asks, and what may be had."""

    __slots__ = ("asked", "caller", "classes", "models", "outright", "quota")

    def __init__(
        self,
        caller: Caller,
        models: frozenset[str] | None,
        quota: Quota | None,
        *,
        classes: frozenset[str] | None = None,
        asked: str = "",
        outright: str = "",
    ) -> None:
        self.caller = caller
        self.classes = classes
        """Classes that may be asked for; None means all."""
        self.asked = asked
        """What X-Request-Type says, if that is anything known."""
        self.outright = outright
        """The class that a service sets, whatever the rules say."""
        self.models = models
        """Models that may be asked for; None means all."""
        self.quota = quota
        """None where nothing is counted."""

    def may_use(self, model: ModelEntry) -> bool:
        """Whether a model may be asked for. A key names it by its name or by an alias."""
        return self.models is None or model.name in self.models or not self.models.isdisjoint(model.view.aliases)

    def check_model(self, model: ModelEntry) -> None:
        """Raises Forbidden for a model that the key is not for."""
        if not self.may_use(model):
            raise Forbidden(
                f"this API key may not use the model {model.name!r}", code="model_not_allowed", param="model"
            )


class Holder:
    """What one key opens, or what everybody may."""

    __slots__ = ("_by_type", "_classes", "_models", "_quota", "_tenant", "expires_at_s", "name", "plain", "service")

    def __init__(self, view: KeyView | None, quota: Quota | None) -> None:
        self.service = view is not None and view.service
        self.name = view.name if view is not None else ""
        self.expires_at_s = view.expires_at_s if view is not None else None
        self._tenant = view.tenant if view is not None else ANONYMOUS.tenant
        self._classes = frozenset(view.classes or BUILT_IN_CLASSES) if view is not None else None
        self._models = frozenset(view.models) if view is not None and view.models else None
        self._quota = quota
        self._by_type: dict[str, Admitted] = {}
        self.plain = self.admitted("")

    def admitted(self, asked: str) -> Admitted:
        """Its request, where X-Request-Type asks for this: one of the values that are known, or nothing."""
        found = self._by_type.get(asked)
        if found is None:
            found = self._by_type[asked] = self._make(self._tenant, "", asked, "")
        return found

    def speaking_for(self, tenant: str | None, user: str, asked: str, outright: str) -> Admitted:
        """A request of somebody else, which only a service key can bring."""
        return self._make(tenant or self._tenant, user, asked, outright)

    def _make(self, tenant: str, user: str, asked: str, outright: str) -> Admitted:
        caller = Caller(tenant=tenant, user=user, key=self.name)
        return Admitted(caller, self._models, self._quota, classes=self._classes, asked=asked, outright=outright)


class Gatekeeper:
    """Lets requests in by key, or, where no key is required, by the rules of an anonymous listener."""

    def __init__(
        self, snapshot: FleetSnapshot, listen_host: str, quotas: Quotas, now_s: Callable[[], float] = time.time
    ) -> None:
        """`now_s` gives Unix time."""
        self._now_s = now_s
        self._required = snapshot.keys_required
        self._allow_forwarded = snapshot.options.allow_anonymous
        self._quotas = quotas
        self._classes = {view.name.lower().encode(): view.name for view in snapshot.classes}
        types = {rule.request_type.lower() for rule in snapshot.rules if rule.request_type}
        self._types = {name: name.decode() for name in self._classes} | {name.encode(): name for name in types}
        """What X-Request-Type may say."""
        self._keys = {key.digest: key for key in snapshot.keys}
        self._holders: dict[str, Holder] = {}
        """Of the keys that were shown since this snapshot: with thousands of keys a snapshot is no pause."""
        self._shown: dict[bytes, Holder] = {}
        """By the header that showed a key that is valid: it need not be hashed again until the next snapshot."""
        self._anybody = Holder(None, None)
        self._any_address = listen_host in {"0.0.0.0", "::", ""}  # noqa: S104 - compared, not bound
        self._last_host = b"localhost"
        """The last Host that was let in: nearly always the next one too."""
        self._hosts = LOOPBACK_NAMES | {
            listen_host.lower(),
            f"[{listen_host.lower()}]",
            *map(str.lower, snapshot.options.allowed_hosts),
        }

    def admit(self, request: Request) -> Admitted:
        """Who asks. Raises Unauthorized, Forbidden or BadRequest."""
        headers = request.headers
        if self._required:
            holder = self._holder(headers.get(b"authorization", b""))
            if holder.service or REQUEST_TYPE in headers:
                return self._as_asked(holder, headers)
            return holder.plain
        if headers.get(b"host") != self._last_host:
            self.check_host(request)
        if headers.get(b"content-type") != JSON_TYPE:
            _check_type(request)
        if _NOTABLE.isdisjoint(headers):
            return self._anybody.plain
        return self._admit_notable(headers)

    def caller(self, request: Request) -> Caller:
        """Who sent a request that has been refused, as far as that is known."""
        try:
            return self.admit(request).caller
        except RequestError:
            return ANONYMOUS

    def check_host(self, request: Request) -> None:
        """Raises Forbidden for a request to a name that is not this listener's (DNS rebinding)."""
        host = request.headers.get(b"host", b"localhost")
        self._check_name(host_name(host))
        self._last_host = host

    def _holder(self, authorization: bytes) -> Holder:
        """Whose key a header shows. Raises Unauthorized."""
        holder = self._shown.get(authorization)
        if holder is None:
            holder = self._look_up(authorization)
            if len(self._shown) < MAX_SHOWN:
                self._shown[authorization] = holder
        if holder.expires_at_s is not None and holder.expires_at_s <= self._now_s():
            raise Unauthorized("the API key is not valid", code="invalid_api_key")
        return holder

    def _look_up(self, authorization: bytes) -> Holder:
        scheme, _, secret = authorization.partition(b" ")
        if scheme != b"Bearer" and scheme.lower() != b"bearer":
            secret = b""
        if not secret or secret.isspace():
            raise Unauthorized(
                "you did not provide an API key; send it as `Authorization: Bearer KEY`", code="missing_api_key"
            )
        digest = hashlib.sha256(secret.strip()).hexdigest()
        holder = self._holders.get(digest) or self._learn(digest)
        if holder is None:
            raise Unauthorized("the API key is not valid", code="invalid_api_key")
        return holder

    def _learn(self, digest: str) -> Holder | None:
        key = self._keys.get(digest)
        if key is None:
            return None
        holder = self._holders[digest] = Holder(key, self._quotas.of(key))
        return holder

    def _admit_notable(self, headers: Mapping[bytes, bytes]) -> Admitted:
        """An anonymous request that says more of itself than most."""
        if not (self._allow_forwarded or FORWARDED.isdisjoint(headers)):
            raise Forbidden(
                "a forwarded request needs a key: without keys only this machine is served", code="forwarded_anonymous"
            )
        holder = self._anybody
        if not _ACT_AS.isdisjoint(headers):
            try:
                known = self._holder(headers.get(b"authorization", b""))
            except Unauthorized:  # whatever key comes is ignored here, but for our own services'
                known = holder
            holder = known if known.service else holder
        return self._as_asked(holder, headers)

    def _as_asked(self, holder: Holder, headers: Mapping[bytes, bytes]) -> Admitted:
        asked = self._types.get(headers.get(REQUEST_TYPE, b"").lower(), "")
        if not holder.service or _ACT_AS.isdisjoint(headers):
            return holder.admitted(asked)
        outright = ""
        if CLASS in headers:
            wanted = headers[CLASS].lower()
            if wanted not in self._types:
                raise BadRequest("X-Tidegate-Class names no class", code="invalid_value", param="X-Tidegate-Class")
            outright = self._classes.get(wanted, "")
            asked = asked if outright else self._types[wanted]
        return holder.speaking_for(_name(headers, TENANT), _name(headers, USER) or "", asked, outright)

    def _check_name(self, name: str) -> None:
        if name not in self._hosts and not (self._any_address and _is_address(name)):
            raise Forbidden(
                f"this listener does not answer to the name {name[:100]!r}; gateway.allowed_hosts can add it",
                code="host_not_allowed",
            )


def _name(headers: Mapping[bytes, bytes], header: bytes) -> str | None:
    """A tenant or user, in percent-encoded UTF-8: names are Chinese too, and headers of many clients only ASCII."""
    value = headers.get(header)
    if not value:
        return None
    try:
        name = unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        name = ""
    if not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARS:
        shown = header.decode().title()
        raise BadRequest(
            f"{shown} has to be a name of up to {MAX_NAME_CHARS} printable characters, in percent-encoded UTF-8",
            code="invalid_value",
            param=shown,
        )
    return name


def _check_type(request: Request) -> None:
    """Raises BadRequest for a body that a page of another site could send without asking first."""
    content_type = request.headers.get(b"content-type")
    untyped = content_type is None and b"origin" in request.headers and request.method == b"POST"
    if untyped or (content_type is not None and content_type.lower().startswith(FORMS)):
        raise BadRequest("send `Content-Type: application/json`", code="invalid_content_type")


def host_name(header: bytes) -> str:
    """The name in a Host header, without its port, in lower case."""
    text = header.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
