"""Keys of clients. The key itself is shown once, when it is made; only its SHA-256 is kept.

A key has 256 random bits, so a plain hash is enough: there is nothing to guess from, and a request costs one look-up.
"""

import difflib
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from tidegate.errors import OperatorError
from tidegate.store.database import Database
from tidegate.store.tables import keys_key
from tidegate.types import KeyView

PREFIX = "sk-tg-"
MAX_NAME_CHARS = 64


def new_secret() -> str:
    """A new key: `sk-tg-` and 43 URL-safe characters."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What is kept of a key: its SHA-256, hex."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


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
    ) -> tuple[str, KeyView]:
        """Make a key, or register `secret` as one. Raises OperatorError when the name is taken or cannot be one."""
        for what, value in (("name", name), ("tenant", tenant)):
            if not (0 < len(value) <= MAX_NAME_CHARS and value.isprintable() and value == value.strip()):
                raise OperatorError(
                    f"{value!r} cannot be a key's {what}", hint=f"1 to {MAX_NAME_CHARS} printable characters"
                )
        now = self._now()
        if expires_at_s is not None and expires_at_s <= now:
            raise OperatorError(f"the key {name!r} would expire in the past")
        secret = secret or new_secret()
        view = KeyView(digest_of(secret), name, tenant, service, expires_at_s)
        row = {"digest": view.digest, "name": name, "tenant": tenant, "service": service}
        try:
            with self._database.write() as connection:
                connection.execute(keys_key.insert().values(**row, created_at_s=now, expires_at_s=expires_at_s))
        except IntegrityError as error:
            if self.by_name(name) is not None:
                raise OperatorError(
                    f"there is already a key named {name!r}", hint="revoke it, or take another name"
                ) from error
            raise OperatorError("this key was in use before", hint="leave out the key to get a new one") from error
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

    def revoke(self, name: str) -> KeyView:
        """End a key for good; its name is free again. Raises OperatorError when there is none of that name."""
        with self._database.write() as connection:
            row = connection.execute(_VIEW.where(_named(name))).first()
            if row is not None:
                connection.execute(keys_key.update().where(_named(name)).values(revoked_at_s=self._now()))
                return _view(row)
            names = connection.scalars(sa.select(keys_key.c.name).where(keys_key.c.revoked_at_s.is_(None))).all()
        near = difflib.get_close_matches(name, names, n=1)
        raise OperatorError(f"there is no key named {name!r}", hint=f"did you mean {near[0]!r}?" if near else "")

    def required(self) -> bool:
        """Whether requests need a key: from the first key on that is no service key.

        Revoked and expired keys count, so that the end of the last key never opens the door to everybody.
        """
        with self._database.read() as connection:
            return connection.execute(sa.select(keys_key.c.id).where(~keys_key.c.service).limit(1)).first() is not None


_VIEW = sa.select(keys_key.c.digest, keys_key.c.name, keys_key.c.tenant, keys_key.c.service, keys_key.c.expires_at_s)


def _named(name: str) -> sa.ColumnElement[bool]:
    return (keys_key.c.name == name) & keys_key.c.revoked_at_s.is_(None)


def _view(row: Sequence[Any]) -> KeyView:
    return KeyView(*row)
