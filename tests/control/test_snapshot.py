import pytest

from tidegate.config import GatewaySettings, load
from tidegate.control.plan import Plan, make_plan, with_defaults
from tidegate.control.snapshot import PENDING_URL, Keys, ReplicaStatus, build, keys_required
from tidegate.engines.base import EngineFacts
from tidegate.types import DialectName, KeyView, ModelView, ReplicaState

KEY = KeyView(digest="k", name="lan", tenant="default")
SERVICE = KeyView(digest="s", name="chat", tenant="service", service=True)


@pytest.fixture
def plan():
    return make_plan(
        with_defaults(load(None, {"pool": [{"name": "p", "model": "m", "engine": "fake", "replicas": 2}]})), {}
    )


def test_replicas_that_are_still_coming_are_told_too(plan):
    ready = ReplicaStatus(
        ReplicaState.READY,
        "http://127.0.0.1:1",
        DialectName.VLLM,
        "secret",
        EngineFacts(4, 2048, 0.1, served_name="m0"),
    )
    snapshot = build(7, settings=GatewaySettings(), plan=plan, status={"p-1": ready}, keys=Keys(), service=(SERVICE,))
    coming, there = snapshot.replicas
    assert (snapshot.number, snapshot.keys) == (7, (SERVICE,))
    assert (coming.state, coming.url) == (ReplicaState.STARTING, PENDING_URL)
    assert (there.state, there.url, there.slots, there.served_name) == (ReplicaState.READY, ready.url, 4, "m0")
    assert there.api_key == "secret"


@pytest.mark.parametrize(
    ("listen", "anonymous", "keys", "required"),
    [
        ("127.0.0.1:8000", False, Keys(), False),
        ("127.0.0.1:8000", False, Keys((KEY,), required=True), True),
        ("0.0.0.0:8000", False, Keys((KEY,), required=True), True),
        ("0.0.0.0:8000", False, Keys(), True),
        ("0.0.0.0:8000", True, Keys(), False),
        ("[::1]:8000", False, Keys(), False),
        ("localhost:8000", False, Keys(), False),
    ],
)
def test_keys_are_required_from_the_first_on_and_wherever_others_can_connect(listen, anonymous, keys, required):
    assert keys_required(GatewaySettings(listen=listen, allow_anonymous=anonymous), keys) is required


def test_classes_rules_tenants_and_limits_are_told_whole_whatever_the_number_of_processes():
    settings = load(
        None,
        {
            "gateway": {"processes": 3},
            "model": [{"name": "m", "aliases": ["Also"]}],
            "class": [{"name": "premium", "weight": 9}],
            "rule": [{"class": "premium", "model": "aLSO"}, {"class": "batch", "model": "gone"}],
            "tenant": [{"name": "sales", "weight": 2}],
            "limits": {"kind": "fixed", "sequences": 9, "queue_requests": 10},
        },
        {},
    )
    policy, plan = settings.policy(), Plan(models=(ModelView("m", aliases=("Also",)),))
    snapshot = build(1, settings=settings.gateway, plan=plan, status={}, keys=Keys(), policy=policy)
    assert (snapshot.classes, snapshot.tenants, snapshot.limits) == (policy.classes, policy.tenants, policy.limits)
    assert snapshot.limits.queue_requests == 10
    assert [rule.model for rule in snapshot.rules[:3]] == ["m", "gone", None], "an alias becomes the model's name"
    assert snapshot.rules[2:] == policy.rules[2:]


@pytest.mark.parametrize(("processes", "connections"), [(1, 10), (2, 5), (3, 4), (20, 1)])
def test_limits_of_the_port_are_shared_out_among_its_processes_and_others_are_not(processes, connections):
    settings = GatewaySettings(max_connections=10, max_headers=77, processes=processes)
    options = build(1, settings=settings, plan=Plan(), status={}, keys=Keys()).options
    assert (options.max_connections, options.max_headers) == (connections, 77)
