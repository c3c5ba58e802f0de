"""What becomes of a request on its way to an engine, and what is refused before it gets there."""

import json
import string

import pytest

from gateway.byte_engine import DONE, LAST_CHUNK, STREAM_HEAD, answers, chunk, event, streams
from gateway.conftest import key_view
from tidegate.types import DialectName, GatewayOptions, ModelView, Sampling

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "你好"}]


def error_of(answer) -> dict:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = json.loads(answer.body)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


BAD = [
    (b"", 400, None, "invalid_json"),
    (b"nonsense", 400, None, "invalid_json"),
    (b"[]", 400, None, "invalid_json"),
    (b'{"model":"m"', 400, None, "invalid_json"),
    (b'{"model":"m","messages":[{"content":"\xff"}]}', 400, None, "invalid_json"),
    (b"{" * 100_000, 400, None, "invalid_json"),
    (b'{"model":"m","messages":' + b"[" * 100_000, 400, None, "invalid_json"),
    (b'{"model":"m","model":"n","messages":[1]}', 400, "model", "duplicate_key"),
    (b'{"model":"m","messages":[1],"st\\u0072eam":true,"stream":false}', 400, "stream", "duplicate_key"),
    (b'{"messages":[1]}', 400, "model", "missing_required_parameter"),
    (b'{"model":"","messages":[1]}', 400, "model", "missing_required_parameter"),
    (b'{"model":null,"messages":[1]}', 400, "model", "missing_required_parameter"),
    (b'{"model":7,"messages":[1]}', 400, "model", "invalid_type"),
    (b'{"model":"m"}', 400, "messages", "missing_required_parameter"),
    (b'{"model":"m","messages":"hello"}', 400, "messages", "invalid_type"),
    (b'{"model":"m","messages":null}', 400, "messages", "invalid_type"),
    (b'{"model":"m","messages":[]}', 400, "messages", "invalid_value"),
    (b'{"model":"m","messages":[ ]}', 400, "messages", "invalid_value"),
    (b'{"model":"m","messages":["\\ud800"]}', 400, None, "invalid_json"),
    (b'{"model":"m","messages":[1],"stream":"yes"}', 400, "stream", "invalid_type"),
    (b'{"model":"m","messages":[1],"stream":1}', 400, "stream", "invalid_type"),
    (b'{"model":"m","messages":[1],"max_tokens":0}', 400, "max_tokens", "invalid_value"),
    (b'{"model":"m","messages":[1],"max_tokens":-5}', 400, "max_tokens", "invalid_value"),
    (b'{"model":"m","messages":[1],"max_tokens":"many"}', 400, "max_tokens", "invalid_type"),
    (b'{"model":"m","messages":[1],"max_completion_tokens":true}', 400, "max_completion_tokens", "invalid_type"),
    (b'{"model":"gpt-4","messages":[1]}', 404, "model", "model_not_found"),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad[0])[:60])
async def test_a_bad_body_is_an_openai_error_and_reaches_no_engine(gateway, engine, bad):
    body, status, param, code = bad
    one = await engine()
    running = await gateway(one.view())
    async with await running.connect() as client:
        client.request("POST", CHAT, body)
        answer = await client.answer()
        error = error_of(answer)
        assert (answer.status, error["param"], error["code"]) == (status, param, code)
        assert error["type"] == "invalid_request_error"
        assert (await client.ask("GET", "/health")).status == 200, "the connection goes on"
    assert not one.asked


async def test_an_unknown_models_404_names_those_there_are(gateway, engine, ask):
    one = await engine()
    running = await gateway(one.view(), models=(ModelView("m", aliases=("baidu/M", "M-PT")),))
    error = error_of(await ask(running, model="x" * 5000))
    assert all(name in error["message"] for name in ("m", "baidu/M", "M-PT"))
    assert len(error["message"]) < 400


async def test_a_body_over_the_limit_is_413_as_an_openai_error(gateway, engine):
    one = await engine()
    running = await gateway(one.view(), options=GatewayOptions(max_body_bytes=1000))
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, b"x" * 1001)
        assert answer.status == 413
        body = json.loads(answer.body)["error"]
        assert set(body) == {"message", "type", "param", "code"}
        assert body["type"] == "invalid_request_error"


