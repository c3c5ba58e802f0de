"""Engines that schedule by priority are told how urgent a request is; nobody else is, and no client decides it."""

import pytest

from gateway.byte_engine import json_head
from gateway.conftest import CHAT
from gateway.held import ANSWER, chat
from tidegate.types import CLASSES, RULES, ClassView, DialectName

HEADER = "x-vllm-priority"


@pytest.fixture
async def told(engine, gateway):
    """`await told(view options, request headers)`: the header as the engine got it, if it did."""

    async def ask(*, classes=CLASSES, headers=(), **view):
        asked = []

        async def script(wire, request):
            asked.append(request)
            await wire.send(json_head(len(ANSWER)) + ANSWER)

        behind = await engine(script)
        running = await gateway(behind.view(**view), classes=classes, rules=RULES)
        async with await running.connect() as client:
            assert (await client.ask("POST", CHAT, chat(priority=-5), headers)).status == 200
        (request,) = asked
        assert "priority" not in request.json, "the field is the operator's"
        return request.headers.get(HEADER)

    return ask


@pytest.mark.parametrize(
    ("asked", "priority"), [("streaming", None), ("standard", "1"), ("batch", "10"), ("long", "10"), ("", "1")]
)
async def test_it_is_the_priority_of_the_class(told, asked, priority):
    """None is said where it is 0, which engines assume."""
    headers = (f"X-Request-Type: {asked}",) if asked else ()
    assert await told(priorities=True, headers=headers) == priority


async def test_it_is_what_the_settings_say_and_not_the_client(told):
    classes = (ClassView("standard", priority=-3),)
    assert await told(classes=classes, priorities=True, headers=(f"{HEADER}: -100",)) == "-3"


@pytest.mark.parametrize("dialect", list(DialectName))
async def test_an_engine_that_does_not_take_it_is_not_told(told, dialect):
    assert await told(dialect=dialect, headers=("X-Request-Type: batch", f"{HEADER}: -100")) is None
