"""The paths of the data port that the gateway answers itself, and those that do not exist."""

import json
import re

import pytest

from gateway.byte_engine import answers
from gateway.conftest import key_view
from gateway.wire import until
from tidegate.types import DialectName, FleetSnapshot, GatewayOptions, ModelView, ReplicaState

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()


async def get(running, path, headers=(), method="GET"):
    async with await running.connect() as client:
        return await client.ask(method, path, b"", headers)


async def test_the_model_list_has_serving_names_and_never_paths(gateway, engine):
    one = await engine()
    models = (ModelView("m", aliases=("baidu/M",), context_tokens=4096), ModelView("other"))
    running = await gateway(one.view(served_name="/models/secret.gguf"), models=models)
    answer = await get(running, "/v1/models")
    body = json.loads(answer.body)
    assert (answer.status, body["object"], [entry["id"] for entry in body["data"]]) == (200, "list", ["m", "other"])
    assert (body["data"][0]["aliases"], body["data"][0]["max_model_len"]) == (["baidu/M"], 4096)
    assert all(entry["object"] == "model" and isinstance(entry["created"], int) for entry in body["data"])
    assert b"secret" not in answer.body


@pytest.mark.parametrize("path", ["m", "M", "baidu/M", "baidu%2FM", "%E7%94%B2"])
async def test_one_model_is_found_by_any_of_its_names(gateway, engine, path):
    running = await gateway((await engine()).view(), models=(ModelView("m", aliases=("baidu/M", "甲")),))
    answer = await get(running, f"/v1/models/{path}")
    assert (answer.status, json.loads(answer.body)["id"]) == (200, "m")


async def test_an_unknown_model_is_404(gateway, engine):
    running = await gateway((await engine()).view())
    answer = await get(running, "/v1/models/gpt-4")
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (404, "model_not_found")


async def test_health_says_that_the_process_lives_whatever_the_fleet(gateway):
    running = await gateway()
    answer = await get(running, "/health")
    assert (answer.status, json.loads(answer.body)) == (200, {"status": "ok"})
    head = await get(running, "/health", method="HEAD")
    assert (head.status, head.body) == (200, b"")


async def test_ready_says_whether_requests_would_be_served(gateway, engine):
    one = await engine()
    running = await gateway(one.view(state=ReplicaState.STARTING))
    answer = await get(running, "/ready")
    assert (answer.status, "retry-after" in answer.headers) == (503, True)
    assert json.loads(answer.body)["error"]["code"] == "no_replica_ready"
    running.gateway.apply(FleetSnapshot(number=2, models=(ModelView("m"),), replicas=(one.view(),)))
    assert (await get(running, "/ready")).status == 200
    running.gateway.apply(FleetSnapshot(number=3, models=(ModelView("m"),), replicas=(one.view(),), draining=True))
    answer = await get(running, "/ready")
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "draining")
    async with await running.connect() as client:
        assert (await client.ask("POST", CHAT, BODY)).status == 503
    assert not one.asked


async def test_ready_needs_a_replica_of_every_model(gateway, engine):
    running = await gateway((await engine()).view(), models=(ModelView("m"), ModelView("lonely")))
    answer = await get(running, "/ready")
    assert answer.status == 503
    assert b"lonely" in answer.body


PATHS = ["/", "/wp-admin", "/.env", "/v1", "/v1/", "/v1/chat/completions/", "/v1/../slots", "/v1/%2e%2e/props", "/slots",
         "/v1//chat/completions", "/V1/chat/completions", "/v1/load_lora_adapter", "/v1/chat%2Fcompletions", "/props",
         "/v1/responses/../../metrics", "//health", "/health/", "/apply-template", "/v1/audio/speech"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
async def test_what_does_not_exist_is_404_as_an_openai_error(gateway, engine, path, method):
    one = await engine()
    running = await gateway(one.view(), one.view("llama-0", dialect=DialectName.LLAMACPP))
    answer = await get(running, path, method=method)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (404, "unknown_path")
    assert not one.asked


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", CHAT, "POST"), ("PUT", CHAT, "POST"), ("HEAD", CHAT, "POST"), ("OPTIONS", CHAT, "POST"), ("POST", "/health", "GET, HEAD"),
     ("DELETE", "/v1/models/m", "GET, HEAD"), ("POST", "/v1/models", "GET, HEAD"), ("GET", "/tokenize", "POST")],
)  # fmt: skip
async def test_another_method_is_405_and_says_which_is_allowed(gateway, engine, method, path, allow):
    running = await gateway((await engine()).view())
    answer = await get(running, path, method=method)
    assert (answer.status, answer.headers["allow"]) == (405, allow)