async def test_what_is_not_http_is_an_openai_error_too(gateway, engine):
    running = await gateway((await engine()).view())
    async with await running.connect() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.headers["content-type"]) == (400, "application/json")
        assert json.loads(answer.body)["error"]["code"] == "bad_request"


async def test_a_request_that_needs_no_change_goes_on_byte_for_byte(gateway, engine):
    one = await engine()
    running = await gateway(one.view(api_key="engine-key"))
    body = b' { "messages" : [{"role":"user","content":"\\u76d8\xe5\x8f\xa4"}] ,\n "model":"m", "temperature": 0.70 } '
    async with await running.connect() as client:
        assert (await client.ask("POST", CHAT, body, ("X-Request-Id: my-id.1",))).headers["x-request-id"] == "my-id.1"
    assert one.asked[0].body == body
    assert one.asked[0].headers == {
        "host": f"127.0.0.1:{one.port}",
        "authorization": "Bearer engine-key",
        "content-type": "application/json",
        "x-request-id": "my-id.1",
        "content-length": str(len(body)),
    }


async def test_headers_of_the_client_never_reach_an_engine(gateway, engine, ask):
    one = await engine()
    running = await gateway(one.view())
    sent = ("Authorization: Bearer sk-secret", "X-Vllm-Priority: 9", "X-Tidegate-Tenant: other", "X-Tidegate-Class: top",
            "Cookie: a=b", "X-Anything: x", "Accept-Encoding: gzip", "TE: trailers", "X-Request-Id: bad id with spaces")  # fmt: skip
    answer = await ask(running, headers=sent)
    assert set(one.asked[0].headers) == {"host", "content-type", "x-request-id", "content-length"}
    assert answer.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("dialect", "private"),
    [
        (DialectName.VLLM, ["priority", "chat_template", "kv_transfer_params", "request_id", "vllm_xargs"]),
        (DialectName.LLAMACPP, ["priority", "chat_template", "id_slot", "lora", "n_keep", "n_discard"]),
        (DialectName.OPENAI, ["priority", "chat_template"]),
    ],
)
async def test_private_fields_never_reach_an_engine(gateway, engine, ask, dialect, private):
    one = await engine(streams(event("a", finish_reason="stop"), DONE))
    running = await gateway(one.view(dialect=dialect))
    await ask(running, **dict.fromkeys(private, 1), seed=7, stream=True)
    wanted = {"model": "m", "messages": MESSAGES, "seed": 7, "stream": True}
    assert one.asked[0].json == {**wanted, "stream_options": {"include_usage": True}}


async def test_every_alias_is_the_model_and_the_engine_gets_its_own_name(gateway, engine, ask):
    one = await engine()
    models = (ModelView("m", aliases=("baidu/M-PT", "甲")),)
    running = await gateway(one.view(served_name="/models/engine name"), models=models)
    for name in ("m", "M", "baidu/M-PT", "BAIDU/m-pt", "甲"):
        assert (await ask(running, model=name)).status == 200
    assert [asked.json["model"] for asked in one.asked] == ["/models/engine name"] * 5
    assert all(asked.json["messages"] == MESSAGES for asked in one.asked)


async def test_defaults_fill_what_the_client_left_open(gateway, engine, ask):
    one = await engine()
    defaults = Sampling(max_tokens=64, temperature=0.5, top_k=20)
    running = await gateway(one.view(), models=(ModelView("m", defaults=defaults),))
    await ask(running)
    await ask(running, temperature=0, max_completion_tokens=5)
    await ask(running, max_tokens=None, temperature=None, top_k=None)
    first, second, third = (asked.json for asked in one.asked)
    assert (first["max_tokens"], first["temperature"], first["top_k"]) == (64, 0.5, 20)
    assert "top_p" not in first
    assert ("max_tokens" in second, second["max_completion_tokens"], second["temperature"]) == (False, 5, 0)
    assert (third["max_tokens"], third["temperature"]) == (64, 0.5)


