import asyncio
import hashlib
import json

import pytest

from tidegate.apps.signin import (
    FREE_FAILURES,
    LONGEST_WAIT_S,
    MAX_ADDRESSES,
    WINDOW_S,
    Attempts,
    SignInKeys,
    SlowSignIn,
)


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


def test_only_a_key_in_the_file_signs_in_and_only_while_it_is_there(tmp_path):
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([digest("one"), digest("two")]))
    keys = SignInKeys(file)
    assert keys.digest_of("two\n") == digest("two")
    assert keys.digest_of("three") is None
    assert keys.digest_of(digest("two")) is None
    file.write_text(json.dumps([digest("one")]))
    assert keys.digest_of("two") is None
    assert not keys.valid(digest("two"))


@pytest.mark.parametrize("content", [None, "", "{}", "[1, null]", '["é"]', "[]"])
def test_without_a_readable_list_nobody_signs_in(tmp_path, content):
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    assert SignInKeys(file).digest_of("") is None


def test_wrong_keys_cost_more_and_more_and_are_forgotten_in_time():
    attempts = Attempts()
    waits = []
    for now in range(20):
        waits.append(attempts.wait_s("a", now))
        attempts.failed("a", now)
    assert waits[:FREE_FAILURES] == [0.0] * FREE_FAILURES
    assert waits[FREE_FAILURES:] == sorted(waits[FREE_FAILURES:])
    assert waits[-1] == LONGEST_WAIT_S
    assert attempts.wait_s("b", 20) == 0.0
    assert attempts.wait_s("a", 20 + WINDOW_S) == 0.0


def test_the_memory_of_addresses_is_bounded():
    attempts = Attempts()
    for index in range(MAX_ADDRESSES + 10):
        attempts.failed(str(index), 0.0)
    assert len(attempts._failures) == MAX_ADDRESSES


async def test_attempts_of_one_address_come_one_after_the_other():
    running, most = 0, 0

    async def app(scope, receive, send):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        await send({"type": "http.response.start", "status": 401, "headers": []})

    async def send(message):
        pass

    slow = SlowSignIn(app)
    scope = {"type": "http", "method": "POST", "path": "/login", "client": ("10.0.0.1", 1)}
    await asyncio.gather(*[slow(scope, None, send) for _ in range(FREE_FAILURES)])
    assert most == 1
    assert slow._waiting == {}
    assert slow._attempts.wait_s("10.0.0.1", slow._clock()) > 0