async def test_a_query_is_no_part_of_the_path(gateway, engine):
    one = await engine()
    running = await gateway(one.view())
    async with await running.connect() as client:
        assert (await client.ask("POST", f"{CHAT}?api-version=1", BODY)).status == 200
    assert one.asked[0].path == CHAT


async def test_a_path_of_another_dialect_and_an_extra_path(gateway, engine):
    one = await engine()
    llama = one.view(dialect=DialectName.LLAMACPP)
    running = await gateway(llama, options=GatewayOptions(extra_paths=("/v1/special",)))
    async with await running.connect() as client:
        assert (await client.ask("POST", "/v1/special", b'{"model":"m"}')).status == 200
        assert (await client.ask("POST", "/v1/score", b'{"model":"m"}')).status == 404
    assert [asked.path for asked in one.asked] == ["/v1/special"]


async def test_embeddings_without_an_embedder_are_a_clear_400(gateway, engine):
    one, embedder = await engine(), await engine(answers(b'{"data":[]}'))
    models = (ModelView("m"), ModelView("e"))
    running = await gateway(one.view(), embedder.view("e-0", model="e", embeddings=True), models=models)
    async with await running.connect() as client:
        answer = await client.ask("POST", "/v1/embeddings", b'{"model":"m","input":"x"}')
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["code"], error["param"]) == (400, "embeddings_not_supported", "model")
        assert (await client.ask("POST", "/v1/embeddings", b'{"model":"e","input":"x"}')).body == b'{"data":[]}'
        assert (await client.ask("POST", "/v1/embeddings", b'{"model":"e"}')).status == 400


# metrics


async def test_metrics_are_prometheus_text_and_count_what_happened(gateway, engine):
    one = await engine()
    running = await gateway(one.view())
    async with await running.connect() as client:
        await client.ask("POST", CHAT, BODY)
        await client.ask("POST", CHAT, b"{}")
        text = (await client.ask("GET", "/metrics")).body.decode()
    assert re.search(r'tidegate_requests_total\{class="\w*",model="m",outcome="done",status="200"\} 1\.0', text)
    assert 'tidegate_requests_refused_total{code="missing_required_parameter",status="400"} 1.0' in text
    assert 'tidegate_requests_in_flight{model="m"} 0.0' in text
    assert 'tidegate_replica_requests_total{replica="pool-0"} 1.0' in text
    assert "tidegate_connections 1.0" in text


async def test_scanners_and_made_up_models_make_no_new_series(gateway, engine):
    one = await engine()
    running = await gateway(one.view())

    async def series():
        return {line.rsplit(" ", 1)[0] for line in (await get(running, "/metrics")).body.decode().splitlines()}

    async with await running.connect() as client:
        await client.ask("GET", "/scan")
        await client.ask("POST", CHAT, b'{"model":"made up","messages":[1]}')
        before = await series()
        for number in range(300):
            assert (await client.ask("GET", f"/scan/{number}")).status == 404
            body = b'{"model":"made up %d","messages":[1]}' % number
            assert (await client.ask("POST", CHAT, body)).status == 404
    assert await series() == before


async def test_metrics_are_for_loopback_and_never_for_what_was_forwarded(gateway, engine, monkeypatch):
    running = await gateway((await engine()).view(), options=GatewayOptions(metrics_allow=("10.0.0.0/8",)))
    for header in ("X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Real-Ip: 127.0.0.1"):
        assert (await get(running, "/metrics", (header,))).status == 403
    for peer, status in (("192.0.2.1", 403), ("10.1.2.3", 200), ("::ffff:10.1.2.3", 200), ("::1", 200), ("", 403)):
        monkeypatch.setattr("tidegate.http.Exchange.peer", peer)
        assert (await get(running, "/metrics")).status == status


async def test_metrics_need_no_key_where_keys_are_required(gateway, engine):
    running = await gateway((await engine()).view(), keys=(key_view("k"),), keys_required=True)
    assert (await get(running, "/metrics")).status == 200
    assert (await get(running, "/health")).status == 200


# cross-origin


PREFLIGHT = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,content-type")


