"""Engines that run already, given by their URL."""

import socket

import pytest

from tidegate.config import ExternalOptions
from tidegate.engines.external import ExternalEngine
from tidegate.engines.fake_server import FakeServer, FakeServerOptions
from tidegate.errors import EngineStartError, SettingError
from tidegate.http.server import HttpServer
from tidegate.types import DialectName


async def facts_of(url: str, options: ExternalOptions | None = None):
    engine = ExternalEngine(url, options or ExternalOptions())
    await engine.start()
    try:
        return engine, await engine.ready()
    finally:
        await engine.stop(0)


async def test_a_vllm_is_known_by_what_it_reports():
    async with FakeServer(FakeServerOptions(model="ernie", context_tokens=2048)) as server:
        engine, facts = await facts_of(server.url)
        assert engine.dialect is DialectName.VLLM
        assert (facts.served_name, facts.context_tokens, facts.slots) == ("ernie", 2048, None)
        assert facts.embeddings
        assert facts.started_s == 0
        assert server.counters.generation_tokens == 2  # a real answer, and one that said how urgent it was
        assert engine.child is None


async def test_a_llamacpp_is_known_with_its_slots_and_the_context_of_one():
    options = FakeServerOptions(dialect=DialectName.LLAMACPP, slots=4, context_tokens=1024)
    async with FakeServer(options) as server:
        engine, facts = await facts_of(server.url + "/v1/")
        assert engine.dialect is DialectName.LLAMACPP
        assert engine.url == server.url
        assert (facts.slots, facts.context_tokens) == (4, 1024)


async def test_settings_have_the_last_word():
    async with FakeServer() as server:
        engine, facts = await facts_of(server.url, ExternalOptions(dialect="openai", slots=7))
        assert engine.dialect is DialectName.OPENAI
        assert facts.slots == 7


async def test_urls_that_report_the_same_are_the_same_version():
    options = FakeServerOptions(model="a")
    async with (
        FakeServer(options) as one,
        FakeServer(options) as two,
        FakeServer(FakeServerOptions(model="b")) as other,
    ):
        versions = [(await facts_of(server.url))[1].version for server in (one, two, other)]
        assert versions[0] == versions[1] != versions[2]


async def test_it_is_told_how_urgent_a_request_is_only_where_it_takes_that():
    for dialect in (DialectName.VLLM, DialectName.LLAMACPP):
        async with FakeServer(FakeServerOptions(model="m", dialect=dialect)) as server:
            _, facts = await facts_of(server.url)
        assert facts.priorities is (dialect is DialectName.VLLM)


async def test_its_key_comes_from_a_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("secret\n")
    async with FakeServer(FakeServerOptions(api_key="secret")) as server:
        engine, _ = await facts_of(server.url, ExternalOptions(api_key_file=file))
        assert engine.api_key == "secret"
        with pytest.raises(EngineStartError, match=r"wants a key \(401\): name it in pool.options.api_key_file"):
            await facts_of(server.url)
    with pytest.raises(SettingError, match=r"api_key_file: .* cannot be read: No such file"):
        await facts_of("http://127.0.0.1:1", ExternalOptions(api_key_file=tmp_path / "none"))


async def test_a_model_that_it_has_not_is_told_with_those_it_has():
    async with FakeServer(FakeServerOptions(model="a")) as server:
        with pytest.raises(EngineStartError, match=r"has no model 'b'; it has: a"):
            await facts_of(server.url, ExternalOptions(served_name="b"))


async def test_one_that_cannot_be_reached_is_named_with_what_happened():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(EngineStartError, match=rf"the engine at {url} cannot be reached: .*"):
            await facts_of(url)


async def test_one_that_generates_nothing_is_not_ready():
    """A failing engine is told with its own words; one of embeddings alone is ready without a token."""
    async with FakeServer() as server:
        server.set_fault("status=500")
        with pytest.raises(EngineStartError, match=r"/v1/chat/completions answered 500: .*told to answer 500"):
            await facts_of(server.url)
        server.set_fault("status=404")
        _, facts = await facts_of(server.url)
        assert facts.embeddings


async def test_what_is_no_openai_api_is_told():
    server = HttpServer(lambda exchange: exchange.respond(200, [(b"content-type", b"text/html")], b"<html>"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        await server.start(listening)
        try:
            with pytest.raises(EngineStartError, match="is no OpenAI API: /v1/models gave 200 text/html"):
                await facts_of(f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            await server.close()
