"""Keys, what they allow, and whom they may speak for; on real sockets."""

import json

import pytest

from gateway.byte_engine import STREAM_HEAD, answers, chunk, event
from gateway.conftest import CHAT, key_view
from gateway.wire import until
from tidegate.types import GatewayOptions, ModelView

GOOD = "sk-tg-good-good-good-good"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
USED = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
USUAL = json.dumps({"id": "c", "choices": [], "usage": USED}).encode()


def bearer(secret=GOOD):
    return f"Authorization: Bearer {secret}"


@pytest.fixture
async def one(engine, gateway):
    """`await one(key options…)`: a gateway that wants the key GOOD, and its engine."""

    async def start(script=None, *, options=None, models=None, service=False, **allowed):
        behind = await engine(script or answers(USUAL))
        view = key_view(GOOD, service=service, **allowed)
        running = await gateway(behind.view(), keys=(view,), keys_required=True, options=options, models=models)
        running.engine = behind
        return running

    return start


def error_of(answer):
    return json.loads(answer.body)["error"]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ((), "missing_api_key"),
        (("Authorization: Bearer ",), "missing_api_key"),
        (("Authorization: Basic Z29vZA==",), "missing_api_key"),
        ((bearer("wrong"),), "invalid_api_key"),
        ((bearer(GOOD[:-1]),), "invalid_api_key"),
        ((bearer(GOOD + "x"),), "invalid_api_key"),
        ((bearer(GOOD.upper()),), "invalid_api_key"),
        (("Authorization: Bearer \xff\xfe",), "invalid_api_key"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/tokenize"])
async def test_without_the_right_key_the_answer_is_openais_401_on_every_path(one, headers, code, path):
    running = await one()
    async with await running.connect() as client:
        method, body = ("GET", b"") if path == "/v1/models" else ("POST", BODY)
        answer = await client.ask(method, path, body, headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    error = error_of(answer)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, None)
    assert "good" not in answer.body.decode()
    assert running.engine.asked == []


async def test_a_key_that_is_gone_from_the_next_snapshot_opens_nothing(one, ask):
    running = await one()
    assert (await ask(running, headers=(bearer(),))).status == 200
    snapshot = running.gateway.fleet.snapshot
    running.gateway.apply(type(snapshot)(2, snapshot.models, snapshot.replicas, (), keys_required=True))
    assert (await ask(running, headers=(bearer(),))).status == 401


async def test_the_key_is_in_no_metric_and_no_log_and_reaches_no_engine(one, ask, capsys, caplog):
    running = await one(requests_per_minute=100)
    await ask(running, headers=(bearer(),))
    await ask(running, headers=(bearer("sk-tg-wrong-wrong-wrong"),))
    async with await running.connect() as client:
        metrics = (await client.ask("GET", "/metrics")).body.decode()
    told = "".join(capsys.readouterr()) + caplog.text + metrics
    assert GOOD not in told
    assert "wrong-wrong" not in told
    (asked,) = running.engine.asked
    assert GOOD not in repr(asked)
    assert not [name for name in asked.headers if name.startswith(("x-tidegate", "authorization", "x-vllm"))]


async def test_without_keys_whatever_key_is_sent_is_ignored(engine, gateway, ask):
    running = await gateway((await engine()).view())
    for headers in ((), (bearer("anything"),), ("Authorization: nonsense",)):
        assert (await ask(running, headers=headers)).status == 200


MODELS = (ModelView("m", aliases=("also-m",)), ModelView("other"))


@pytest.mark.parametrize(("models", "status"), [((), 200), (("m",), 200), (("also-m",), 200), (("other",), 403)])
async def test_a_key_may_ask_only_for_its_models(engine, gateway, ask, models, status):
    behind = await engine(answers(USUAL))
    view = key_view(GOOD, models=models)
    running = await gateway(behind.view(), keys=(view,), keys_required=True, models=MODELS)
    answer = await ask(running, headers=(bearer(),))
    assert answer.status == status
    if status == 403:
        assert (error_of(answer)["code"], error_of(answer)["param"]) == ("model_not_allowed", "model")
    async with await running.connect() as client:
        tokens = await client.ask("POST", "/tokenize", b'{"model":"m","prompt":"x"}', (bearer(),))
        assert (tokens.status == 403) == (status == 403)
        listed = json.loads((await client.ask("GET", "/v1/models", headers=(bearer(),))).body)["data"]
        assert {entry["id"] for entry in listed} == (
            {"m", "other"} if not models else {"other"} if status == 403 else {"m"}
        )
        assert (await client.ask("GET", "/v1/models/m", headers=(bearer(),))).status == status


@pytest.mark.parametrize(
    ("classes", "asked", "got"),
    [
        ((), None, "standard"),
        ((), "interactive", "interactive"),
        ((), "streaming", "interactive"),
        ((), "Batch", "batch"),
        ((), "long", "long"),
        ((), "no-such-class", "standard"),
        (("batch",), "batch", "batch"),
        (("batch",), "interactive", "standard"),
        (("interactive",), "streaming", "interactive"),
    ],
)
async def test_a_class_is_had_by_those_who_may_and_the_answer_says_which(one, ask, classes, asked, got):
    running = await one(classes=classes)
    headers = (bearer(), *([f"X-Request-Type: {asked}"] if asked else []))
    answer = await ask(running, headers=headers)
    assert answer.headers["x-tidegate-class"] == got
    assert "x-request-type" not in running.engine.asked[0].headers


async def test_everybody_may_ask_for_every_built_in_class_where_no_key_is_required(engine, gateway, ask):
    running = await gateway((await engine()).view())
    assert (await ask(running, headers=("X-Request-Type: batch",))).headers["x-tidegate-class"] == "batch"
    assert (await ask(running)).headers["x-tidegate-class"] == "standard"


ACT_AS = ("X-Tidegate-Tenant: sales", "X-Tidegate-User: anna@example", "X-Tidegate-Class: batch", "X-Vllm-Priority: 0")


@pytest.fixture
def callers(monkeypatch):
    """Who asked, of every request that has ended."""
    seen = []

    def listen(running):
        ended = running.gateway.flights._record
        monkeypatch.setattr(running.gateway.flights, "_record", lambda record: (seen.append(record), ended(record)))
        return seen

    return listen


@pytest.mark.parametrize("service", [False, True])
async def test_only_a_service_key_speaks_for_another_tenant_user_and_class(one, ask, callers, service):
    running = await one(service=service)
    seen = callers(running)
    answer = await ask(running, headers=(bearer(), *ACT_AS), priority=5, chat_template="{{ evil }}")
    (record,) = seen
    caller = record.caller
    if service:
        assert (caller.tenant, caller.user, caller.key, record.klass) == ("sales", "anna@example", "k", "batch")
    else:
        assert (caller.tenant, caller.user, caller.key, record.klass) == ("t", "", "k", "standard")
    assert answer.headers["x-tidegate-class"] == record.klass
    (asked,) = running.engine.asked
    assert not [name for name in asked.headers if name.startswith(("x-tidegate", "x-vllm", "authorization"))]
    assert not {"priority", "chat_template"} & asked.json.keys()


async def test_our_own_service_is_known_where_no_key_is_required(engine, gateway, ask, callers):
    view = key_view(GOOD, service=True)
    running = await gateway((await engine()).view(), keys=(view,))
    seen = callers(running)
    await ask(running, headers=(bearer(), "X-Tidegate-Tenant: %E9%94%80%E5%94%AE%E9%83%A8"))
    await ask(running, headers=(bearer("another"), "X-Tidegate-Tenant: sales"))
    await ask(running, headers=("X-Tidegate-Tenant: sales",))
    assert [record.caller.tenant for record in seen] == ["销售部", "anonymous", "anonymous"]


@pytest.mark.parametrize(
    "header",
    ["X-Tidegate-Tenant: %00", "X-Tidegate-User: %FF", f"X-Tidegate-User: {'x' * 201}", "X-Tidegate-Class: royal"],
)
async def test_a_service_that_names_nobody_is_told_which_header(one, ask, header):
    answer = await ask(await one(service=True), headers=(bearer(), header))
    assert answer.status == 400
    assert error_of(answer)["param"] == header.partition(":")[0]


async def test_too_many_requests_are_told_when_to_come_back(one, ask):
    running = await one(requests_per_minute=2)
    first = await ask(running, headers=(bearer(),))
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"].endswith("s")
    await ask(running, headers=(bearer(),))
    refused = await ask(running, headers=(bearer(),))
    assert refused.status == 429
    assert error_of(refused)["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert 0 < int(refused.headers["retry-after-ms"]) <= 30_000
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(running.engine.asked) == 2


async def test_tokens_are_charged_as_the_engine_counted_them(one, ask):
    running = await one(tokens_per_minute=1_000)
    answer = await ask(running, headers=(bearer(),), max_tokens=500)
    left = int(answer.headers["x-ratelimit-remaining-tokens"])
    assert 400 < left < 500
    answer = await ask(running, headers=(bearer(),), max_tokens=900)
    assert answer.status == 200, "the 30 tokens of the first answer leave room"
    answer = await ask(running, headers=(bearer(),), max_tokens=950)
    assert answer.status == 429
    assert error_of(answer)["code"] == "tokens_limit_exceeded"


async def test_a_days_tokens_are_a_quota(one, ask):
    running = await one(tokens_per_day=60)
    assert (await ask(running, headers=(bearer(),), max_tokens=20)).status == 200
    refused = await ask(running, headers=(bearer(),), max_tokens=40)
    assert (refused.status, error_of(refused)["code"]) == (429, "insufficient_quota")
    assert int(refused.headers["retry-after"]) <= 86_400


async def test_a_stream_holds_its_place_until_its_last_byte_and_a_client_that_goes_gives_it_back(one):
    async def script(wire, asked):
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await wire.until_gone()

    running = await one(script, concurrent_streams=1)
    body = BODY[:-1] + b',"stream":true}'
    async with await running.connect() as first, await running.connect() as second:
        first.request("POST", CHAT, body, (bearer(),))
        await first.head()
        await first.chunk()
        refused = await second.ask("POST", CHAT, body, (bearer(),))
        assert (refused.status, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
        first.reset()
        quota = running.gateway.quotas.of(running.gateway.fleet.snapshot.keys[0])
        await until(lambda: quota.slots.taken == 0, "the place is free again")
        second.request("POST", CHAT, body, (bearer(),))
        assert (await second.head()).status == 200


async def test_a_request_that_nobody_could_serve_counts_for_nothing(engine, gateway, ask):
    view = key_view(GOOD, requests_per_minute=1, concurrent_streams=1, tokens_per_minute=1_000)
    behind = await engine(answers(USUAL))
    running = await gateway(keys=(view,), keys_required=True)
    for _ in range(3):
        assert (await ask(running, headers=(bearer(),))).status == 503
    snapshot = running.gateway.fleet.snapshot
    running.gateway.apply(type(snapshot)(2, snapshot.models, (behind.view(),), (view,), keys_required=True))
    assert (await ask(running, headers=(bearer(),))).status == 200


PROXIED = ("X-Forwarded-For: 203.0.113.7",)
TRUSTING = GatewayOptions(trusted_proxies=("127.0.0.0/8",))


@pytest.mark.parametrize(
    ("options", "headers", "status"),
    [
        (GatewayOptions(), (), 200),
        (GatewayOptions(), PROXIED, 403),
        (GatewayOptions(), ("X-Forwarded-For: 127.0.0.1",), 403),
        (TRUSTING, PROXIED, 403),
        (TRUSTING, ("X-Forwarded-For: 127.0.0.1",), 200),
        (TRUSTING, ("X-Forwarded-For: 127.0.0.1, 203.0.113.7",), 403),
        (TRUSTING, ("X-Real-IP: 127.0.0.1",), 403),
        (GatewayOptions(trusted_proxies=("127.0.0.0/8",), metrics_allow=("203.0.113.0/24",)), PROXIED, 200),
        (GatewayOptions(metrics_allow=("203.0.113.0/24",)), PROXIED, 403),
    ],
)
async def test_metrics_are_for_this_machine_wherever_a_trusted_proxy_stands(one, options, headers, status):
    running = await one(options=options)
    async with await running.connect() as client:
        assert (await client.ask("GET", "/metrics", headers=headers)).status == status


@pytest.mark.parametrize(
    ("options", "status"), [(GatewayOptions(), 403), (TRUSTING, 403), (GatewayOptions(allow_anonymous=True), 200)]
)
async def test_a_forwarded_request_without_a_key_is_refused_unless_that_was_asked_for(
    engine, gateway, ask, options, status
):
    running = await gateway((await engine()).view(), options=options)
    answer = await ask(running, headers=PROXIED)
    assert answer.status == status
    assert status == 200 or error_of(answer)["code"] == "forwarded_anonymous"


async def test_a_forwarded_request_with_its_key_is_served(one, ask):
    assert (await ask(await one(), headers=(bearer(), *PROXIED))).status == 200


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({}, 256),
        ({"max_tokens": 100}, 100),
        ({"max_tokens": None}, 256),
        ({"max_completion_tokens": 50, "max_tokens": 100}, 50),
        ({"max_tokens": 100, "n": 3}, 300),
        ({"max_tokens": 5_000}, 1_000),
    ],
)
async def test_a_request_takes_what_it_may_cost(engine, gateway, ask, fields, taken):
    """Its body's size, and the answers it asks for, none longer than the model's context."""
    view = key_view(GOOD, tokens_per_minute=10_000)
    behind = await engine(answers(USUAL))
    running = await gateway(behind.view(context_tokens=1_000), keys=(view,), keys_required=True)
    answer = await ask(running, headers=(bearer(),), **fields)
    assert answer.status == 200
    left = int(answer.headers["x-ratelimit-remaining-tokens"])
    assert taken < 10_000 - left < taken + 60
