"""Of which class a request is, and where that is told: on answers, in the access log, in metrics and in usage."""

import pytest

from gateway.byte_engine import answers
from gateway.conftest import CHAT, key_view
from gateway.held import ANSWER, Held, chat, fixed
from gateway.wire import until
from tidegate.types import CLASSES, RULES, ClassView, ModelView, RuleView, Sampling

GOOD = "sk-tg-classes-classes-classes"
SHOWN = f"Authorization: Bearer {GOOD}"


@pytest.fixture
async def serve(engine, gateway):
    """`await serve(snapshot…)`: a gateway before an engine that answers everything."""

    async def start(script=None, **snapshot):
        behind = await engine(script or answers(ANSWER))
        return await gateway(behind.view(), **snapshot)

    return start


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("streaming", "interactive"),
        ("interactive", "interactive"),
        ("batch", "batch"),
        ("BATCH", "batch"),
        ("long", "long"),
        ("no-such-class", "standard"),
    ],
)
async def test_the_header_asks_for_a_class_and_the_answer_says_which(serve, ask, asked, got):
    answer = await ask(await serve(), headers=(f"X-Request-Type: {asked}",))
    assert (answer.status, answer.headers["x-tidegate-class"]) == (200, got)


@pytest.mark.parametrize(
    ("classes", "asked", "got"),
    [
        ((), "batch", "batch"),
        ((), "night", "standard"),
        (("night",), "night", "night"),
        (("night",), "batch", "standard"),
    ],
)
async def test_a_key_without_classes_has_the_built_in_ones_and_one_with_classes_has_those(
    serve, ask, classes, asked, got
):
    running = await serve(
        keys=(key_view(GOOD, classes=classes),),
        keys_required=True,
        classes=(*CLASSES, ClassView("night")),
        rules=(RuleView("night", request_type="night"), *RULES),
    )
    answer = await ask(running, headers=(SHOWN, f"X-Request-Type: {asked}"))
    assert answer.headers["x-tidegate-class"] == got


@pytest.mark.parametrize(
    ("service", "got"), [(True, "batch"), (False, "interactive")], ids=["a service", "somebody else"]
)
async def test_only_a_service_sets_a_class_whatever_the_rules_say(serve, ask, service, got):
    running = await serve(keys=(key_view(GOOD, service=service),), keys_required=True)
    headers = (SHOWN, "X-Tidegate-Class: batch", "X-Request-Type: interactive")
    assert (await ask(running, headers=headers)).headers["x-tidegate-class"] == got


@pytest.mark.parametrize(
    ("rule", "fields", "other"),
    [
        (RuleView("batch", tenant="t"), {}, None),
        (RuleView("batch", model="m"), {}, None),
        (RuleView("batch", path=CHAT), {}, None),
        (RuleView("batch", prompt_tokens_from=100), {"user": "x" * 600}, {}),
        (RuleView("batch", max_tokens_from=500), {"max_tokens": 500}, {"max_tokens": 499}),
        (RuleView("batch", max_tokens_from=500), {"max_completion_tokens": 500}, {}),
        (RuleView("batch", stream=True), {"stream": True}, {}),
        (RuleView("batch", tenant="somebody else"), None, {}),
        (RuleView("batch", model="other"), None, {}),
        (RuleView("batch", path="/v1/completions"), None, {}),
    ],
)
async def test_a_rule_holds_for_what_is_all_that_it_says(serve, ask, rule, fields, other):
    """By tenant, model, path, size of the prompt, longest answer, stream; `other` is a request that it is not for."""
    running = await serve(keys=(key_view(GOOD),), keys_required=True, rules=(rule, *RULES))
    if fields is not None:
        assert (await ask(running, headers=(SHOWN,), **fields)).headers["x-tidegate-class"] == "batch"
    if other is not None:
        assert (await ask(running, headers=(SHOWN,), **other)).headers["x-tidegate-class"] == "standard"


async def test_a_rule_on_the_longest_answer_is_not_for_who_does_not_say(serve, ask):
    """The model's default is not the client's word."""
    models = (ModelView("m", defaults=Sampling(max_tokens=900)),)
    running = await serve(models=models, rules=(RuleView("batch", max_tokens_from=500), *RULES))
    assert (await ask(running)).headers["x-tidegate-class"] == "standard"
    assert (await ask(running, max_tokens=600)).headers["x-tidegate-class"] == "batch"


async def test_the_first_rule_that_matches_holds(serve, ask):
    rules = (RuleView("long", model="m"), RuleView("batch", model="m"), *RULES)
    assert (await ask(await serve(rules=rules))).headers["x-tidegate-class"] == "long"


async def test_json_stream_and_refusal_say_their_class_and_how_long_they_waited(serve):
    held = Held()
    running = await serve(held, limits=fixed(1, queue_requests=1))
    async with await running.connect() as one, await running.connect() as two, await running.connect() as three:
        one.request("POST", CHAT, chat(), ("X-Request-Type: long",))
        await until(lambda: len(held.gates) == 1)
        two.request("POST", CHAT, chat(stream=True))
        line = running.gateway.lines.of("m")
        await until(lambda: len(line.queue) == 1)
        since = running.gateway.now()
        refused = await three.ask("POST", CHAT, chat(), ("X-Request-Type: batch",))
        assert (refused.status, refused.headers["x-tidegate-class"]) == (429, "batch")
        await until(lambda: running.gateway.now() - since > 0.02)
        held.open()
        first = await one.answer()
        await until(lambda: len(held.gates) == 2)
        held.open()
        second = await two.answer()
    assert (first.headers["x-tidegate-class"], first.headers["x-tidegate-queue-ms"]) == ("long", "0")
    assert second.headers["x-tidegate-class"] == "standard"
    assert int(second.headers["x-tidegate-queue-ms"]) >= 20


async def test_the_class_is_in_metrics_in_usage_and_in_what_control_is_told(serve, ask):
    running = await serve()
    assert (await ask(running, headers=("X-Request-Type: batch",))).status == 200
    async with await running.connect() as client:
        metrics = (await client.ask("GET", "/metrics")).body.decode()
    lines = [line for line in metrics.splitlines() if line.startswith("tidegate_requests_total{")]
    assert any('class="batch"' in line and line.endswith(" 1.0") for line in lines), lines
    report = running.gateway.report()
    assert [usage.klass for usage in report.usage] == ["batch"]
    assert {one.name: one.done for one in report.classes if one.done} == {"batch": 1}


async def test_the_class_is_in_the_record_that_the_access_log_is_written_from(serve, ask, monkeypatch):
    running = await serve()
    seen = []
    ended = running.gateway.flights._record
    monkeypatch.setattr(running.gateway.flights, "_record", lambda record: (seen.append(record), ended(record)))
    await ask(running, headers=("X-Request-Type: long",))
    assert [record.klass for record in seen] == ["long"]
