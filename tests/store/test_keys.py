"""Keys are random, shown once, kept as digests, and dead once revoked or expired."""

import hashlib
import re
import sqlite3

import msgspec
import pytest

from tidegate.errors import OperatorError
from tidegate.store import KeyStore, digest_of, new_secret, open_database
from tidegate.types import KeyView


@pytest.fixture
def clock():
    return [1_000.0]


@pytest.fixture
def keys(tmp_path, clock):
    database = open_database(tmp_path / "state.db")
    yield KeyStore(database, now=lambda: clock[0])
    database.close()


def test_a_key_is_random_and_only_its_digest_is_kept(keys, tmp_path):
    first, view = keys.create("anna")
    second, _ = keys.create("bert", tenant="sales")
    assert first != second
    assert re.fullmatch(r"sk-tg-[A-Za-z0-9_-]{43}", first)
    assert view == KeyView(digest=hashlib.sha256(first.encode()).hexdigest(), name="anna", tenant="default")
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert first.encode() not in stored
    assert view.digest.encode() in stored


def test_views_hold_every_key_that_opens_something(keys, clock):
    keys.create("anna")
    keys.create("short", expires_at_s=1_010.0, tenant="t")
    keys.create("gone")
    keys.create("chat", service=True)
    keys.revoke("gone")
    assert [(view.name, view.tenant, view.service, view.expires_at_s) for view in keys.views()] == [
        ("anna", "default", False, None),
        ("short", "t", False, 1_010.0),
        ("chat", "default", True, None),
    ]
    clock[0] = 1_010.0
    assert [view.name for view in keys.views()] == ["anna", "chat"]


def test_a_name_is_taken_until_its_key_is_revoked(keys):
    keys.create("anna")
    with pytest.raises(OperatorError, match="already a key named 'anna'"):
        keys.create("anna")
    keys.revoke("anna")
    assert keys.by_name("anna") is None
    secret, view = keys.create("anna")
    assert keys.by_name("anna") == view
    assert view.digest == digest_of(secret)


def test_a_secret_can_be_given_and_not_used_twice(keys):
    given = new_secret()
    secret, view = keys.create("chat", service=True, secret=given)
    assert secret == given
    assert view.digest == digest_of(given)
    keys.revoke("chat")
    with pytest.raises(OperatorError, match="was in use before"):
        keys.create("chat", service=True, secret=given)


def test_revoking_an_unknown_name_offers_the_nearest(keys):
    keys.create("anna")
    with pytest.raises(OperatorError, match="no key named 'ana'") as caught:
        keys.revoke("ana")
    assert caught.value.hint == "did you mean 'anna'?"


def test_keys_are_required_from_the_first_on_and_for_ever(keys, clock):
    assert not keys.required()
    keys.create("chat", service=True)
    assert not keys.required()
    keys.create("anna")
    assert keys.required()
    keys.revoke("anna")
    assert keys.required()


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 65, " a"])
def test_a_name_must_be_short_and_printable(keys, name):
    with pytest.raises(OperatorError, match="cannot be a key's name"):
        keys.create(name)
    with pytest.raises(OperatorError, match="cannot be a key's tenant"):
        keys.create("fine", tenant=name)


def test_names_may_be_chinese(keys):
    keys.create("王芳", tenant="销售部")
    assert keys.by_name("王芳").tenant == "销售部"


def test_a_key_cannot_be_made_expired(keys):
    with pytest.raises(OperatorError, match="would expire in the past"):
        keys.create("late", expires_at_s=1_000.0)


LIMITS = {
    "models": ("ernie-4.5-0.3b",),
    "classes": ("standard", "batch"),
    "requests_per_minute": 60,
    "tokens_per_minute": 10_000,
    "tokens_per_day": 1_000_000,
    "concurrent_streams": 4,
}


def test_what_a_key_allows_is_kept(keys):
    _, view = keys.create("anna", **LIMITS)
    assert keys.views() == (view,)
    assert {name: getattr(view, name) for name in LIMITS} == LIMITS


def test_a_rotated_key_has_a_new_secret_and_all_else_as_before(keys):
    old, before = keys.create("anna", tenant="sales", expires_at_s=5_000.0, **LIMITS)
    new, after = keys.rotate("anna")
    assert new != old
    assert msgspec.structs.replace(after, digest=before.digest) == before
    assert keys.views() == (after,)
    assert after.digest == digest_of(new)


def test_rotating_an_unknown_name_changes_nothing(keys):
    keys.create("anna")
    before = keys.views()
    with pytest.raises(OperatorError, match="no key named 'ana'"):
        keys.rotate("ana")
    assert keys.views() == before


def test_keys_of_the_past_are_listed_with_how_they_ended(keys, clock):
    keys.create("gone")
    keys.create("short", expires_at_s=1_010.0)
    keys.create("anna")
    clock[0] = 1_005.0
    keys.revoke("gone")
    stored = keys.stored()
    assert [(one.view.name, one.created_at_s, one.revoked_at_s) for one in stored] == [
        ("gone", 1_000.0, 1_005.0),
        ("short", 1_000.0, None),
        ("anna", 1_000.0, None),
    ]
    assert [one.state(1_010.0) for one in stored] == ["revoked", "expired", "live"]


@pytest.mark.parametrize("limit", [0, -1, 10**15 + 1])
def test_a_quota_is_a_positive_number(keys, limit):
    with pytest.raises(OperatorError, match="tokens_per_day cannot be"):
        keys.create("anna", tokens_per_day=limit)


def test_a_program_of_the_first_schema_goes_on_with_this_one(keys, tmp_path):
    """Columns that it does not know are left open by it, and are no obstacle when it reads."""
    keys.create("anna", **LIMITS)
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute(
            "INSERT INTO keys_key (digest, name, tenant, service, created_at_s) VALUES ('d', 'old', 't', 0, 1.0)"
        )
    connection.close()
    assert [view.name for view in keys.views()] == ["anna", "old"]
    assert keys.by_name("old") == KeyView("d", "old", "t")