async def test_a_json_request_to_llama_cpp_goes_as_a_stream_and_comes_back_as_json(gateway, engine, ask):
    async def script(wire, asked):
        usage = b'data: {"id":"c","choices":[],"usage":{"total_tokens":9}}\n\n'
        start = event(None, delta={"role": "assistant", "content": None})
        stream = b"".join((start, event("盘"), event("古😀"), event("", delta={}, finish_reason="stop"), usage, DONE))
        middle = stream.index("古".encode()) + 1
        await wire.send(STREAM_HEAD, chunk(stream[:middle]), chunk(stream[middle:]), LAST_CHUNK)

    one = await engine(script)
    running = await gateway(one.view(dialect=DialectName.LLAMACPP))
    answer = await ask(running, temperature=0)
    asked = one.asked[0].json
    assert (asked["stream"], asked["stream_options"], asked["temperature"]) == (True, {"include_usage": True}, 0)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert "content-length" in answer.headers
    body = json.loads(answer.body)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "盘古😀"}
    assert (body["object"], body["usage"]) == ("chat.completion", {"total_tokens": 9})


async def test_a_stream_to_llama_cpp_stays_a_stream(gateway, engine, ask):
    one = await engine(streams(event("a"), DONE))
    running = await gateway(one.view(dialect=DialectName.LLAMACPP))
    answer = await ask(running, stream=True)
    assert answer.pieces == [event("a"), DONE]
    assert one.asked[0].json["stream_options"] == {"include_usage": True}


async def test_llama_cpps_refusal_of_a_json_request_is_passed_on(gateway, engine, ask):
    body = b'{"error":{"code":400,"message":"too long","type":"exceed_context_size_error"}}'
    one = await engine(answers(body, "400 Bad Request"))
    running = await gateway(one.view(dialect=DialectName.LLAMACPP))
    answer = await ask(running)
    assert (answer.status, answer.body) == (400, body)


@pytest.mark.parametrize(("code", "status"), [(400, 400), (500, 502), ("x", 502)])
async def test_an_error_inside_the_stream_of_a_json_request_is_a_json_error(gateway, engine, ask, code, status):
    error = json.dumps({"error": {"code": code, "message": "no room", "type": "kind"}}).encode()
    one = await engine(streams(event("a"), b"data: " + error + b"\n\n"))
    running = await gateway(one.view(dialect=DialectName.LLAMACPP))
    answer = await ask(running)
    assert (answer.status, error_of(answer)["message"], error_of(answer)["code"]) == (status, "no room", "kind")


@pytest.mark.parametrize(
    "bad",
    [b"data: nonsense\n\n", b"data: []\n\n", b'data: {"choices":"abc"}\n\n', b'data: {"choices":[{"index":[]}]}\n\n',
     b'data: {"choices":[{"delta":"x"}]}\n\n', b'data: {"choices":[{"delta":{"tool_calls":[{"index":"a"}]}}]}\n\n', b"data: \xff\n\n"],
)  # fmt: skip
async def test_odd_events_of_a_json_request_are_502(gateway, engine, ask, bad):
    one = await engine(streams(event("a"), bad, DONE))
    running = await gateway(one.view(dialect=DialectName.LLAMACPP))
    answer = await ask(running)
    assert (answer.status, error_of(answer)["code"]) == (502, "engine_failed")


async def test_a_json_request_whose_stream_ends_early_is_asked_of_another(gateway, engine, ask):
    bad = await engine(streams(event("a")))
    good = await engine(streams(event("b", finish_reason="stop"), DONE))
    views = [one.view(f"pool-{n}", dialect=DialectName.LLAMACPP) for n, one in enumerate((bad, good))]
    running = await gateway(*views)
    running.gateway.flights.random = lambda: 0.0
    answer = await ask(running)
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == "b"


