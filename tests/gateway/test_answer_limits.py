"""How long an answer may be: what the engine is asked for, by class, tenant and model."""

import pytest

from gateway.byte_engine import answers
from gateway.conftest import key_view
from gateway.held import ANSWER
from tidegate.types import ClassView, ModelView, Sampling, TenantView

GOOD = "sk-tg-limits-limits-limits"
SHOWN = (f"Authorization: Bearer {GOOD}",)


@pytest.mark.parametrize(
    "case",
    [
        ({"max_tokens": 50}, {}, None, {}, {"max_tokens": 50}),
        ({"max_tokens": 50}, {}, None, {"max_tokens": None}, {"max_tokens": 50}),
        ({"max_tokens": 50}, {}, None, {"max_completion_tokens": None}, {"max_completion_tokens": 50}),
        ({"max_tokens": 50}, {}, None, {"max_tokens": 80}, {"max_tokens": 80}),
        ({"max_tokens": 50}, {}, None, {"max_completion_tokens": 80}, {"max_completion_tokens": 80}),
        ({"max_tokens": 50}, {"max_tokens": 40}, None, {}, {"max_tokens": 40}),
        ({}, {"max_tokens": 40}, None, {}, {"max_tokens": 40}),
        ({"max_tokens": 50}, {}, 70, {}, {"max_tokens": 50}),
        ({}, {}, 70, {}, {"max_tokens": 70}),
        ({}, {}, 70, {"max_tokens": None}, {"max_tokens": 70}),
        ({"max_tokens_most": 60}, {}, 70, {}, {"max_tokens": 60}),
        ({"max_tokens_most": 60}, {}, 30, {}, {"max_tokens": 30}),
        ({"max_tokens_most": 60}, {}, None, {}, {"max_tokens": 60}),
        ({"max_tokens_most": 60}, {}, None, {"max_tokens": 61}, {"max_tokens": 60}),
        ({"max_tokens_most": 60}, {}, None, {"max_tokens": 60}, {"max_tokens": 60}),
        ({"max_tokens_most": 60}, {}, None, {"max_completion_tokens": 900}, {"max_completion_tokens": 60}),
        ({"max_tokens_most": 60}, {"max_tokens_most": 20}, None, {"max_tokens": 900}, {"max_tokens": 20}),
        ({"max_tokens": 50, "max_tokens_most": 20}, {}, None, {}, {"max_tokens": 20}),
        ({"max_tokens_most": 60}, {}, None, {"max_tokens": 10**18}, {"max_tokens": 60}),
        (
            {"max_tokens_most": 60},
            {},
            None,
            {"max_tokens": 900, "max_completion_tokens": 800},
            {"max_tokens": 60, "max_completion_tokens": 60},
        ),
        ({}, {}, None, {}, {}),
    ],
)
async def test_the_engine_is_asked_for_no_more_than_class_and_tenant_allow(engine, gateway, ask, case):
    """The client's word, else the default of class or tenant, else the model's; and at most what is allowed.

    A case: what is set for the class, for the tenant, for the model; what the client says; what the engine was sent.
    """
    klass, tenant, model, fields, got = case
    behind = await engine(answers(ANSWER))
    running = await gateway(
        behind.view(),
        models=(ModelView("m", defaults=Sampling(max_tokens=model)),),
        keys=(key_view(GOOD),),
        keys_required=True,
        classes=(ClassView("standard", **klass),),
        rules=(),
        tenants=(TenantView("t", **tenant), TenantView("other", max_tokens_most=1)),
    )
    assert (await ask(running, headers=SHOWN, **fields)).status == 200
    (asked,) = behind.asked
    assert {name: asked.json[name] for name in ("max_tokens", "max_completion_tokens") if name in asked.json} == got