async def test_a_preflight_of_an_allowed_page_is_answered(gateway, engine):
    options = GatewayOptions(cors_origins=("https://app.example",))
    running = await gateway((await engine()).view(), options=options)
    answer = await get(running, CHAT, ("Origin: https://app.example", *PREFLIGHT), method="OPTIONS")
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["vary"] == "origin"


async def test_answers_and_errors_carry_what_the_page_needs(gateway, engine):
    options = GatewayOptions(cors_origins=("https://app.example",))
    running = await gateway((await engine()).view(), options=options)
    headers = ("Origin: https://app.example", "Content-Type: application/json")
    async with await running.connect() as client:
        for body, status in ((BODY, 200), (b"{}", 400)):
            answer = await client.ask("POST", CHAT, body, headers)
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, "https://app.example")
            assert "x-request-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origins", [(), ("https://app.example",)])
async def test_another_page_gets_nothing_it_could_read(gateway, engine, origins):
    running = await gateway((await engine()).view(), options=GatewayOptions(cors_origins=origins))
    answer = await get(running, CHAT, ("Origin: https://evil.example", *PREFLIGHT), method="OPTIONS")
    assert answer.status == 405
    assert "access-control-allow-origin" not in answer.headers
    answer = await get(running, "/v1/models", ("Origin: null",))
    assert "access-control-allow-origin" not in answer.headers


async def test_an_asterisk_allows_every_page(gateway, engine):
    running = await gateway((await engine()).view(), options=GatewayOptions(cors_origins=("*",)))
    answer = await get(running, "/v1/models", ("Origin: https://any.example",))
    assert answer.headers["access-control-allow-origin"] == "https://any.example"


# tokens


async def tokens(running, path, **fields):
    async with await running.connect() as client:
        answer = await client.ask("POST", path, json.dumps(fields).encode())
        return answer.status, json.loads(answer.body)


async def test_vllm_is_asked_for_tokens_in_its_own_shape(gateway, engine):
    async def script(wire, asked):
        body = {"/tokenize": {"count": 2, "tokens": [1, 2], "max_model_len": 9}, "/detokenize": {"prompt": "ab"}}
        await answers(json.dumps(body[asked.path]).encode())(wire, asked)

    one = await engine(script)
    running = await gateway(one.view(served_name="s"))
    assert await tokens(running, "/tokenize", model="m", prompt="ab", chat_template="evil") == (
        200, {"count": 2, "tokens": [1, 2], "max_model_len": 9})  # fmt: skip
    assert await tokens(running, "/detokenize", tokens=[1, 2]) == (200, {"prompt": "ab"})
    assert one.asked[0].json == {"model": "s", "prompt": "ab"}
    assert one.asked[1].json == {"model": "s", "tokens": [1, 2]}


async def test_llama_cpp_is_asked_for_tokens_in_its_own_way_and_answers_in_vllms(gateway, engine):
    async def script(wire, asked):
        body = {
            "/apply-template": {"prompt": "<p>"},
            "/tokenize": {"tokens": [5, 6, 7]},
            "/detokenize": {"content": "x"},
        }
        await answers(json.dumps(body[asked.path]).encode())(wire, asked)

    one = await engine(script)
    running = await gateway(one.view(dialect=DialectName.LLAMACPP, context_tokens=77))
    messages = [{"role": "user", "content": "你好"}]
    whole = {"count": 3, "tokens": [5, 6, 7], "max_model_len": 77}
    assert await tokens(running, "/tokenize", model="m", prompt="ab") == (200, whole)
    assert await tokens(running, "/tokenize", model="m", messages=messages) == (200, whole)
    assert await tokens(running, "/detokenize", model="m", tokens=[5]) == (200, {"prompt": "x"})
    assert [(asked.path, asked.json) for asked in one.asked] == [
        ("/tokenize", {"content": "ab", "add_special": True, "parse_special": False}),
        ("/apply-template", {"messages": messages}),
        ("/tokenize", {"content": "<p>", "add_special": True, "parse_special": True}),
        ("/detokenize", {"tokens": [5]}),
    ]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_an_engine_without_a_tokenizer_is_501_that_says_so(gateway, engine, path):
    running = await gateway((await engine()).view(dialect=DialectName.OPENAI))
    status, body = await tokens(running, path, model="m", prompt="x", tokens=[1])
    assert (status, body["error"]["code"]) == (501, "tokenize_not_supported")