KEY = "sk-tg-" + string.ascii_letters[:43]


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ((), "missing_api_key"),
        (("Authorization: Basic abc",), "missing_api_key"),
        (("Authorization: Bearer ",), "missing_api_key"),
        (("Authorization: Bearer sk-tg-wrong",), "invalid_api_key"),
        ((f"Authorization: Bearer {KEY} x",), "invalid_api_key"),
        (("Authorization: Bearer sk-tg-expired",), "invalid_api_key"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/models/m", "/tokenize"])
async def test_a_key_that_is_not_valid_is_401_as_openais(gateway, engine, header, code, path):
    one = await engine()
    keys = (key_view(KEY), key_view("sk-tg-expired", expires_at_s=1.0))
    running = await gateway(one.view(), keys=keys, keys_required=True)
    async with await running.connect() as client:
        answer = await client.ask("GET" if "models" in path else "POST", path, b"", header)
        error = error_of(answer)
        assert (answer.status, error["type"], error["code"]) == (401, "invalid_request_error", code)
        assert b"sk-tg-" not in answer.body
    assert not one.asked


async def test_a_valid_key_lets_in_from_anywhere(gateway, engine, ask):
    one = await engine()
    keys = (key_view(KEY), key_view("sk-tg-later", expires_at_s=9e12))
    running = await gateway(one.view(), keys=keys, keys_required=True)
    for key, scheme in ((KEY, "Bearer"), ("sk-tg-later", "bearer")):
        assert (
            await ask(running, headers=(f"Authorization: {scheme} {key}", "X-Forwarded-For: 9.9.9.9"))
        ).status == 200


async def test_without_keys_whatever_key_comes_is_ignored(gateway, engine, ask):
    running = await gateway((await engine()).view())
    assert (await ask(running, headers=("Authorization: Bearer whatever",))).status == 200


@pytest.mark.parametrize(
    "case",
    [
        (("X-Forwarded-For: 1.2.3.4",), 403, "forwarded_anonymous"),
        (("Forwarded: for=1.2.3.4",), 403, "forwarded_anonymous"),
        (("Content-Type: text/plain",), 400, "invalid_content_type"),
        (("Content-Type: application/x-www-form-urlencoded",), 400, "invalid_content_type"),
        (("Content-Type: Multipart/Form-Data; boundary=x",), 400, "invalid_content_type"),
        (("Origin: http://evil.example",), 400, "invalid_content_type"),
        (("Origin: http://evil.example", "Content-Type: application/json"), 200, None),
        (("Content-Type: application/json; charset=utf-8",), 200, None),
    ],
)
async def test_an_anonymous_listener_takes_no_forms_and_nothing_forwarded(gateway, engine, ask, case):
    headers, status, code = case
    one = await engine()
    running = await gateway(one.view())
    answer = await ask(running, headers=headers)
    assert answer.status == status
    assert status == 200 or error_of(answer)["code"] == code
    assert len(one.asked) == (status == 200)


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:8000", 200), ("127.0.0.1:1", 200), ("[::1]:8000", 200), ("nas.lan:8000", 200),
     ("evil.example", 403), ("evil.example:8000", 403), ("localhost.evil.example", 403), ("10.0.0.1", 403), ("", 403)],
)  # fmt: skip
async def test_an_anonymous_listener_answers_to_its_own_names_only(gateway, engine, host, status):
    one = await engine()
    running = await gateway(one.view(), options=GatewayOptions(allowed_hosts=("NAS.lan",)))
    body = json.dumps({"model": "m", "messages": MESSAGES}).encode()
    for method, path, sent in (("POST", CHAT, body), ("GET", "/v1/models", b""), ("GET", "/metrics", b"")):
        async with await running.connect() as client:
            length = f"Content-Length: {len(sent)}\r\n" if sent else ""
            client.send(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{length}\r\n".encode() + sent)
            assert (await client.answer()).status == status


async def test_tools_for_a_model_that_has_none_are_refused_and_never_silently_dropped(gateway, engine, ask):
    one = await engine(answers(b"{}"))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    running = await gateway(one.view(tools=False))
    answer = await ask(running, tools=tools)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"], error["code"]) == (400, "tools", "unsupported_parameter")
    assert (await ask(running, tools=[])).status == 200
    other = await gateway(one.view())
    assert (await ask(other, tools=tools)).status == 200
