"""The fake engine as a client sees it."""

import asyncio
import itertools
import json
import time

import httpx
import openai
import pytest

from tidegate.engines.fake_schedule import StepCost
from tidegate.engines.fake_server import FakeServer, FakeServerOptions
from tidegate.errors import PortTakenError
from tidegate.types import DialectName

CHAT = "/v1/chat/completions"
LLAMACPP = FakeServerOptions(dialect=DialectName.LLAMACPP, slots=4, context_tokens=100)


def http(engine: FakeServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=engine.url, timeout=10, trust_env=False)


def user(text: str = "Hi") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def texts(client: httpx.AsyncClient, **body: object) -> str:
    answer = await client.post(CHAT, json={"messages": user(), **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


async def test_the_openai_client_reads_its_stream_json_and_embeddings():
    """The official client understands every answer, usage included."""
    async with (
        FakeServer(FakeServerOptions(tokens=4)) as engine,
        openai.AsyncOpenAI(base_url=engine.url + "/v1", api_key="none") as client,
    ):
        whole = await client.chat.completions.create(model="fake", messages=user())
        assert whole.choices[0].message.content == "词0 词1 词2 词3 "
        assert whole.choices[0].finish_reason == "stop"
        stream = await client.chat.completions.create(
            model="fake", messages=user(), stream=True, max_tokens=2, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "词0 词1 "
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
        assert chunks[-1].usage.completion_tokens == 2
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens > 0
        text = await client.completions.create(model="fake", prompt="Hi", max_tokens=1)
        assert text.choices[0].text == "词0 "
        vectors = await client.embeddings.create(model="fake", input=["a", "b", "a"])
        first, second, third = (item.embedding for item in vectors.data)
        assert first == third != second
        assert [model.id async for model in client.models.list()] == ["fake"]


async def test_usage_comes_in_a_stream_only_when_asked_for():
    async with FakeServer(FakeServerOptions(tokens=2)) as engine, http(engine) as client:
        answer = await client.post(CHAT, json={"messages": user(), "stream": True})
        assert '"usage"' not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")


async def test_stop_ends_the_text_before_it():
    async with FakeServer() as engine, http(engine) as client:
        answer = (await client.post(CHAT, json={"messages": user(), "stop": ["无", "2 词3"]})).json()
        assert answer["choices"][0]["message"]["content"] == "词0 词1 词"
        assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("cut", [1, 4, 7, 10])
async def test_a_begun_answer_is_continued_to_the_same_whole(cut):
    """As vLLM does when it is told to, by chat or with the tokens of prompt and text; as llama.cpp always does."""
    whole = "词0 词1 词2 词3 词4 词5 "
    messages = [*user(), {"role": "assistant", "content": whole[:cut]}]
    resume = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
    async with FakeServer(FakeServerOptions(tokens=6)) as engine, http(engine) as client:
        assert whole[:cut] + await texts(client, **resume) == whole
        assert await texts(client, messages=messages) == whole  # a new turn
        prompt = (await client.post("/tokenize", json={"messages": user()})).json()["tokens"]
        said = (await client.post("/tokenize", json={"prompt": whole[:cut]})).json()["tokens"]
        answer = await client.post("/v1/completions", json={"prompt": prompt + said})
        assert whole[:cut] + answer.json()["choices"][0]["text"] == whole
    async with FakeServer(FakeServerOptions(tokens=6, dialect=DialectName.LLAMACPP)) as engine, http(engine) as client:
        assert whole[:cut] + await texts(client, messages=messages) == whole


async def test_tokenize_and_detokenize_speak_as_vllm_does():
    async with FakeServer() as engine, http(engine) as client:
        chat = (await client.post("/tokenize", json={"messages": user("你好")})).json()
        assert chat["count"] == len(chat["tokens"])
        text = (await client.post("/detokenize", json={"tokens": chat["tokens"]})).json()["prompt"]
        assert text == "user: 你好\nassistant: "
        usage = (await client.post(CHAT, json={"messages": user("你好"), "max_tokens": 1})).json()["usage"]
        assert usage["prompt_tokens"] == chat["count"]


async def test_it_speaks_as_llamacpp_does():
    async with FakeServer(LLAMACPP) as engine, http(engine) as client:
        prompt = (await client.post("/apply-template", json={"messages": user()})).json()["prompt"]
        tokens = (await client.post("/tokenize", json={"content": prompt})).json()["tokens"]
        assert (await client.post("/detokenize", json={"tokens": tokens})).json() == {"content": prompt}
        props = (await client.get("/props")).json()
        assert props["total_slots"] == 4
        assert props["default_generation_settings"]["n_ctx"] == 100
        assert "llamacpp:requests_processing 0" in (await client.get("/metrics")).text
        assert (await client.get("/version")).status_code == 404


@pytest.mark.parametrize(
    ("dialect", "words"),
    [
        (DialectName.VLLM, "maximum context length is 100 tokens. However, your request has 219 input tokens"),
        (DialectName.LLAMACPP, "request (219 tokens) exceeds the available context size (100 tokens)"),
    ],
)
async def test_a_prompt_beyond_the_context_is_refused_in_the_dialect_s_words(dialect, words):
    async with FakeServer(FakeServerOptions(dialect=dialect, context_tokens=100)) as engine, http(engine) as client:
        answer = await client.post(CHAT, json={"messages": user("x" * 201)})
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [b"{", b"{}", b"[]", b'{"messages":[]}', b'{"messages":[{"role":"user"}],"n":2}', b'{"messages":3}'],
)
async def test_a_wrong_request_is_a_400(body):
    async with FakeServer() as engine, http(engine) as client:
        answer = await client.post(CHAT, content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_its_key_is_asked_for():
    async with FakeServer(FakeServerOptions(api_key="k")) as engine, http(engine) as client:
        assert (await client.post(CHAT, json={"messages": user()})).status_code == 401
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/health")).status_code == 200
        client.headers["authorization"] = "Bearer k"
        assert (await client.get("/v1/models")).status_code == 200


async def test_tokens_come_in_the_pace_that_was_asked_for():
    """First after first_ms, then gap_ms apart, each in a piece of its own."""
    async with FakeServer(FakeServerOptions(tokens=5, first_ms=100, gap_ms=20)) as engine, http(engine) as client:
        async with client.stream("POST", CHAT, json={"messages": user(), "stream": True}) as answer:
            began = time.monotonic()
            times = [time.monotonic() - began async for line in answer.aiter_lines() if "词" in line]
        assert times[0] >= 0.08
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert sum(gaps) >= 0.06
        assert sum(gap > 0.005 for gap in gaps) >= 3


async def test_a_client_that_goes_away_frees_its_slot_and_counts_as_aborted(connect):
    async with FakeServer(FakeServerOptions(slots=1, gap_ms=20, tokens=10_000)) as engine, http(engine) as client:
        async with connect(engine.url) as first:
            first.send({"messages": user(), "stream": True})
            await first.read(until="词1".encode())
            second = asyncio.create_task(client.post(CHAT, json={"messages": user("[[tokens:2]]")}))
            await until(lambda: engine.waiting == 1)
            assert engine.running == 1
        assert (await second).status_code == 200
        assert 'finished_reason="abort"} 1' in (await client.get("/metrics")).text


async def test_one_that_leaves_the_queue_never_runs(connect):
    async with FakeServer(FakeServerOptions(slots=1, gap_ms=20, tokens=100)) as engine, connect(engine.url) as first:
        first.send({"messages": user(), "stream": True})
        await first.read(until=b"assistant")
        async with connect(engine.url) as second:
            second.send({"messages": user(), "stream": True})
            await until(lambda: engine.waiting == 1)
        await until(lambda: engine.waiting == 0)
        assert engine.running == 1


async def test_batching_gives_every_slot_a_token_a_step_in_order_of_arrival(connect):
    """Two slots, three requests: the third waits for the first two; steps, not requests, take the time."""
    cost = StepCost(step_ms=5, per_sequence_ms=0, per_prompt_token_ms=0)
    async with FakeServer(FakeServerOptions(slots=2, tokens=6, batching=cost)) as engine, http(engine) as client:
        ends: list[int] = []

        async def one(number: int) -> None:
            await texts(client)
            ends.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(one(number))
                await until(lambda wanted=number + 1: engine.running + engine.waiting == wanted or ends)
        assert set(ends[:2]) == {0, 1}
        metrics = (await client.get("/metrics")).text
        steps = int(metrics.split("vllm:iteration_tokens_total_count{")[1].split("} ")[1].split("\n")[0])
        assert 12 <= steps < 18
        assert "vllm:generation_tokens_total" in metrics


async def test_batching_charges_for_prompt_tokens():
    cost = StepCost(step_ms=1, per_sequence_ms=1, per_prompt_token_ms=2)
    assert cost.seconds(3, 10) == pytest.approx(0.024)


async def test_a_slow_reader_holds_up_its_own_stream_only(connect):
    """Tokens without a gap stop while the client does not read: memory stays bounded."""
    async with (
        FakeServer(FakeServerOptions(tokens=200_000)) as engine,
        http(engine) as client,
        connect(engine.url) as raw,
    ):
        raw.writer.transport.pause_reading()
        raw.send({"messages": user(), "stream": True})
        await until(lambda: engine.running == 1)
        assert await texts(client, max_tokens=2) == "词0 词1 "
        (connection,) = [c for c in engine._server.connections if c.exchange is not None]
        await until(lambda: connection.paused_since is not None)
        assert connection.transport.get_write_buffer_size() < 1_000_000


async def test_a_taken_port_is_told():
    async with FakeServer() as engine:
        port = int(engine.url.rsplit(":", 1)[1])
        with pytest.raises(PortTakenError, match=f"port {port} on 127.0.0.1"):
            await FakeServer().start(port=port)


async def test_requests_are_kept_for_tests_that_ask():
    async with FakeServer(FakeServerOptions(record=True)) as engine, http(engine) as client:
        await client.post(CHAT, json={"messages": user("[[tokens:1]]")}, headers={"x-secret": "1"})
        (seen,) = engine.requests
        assert (seen.method, seen.path, seen.headers["x-secret"]) == ("POST", CHAT, "1")
        assert json.loads(seen.body)["messages"]


async def until(condition, deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)
