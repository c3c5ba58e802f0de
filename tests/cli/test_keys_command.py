"""`tidegate keys`: a key is on stdout once, and nowhere else."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from tidegate.cli.keys import expiry
from tidegate.errors import OperatorError
from tidegate.store import digest_of, open_database
from tidegate.store.keys import KeyStore

KEY = re.compile(r"sk-tg-[A-Za-z0-9_-]{43}\n")


@pytest.fixture
def keys(tidegate):
    def run(*arguments, stdin=""):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        return subprocess.run(
            [sys.executable, "-m", "tidegate", "keys", *arguments],
            cwd=tidegate.here,
            env={**clean, "TIDEGATE_HOME": str(tidegate.home)},
            check=False,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def views(home):
    database = open_database(home / "state.db")
    found = KeyStore(database).views()
    database.close()
    return found


def test_the_key_alone_is_on_stdout_and_its_digest_alone_is_kept(keys, tidegate):
    made = keys("create", "--name", "anna")
    assert made.returncode == 0, made.stderr
    assert KEY.fullmatch(made.stdout)
    secret = made.stdout.strip()
    assert secret not in made.stderr
    assert "from now on every request needs a key" in made.stderr
    assert [view.digest for view in views(tidegate.home)] == [digest_of(secret)]
    for file in tidegate.home.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()
    again = keys("create", "--name", "bert")
    assert "from now on" not in again.stderr


def test_everything_a_key_allows_can_be_said_and_is_listed(keys, tidegate):
    made = keys(
        *("create", "--name", "anna", "--tenant", "销售部", "--expires", "30d"),
        *("--model", "ernie", "--model", "demo", "--class", "standard", "--class", "batch"),
        *("--requests-per-minute", "60", "--tokens-per-minute", "10000"),
        *("--tokens-per-day", "1000000", "--streams", "4"),
    )
    assert made.returncode == 0, made.stderr
    (view,) = views(tidegate.home)
    assert (view.tenant, view.models, view.classes) == ("销售部", ("ernie", "demo"), ("standard", "batch"))
    assert (view.requests_per_minute, view.tokens_per_minute) == (60, 10_000)
    assert (view.tokens_per_day, view.concurrent_streams) == (1_000_000, 4)
    text = keys("list").stdout
    assert "models ernie, demo; classes standard, batch; 60 requests/min; 10,000 tokens/min" in text
    (row,) = json.loads(keys("list", "--json").stdout)
    assert row["name"] == "anna"
    assert row["state"] == "live"
    assert view.digest not in text + json.dumps(row)
    assert made.stdout.strip() not in text


def test_a_key_can_be_given_on_stdin_and_is_not_said_again(keys, tidegate):
    made = keys("create", "--name", "bench", "--stdin", stdin="sk-9f8a7c6b5d4e3f2a1b0c\n")
    assert (made.returncode, made.stdout) == (0, "")
    assert "9f8a" not in made.stderr
    assert views(tidegate.home)[0].digest == digest_of("sk-9f8a7c6b5d4e3f2a1b0c")
    twice = keys("create", "--name", "other", "--stdin", stdin="sk-9f8a7c6b5d4e3f2a1b0c\n")
    assert twice.returncode == 2
    assert "in use before" in twice.stderr


@pytest.mark.parametrize("given", ["", "short", "with a space in it, and long", "schlüssel-schlüssel", "x" * 300])
def test_what_cannot_be_a_key_is_refused_without_saying_it(keys, given):
    made = keys("create", "--name", "bench", "--stdin", stdin=given)
    assert made.returncode == 2
    assert "cannot be a key" in made.stderr
    assert not given or given not in made.stderr


def test_a_class_of_the_settings_can_be_allowed_like_a_built_in_one(keys, tidegate):
    (tidegate.here / "tidegate.toml").write_text("[[class]]\nname = 'premium'\n")
    assert keys("create", "--name", "anna", "--class", "premium", "--class", "batch").returncode == 0
    assert views(tidegate.home)[0].classes == ("premium", "batch")
    wrong = keys("create", "--name", "bert", "--class", "gold")
    assert wrong.returncode == 2
    assert "there are: interactive, standard, batch, long, premium" in wrong.stderr


def test_a_revoked_key_is_only_listed_with_all(keys, tidegate):
    keys("create", "--name", "anna")
    assert keys("revoke", "anna").returncode == 0
    assert "no keys that open anything" in keys("list").stderr
    assert re.search(r"^anna +default +revoked ", keys("list", "--all").stdout, re.MULTILINE)
    assert keys("revoke", "anna").returncode == 2
    assert views(tidegate.home) == ()


def test_a_rotated_key_keeps_its_limits(keys, tidegate):
    first = keys("create", "--name", "anna", "--requests-per-minute", "7").stdout
    second = keys("rotate", "anna")
    assert KEY.fullmatch(second.stdout)
    assert second.stdout != first
    (view,) = views(tidegate.home)
    assert (view.digest, view.requests_per_minute) == (digest_of(second.stdout.strip()), 7)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("create", "--name", "a", "--expires", "soon"), "--expires: 'soon' is neither"),
        (("create", "--name", "a", "--expires", "2001-01-01"), "would expire in the past"),
        (
            ("create", "--name", "a", "--class", "fast"),
            "there is no class 'fast'\n  there are: interactive, standard, batch, long",
        ),
        (("create", "--name", "a", "--tokens-per-day", "0"), "tokens_per_day cannot be 0"),
        (("revoke", "nobody"), "there is no key named 'nobody'"),
        (("rotate", "nobody"), "there is no key named 'nobody'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(keys, arguments, what):
    ran = keys(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert what in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_day_is_over_at_its_end_and_a_span_begins_now():
    assert expiry("2026-12-31", 0.0) == datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert expiry("12h", 100.0) == 100.0 + 12 * 3600
    assert expiry("30d", 100.0) == 100.0 + 30 * 86400
    for wrong in ("0", "30", "d", "2026-13-01", "9999-12-31", "-3d"):
        with pytest.raises(OperatorError):
            expiry(wrong, 0.0)