@pytest.mark.parametrize(
    "bad",
    [
        ("/tokenize", b"{}", 400, "prompt"),
        ("/tokenize", b'{"prompt":7}', 400, "prompt"),
        ("/tokenize", b'{"messages":"x"}', 400, "messages"),
        ("/tokenize", b'{"prompt":"\\ud800"}', 400, None),
        ("/tokenize", b'{"prompt":"x","n":1e999}', 400, "n"),
        ("/tokenize", b'{"model":"none","prompt":"x"}', 404, "model"),
        ("/detokenize", b'{"tokens":"x"}', 400, "tokens"),
        ("/detokenize", b'{"tokens":[1,true]}', 400, "tokens"),
        ("/detokenize", b'{"tokens":[-1]}', 400, "tokens"),
        ("/detokenize", b"[]", 400, None),
    ],
)
async def test_bad_requests_for_tokens_are_openai_errors(gateway, engine, bad):
    path, body, status, param = bad
    one = await engine()
    running = await gateway(one.view())
    async with await running.connect() as client:
        answer = await client.ask("POST", path, body)
        assert (answer.status, json.loads(answer.body)["error"]["param"]) == (status, param)
    assert not one.asked


@pytest.mark.parametrize(
    "case",
    [
        ("400 Bad", b'{"error":{"message":"too long"}}', 400, "too long"),
        ("400 Bad", b'{"detail":"odd"}', 400, "odd"),
        ("500 Oops", b"<html>", 502, "500"),
        ("200 OK", b"<html>", 502, "not JSON"),
        ("200 OK", b"[1]", 502, "lacks"),
        ("200 OK", b"{}", 502, "lacks"),
    ],
)
@pytest.mark.parametrize("dialect", [DialectName.VLLM, DialectName.LLAMACPP])
async def test_what_engines_answer_for_tokens_is_never_the_end_of_the_connection(gateway, engine, case, dialect):
    status, body, expected, message = case
    one = await engine(answers(body, status))
    running = await gateway(one.view(dialect=dialect))
    if (dialect, body) == (DialectName.VLLM, b"{}"):
        expected, message = 200, ""
    got, answer = await tokens(running, "/tokenize", model="m", prompt="x")
    assert got == expected
    assert message in json.dumps(answer)


async def test_tokens_survive_a_kept_connection_that_closes(gateway, engine):
    state = {"close": False}

    async def script(wire, asked):
        if state["close"]:
            state["close"] = False
            wire.close()
            return
        await answers(b'{"count":1,"tokens":[1]}')(wire, asked)

    one = await engine(script)
    running = await gateway(one.view())
    assert (await tokens(running, "/tokenize", prompt="x"))[0] == 200
    state["close"] = True
    assert (await tokens(running, "/tokenize", prompt="x"))[0] == 200
    assert len(one.asked) == 3


async def test_tokens_of_an_engine_that_is_gone_are_502_and_of_none_503(gateway, engine):
    one = await engine()
    running = await gateway(one.view())
    await one.stop()
    assert (await tokens(running, "/tokenize", prompt="x"))[0] == 502
    running.gateway.apply(FleetSnapshot(number=2, models=(ModelView("m"),)))
    assert (await tokens(running, "/tokenize", prompt="x"))[0] == 503


# the whole


async def test_pipelined_requests_of_every_kind_are_answered_in_order(gateway, engine):
    one = await engine(answers(b'{"n":1}'))
    running = await gateway(one.view())
    async with await running.connect() as client:
        for _ in range(50):
            client.request("POST", CHAT, BODY)
            client.request("GET", "/health")
            client.request("GET", "/nothing")
        for _ in range(50):
            assert [(await client.answer()).status for _ in range(3)] == [200, 200, 404]
    assert running.outcomes == {"done": 50}


async def test_the_report_says_what_happened(gateway, engine):
    one = await engine()
    running = await gateway(one.view())
    async with await running.connect() as client:
        await client.ask("POST", CHAT, BODY)
        report = running.gateway.report()
    assert (report.snapshot, report.connections, report.in_flight) == (1, 1, 0)
    assert report.requests == {"done": 1, "cancelled": 0, "failed": 0}
    assert [(one.id, one.requests, one.reachable) for one in report.replicas] == [("pool-0", 1, True)]
    await until(lambda: not running.gateway.server.connections)
