"""An engine that goes on differently with a half-written answer is found out before anybody depends on it."""

import json
import socket

import pytest

from tidegate.engines.continuation import continues
from tidegate.engines.fake_server import FakeServer, FakeServerOptions
from tidegate.http import Exchange, HttpServer
from tidegate.types import DialectName

HEAD = [(b"content-type", b"text/event-stream")]


@pytest.mark.parametrize("dialect", [DialectName.VLLM, DialectName.LLAMACPP])
async def test_an_engine_that_continues_equally_is_seen_to(dialect):
    async with FakeServer(FakeServerOptions(dialect=dialect, record=True)) as engine:
        assert await continues(engine.url, "", dialect, "fake")
        asked = [json.loads(request.body) for request in engine.requests if request.path == "/v1/chat/completions"]
    whole, rest = asked
    assert whole["messages"] == rest["messages"][:1]
    assert rest["messages"][1]["role"] == "assistant"
    assert rest["max_tokens"] + 12 == whole["max_tokens"] == 24
    assert rest.get("continue_final_message") == (True if dialect is DialectName.VLLM else None)
    assert rest.get("add_generation_prompt") == (False if dialect is DialectName.VLLM else None)


class Scripted:
    """An engine whose words are `say(path, whether it is the rest, how many tokens)`; None for a refusal."""

    def __init__(self, say) -> None:
        self._say = say
        self.server = HttpServer(self._answer)

    def _answer(self, exchange: Exchange) -> None:
        body = json.loads(exchange.request.body)
        path = exchange.request.path
        rest = len(body["messages"]) == 2 if "messages" in body else len(body["prompt"]) > 40
        words = self._say(path, rest, body["max_tokens"])
        if words is None:
            exchange.respond(400, [], b"{}")
            return
        chat = path.endswith("chat/completions")
        events = [{"choices": [{"index": 0, **({"delta": {"content": w}} if chat else {"text": w})}]} for w in words]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        exchange.respond(200, HEAD, text.encode())


@pytest.fixture
async def scripted():
    """`await scripted(say)`: the URL of such an engine."""
    started = []

    async def start(say) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        engine = Scripted(say)
        await engine.server.start(listening)
        started.append((engine.server, listening))
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for server, listening in started:
        await server.close()
        listening.close()


def words(rest, tokens, start=12):
    return [f" word{number}" for number in range(start if rest else 0, start + tokens if rest else tokens)]


async def test_one_that_says_other_words_is_found_out(scripted):
    url = await scripted(lambda path, rest, tokens: words(rest, tokens, start=13))
    assert not await continues(url, "", DialectName.VLLM, "m")


async def test_one_that_begins_again_from_the_start_is_found_out(scripted):
    url = await scripted(lambda path, rest, tokens: words(False, tokens))
    assert not await continues(url, "", DialectName.LLAMACPP, "m")


async def test_a_model_without_a_template_is_judged_by_completions_alone(scripted):
    url = await scripted(lambda path, rest, tokens: None if "chat" in path else words(rest, tokens))
    assert await continues(url, "", DialectName.VLLM, "m")


async def test_one_that_refuses_to_continue_a_chat_cannot(scripted):
    url = await scripted(lambda path, rest, tokens: None if rest and "chat" in path else words(rest, tokens))
    assert not await continues(url, "", DialectName.VLLM, "m")


async def test_another_dialect_is_judged_by_completions_for_its_chats_cannot_be_continued(scripted):
    asked = []

    def say(path, rest, tokens):
        asked.append(path)
        return words(rest, tokens)

    assert await continues(await scripted(say), "", DialectName.OPENAI, "m")
    assert set(asked) == {"/v1/completions"}


async def test_what_cannot_be_told_is_no(scripted):
    url = await scripted(lambda path, rest, tokens: None)
    assert not await continues(url, "", DialectName.VLLM, "m")
    assert not await continues("http://127.0.0.1:9", "", DialectName.VLLM, "m")


async def test_an_answer_of_nothing_is_no(scripted):
    url = await scripted(lambda path, rest, tokens: [])
    assert not await continues(url, "", DialectName.VLLM, "m")


async def test_a_close_choice_that_turned_once_gets_a_second_say(scripted):
    turned = []

    def say(path, rest, tokens):
        if rest and not turned:
            turned.append(path)
            return [" another"]
        return words(rest, tokens)

    assert await continues(await scripted(say), "", DialectName.VLLM, "m")


async def test_tokens_that_come_joined_in_one_event_are_no_difference(scripted):
    """Then more is asked for than is left, and what is left has to be its beginning."""

    def joined(path, rest, tokens):
        said = words(rest, tokens)
        return ["".join(said[at : at + 4]) for at in range(0, len(said), 4)]

    assert await continues(await scripted(joined), "", DialectName.VLLM, "fake")
