"""Keys of clients. The key itself is shown once, when it is made; only its SHA-256 is kept.

A key has 256 random bits, so a plain hash is enough: there is nothing to guess from, and a request costs one look-up.
"""

import difflib
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from tidegate.errors import OperatorError
from tidegate.store.database import Database
from tidegate.store.tables import keys_key
from tidegate.types import KeyView

PREFIX = "sk-tg-"
MAX_NAME_CHARS = 64
MAX_QUOTA = 10**15


def new_secret() -> str:
    """A new key: `sk-tg-` and 43 URL-safe characters."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What is kept of a key: its SHA-256, hex."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class StoredKey(msgspec.Struct, frozen=True):
    """A key with its history, for those who look after keys."""

    view: KeyView
    created_at_s: float
    revoked_at_s: float | None

    def state(self, now_s: float) -> str:
        """`live`, `expired` or `revoked`."""
        if self.revoked_at_s is not None:
            return "revoked"
        expires_at_s = self.view.expires_at_s
        return "expired" if expires_at_s is not None and expires_at_s <= now_s else "live"


class KeyStore:
    """The table of keys. Every method is one transaction and raises StoreError; `now` gives CLOCK_REALTIME seconds."""

    def __init__(self, database: Database, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._now = now

    def create(
        self,
        name: str,
        tenant: str = "default",
        *,
        service: bool = False,
        expires_at_s: float | None = None,
        secret: str | None = None,
        models: Sequence[str] = (),
        classes: Sequence[str] = (),
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        tokens_per_day: int | None = None,
        concurrent_streams: int | None = None,
    ) -> tuple[str, KeyView]:
        """Make a key, or register `secret` as one. Raises OperatorError when the name is taken or cannot be one.

        Models, classes and quotas that are not given are not limited.
        """
        for what, value in (("name", name), ("tenant", tenant)):
            if not (0 < len(value) <= MAX_NAME_CHARS and value.isprintable() and value == value.strip()):
                raise OperatorError(
                    f"{value!r} cannot be a key's {what}", hint=f"1 to {MAX_NAME_CHARS} printable characters"
                )
        if expires_at_s is not None and expires_at_s <= self._now():
            raise OperatorError(f"the key {name!r} would expire in the past")
        quotas = {
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
            "tokens_per_day": tokens_per_day,
            "concurrent_streams": concurrent_streams,
        }
        for what, limit in quotas.items():
            if limit is not None and not 0 < limit <= MAX_QUOTA:
                raise OperatorError(f"{what} cannot be {limit}", hint=f"1 to {MAX_QUOTA:,}; leave it out for no limit")
        secret = secret or new_secret()
        view = KeyView(digest_of(secret), name, tenant, service, expires_at_s, tuple(models), tuple(classes), **quotas)
        try:
            with self._database.write() as connection:
                self._insert(connection, view)
        except IntegrityError as error:
            if self.by_name(name) is not None:
                raise OperatorError(
                    f"there is already a key named {name!r}", hint="revoke it, or take another name"
                ) from error
            raise OperatorError("this key was in use before", hint="leave out the key to get a new one") from error
        return secret, view

    def _insert(self, connection: sa.Connection, view: KeyView) -> None:
        row = msgspec.structs.asdict(view) | {"models": _as_list(view.models), "classes": _as_list(view.classes)}
        connection.execute(keys_key.insert().values(**row, created_at_s=self._now()))

    def rotate(self, name: str) -> tuple[str, KeyView]:
        """A new secret for the key of that name, all else as it was; the old one opens nothing any more.

        Raises OperatorError when there is no such key.
        """
        secret = new_secret()
        with self._database.write() as connection:
            view = self._revoke(connection, name)
            if view is not None:
                view = msgspec.structs.replace(view, digest=digest_of(secret))
                self._insert(connection, view)
        if view is None:
            raise self._unknown(name)
        return secret, view

    def views(self) -> tuple[KeyView, ...]:
        """Every key that opens something now: neither revoked nor expired; oldest first."""
        live = keys_key.c.revoked_at_s.is_(None) & (
            keys_key.c.expires_at_s.is_(None) | (keys_key.c.expires_at_s > self._now())
        )
        with self._database.read() as connection:
            rows = connection.execute(_VIEW.where(live).order_by(keys_key.c.id)).all()
        return tuple(_view(row) for row in rows)

    def by_name(self, name: str) -> KeyView | None:
        """The key of that name that is not revoked; it may be expired."""
        with self._database.read() as connection:
            row = connection.execute(_VIEW.where(_named(name))).first()
        return None if row is None else _view(row)

    def stored(self) -> tuple[StoredKey, ...]:
        """Every key that there ever was, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                _VIEW.add_columns(keys_key.c.created_at_s, keys_key.c.revoked_at_s).order_by(keys_key.c.id)
            ).all()
        return tuple(StoredKey(_view(row[:-2]), row[-2], row[-1]) for row in rows)

    def revoke(self, name: str) -> KeyView:
        """End a key for good; its name is free again. Raises OperatorError when there is none of that name."""
        with self._database.write() as connection:
            view = self._revoke(connection, name)
        if view is None:
            raise self._unknown(name)
        return view

    def _revoke(self, connection: sa.Connection, name: str) -> KeyView | None:
        row = connection.execute(_VIEW.where(_named(name))).first()
        if row is None:
            return None
        connection.execute(keys_key.update().where(_named(name)).values(revoked_at_s=self._now()))
        return _view(row)

    def _unknown(self, name: str) -> OperatorError:
        with self._database.read() as connection:
            names = connection.scalars(sa.select(keys_key.c.name).where(keys_key.c.revoked_at_s.is_(None))).all()
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`tidegate keys list` shows them"
        return OperatorError(f"there is no key named {name!r}", hint=hint)

    def required(self) -> bool:
        """Whether requests need a key: from the first key on that is no service key.

        Revoked and expired keys count, so that the end of the last key never opens the door to everybody.
        """
        with self._database.read() as connection:
            return connection.execute(sa.select(keys_key.c.id).where(~keys_key.c.service).limit(1)).first() is not None


_VIEW = sa.select(*(keys_key.c[name] for name in KeyView.__struct_fields__))


def _named(name: str) -> sa.ColumnElement[bool]:
    return (keys_key.c.name == name) & keys_key.c.revoked_at_s.is_(None)


def _as_list(names: Sequence[str]) -> str | None:
    return msgspec.json.encode(names).decode() if names else None


def _view(row: Sequence[Any]) -> KeyView:
    fields = dict(zip(KeyView.__struct_fields__, row, strict=True))
    for name in ("models", "classes"):
        fields[name] = tuple(msgspec.json.decode(fields[name])) if fields[name] else ()
    return KeyView(**fields)
