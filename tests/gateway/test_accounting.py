"""Every request is counted once, whatever becomes of the reports that carry the counts away."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidegate.gateway.access_log import AccessLog
from tidegate.gateway.accounting import BATCH, CELLS_MAX, REFUSED_LINES_PER_S, Accounting
from tidegate.gateway.line_file import QUEUE_BATCHES
from tidegate.gateway.metrics import MODELS_MAX, REFUSALS_MAX, Metrics
from tidegate.gateway.record import ANONYMOUS, Caller, Ended
from tidegate.gateway.request_files import RequestFiles
from tidegate.gateway.trace_log import TraceLog
from tidegate.gateway.usage_sums import ROWS_MAX
from tidegate.types import FleetSnapshot, GatewayOptions, LineFileOptions, Outcome

NOON = 1_790_000_000 // 86_400 * 86_400 + 43_200
DAY = "2026-09-21"


def ended(**fields):
    given = {
        "id": "req-1",
        "at_s": NOON,
        "caller": Caller("sales"),
        "klass": "interactive",
        "model": "m",
        "replica": "p-0",
        "path": "/v1/chat/completions",
        "status": 200,
        "outcome": Outcome.DONE,
        "stream": True,
        "queue_s": 0.0,
        "first_s": 0.02,
        "total_s": 1.02,
        "prompt_tokens": 5,
        "completion_tokens": 11,
        **fields,
    }
    return Ended(**given)


def made(**options):
    accounting = Accounting(Metrics())
    accounting.apply(FleetSnapshot(number=1, options=GatewayOptions(**options)))
    return accounting


def samples(accounting):
    families = accounting._metrics.collect()
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def total(accounting, name):
    return sum(value for (sample, _), value in samples(accounting).items() if sample == name)


def test_an_end_is_in_the_metrics_with_its_times_and_tokens():
    accounting = made()
    accounting.ended(ended())
    accounting.ended(ended(queue_s=0.3))
    found = samples(accounting)
    of = (("class", "interactive"), ("model", "m"))
    assert found["tidegate_requests_total", (*of, ("outcome", "done"), ("status", "200"))] == 2
    for name, value in (
        ("request_duration_seconds", 2.04),
        ("time_to_first_byte_seconds", 0.04),
        ("queue_seconds", 0.3),
        ("stream_tokens_per_second", 20.0),
    ):
        assert found[f"tidegate_{name}_count", of] == 2
        assert abs(found[f"tidegate_{name}_sum", of] - value) < 1e-9
    assert found["tidegate_queue_seconds_bucket", (of[0], ("le", "0.005"), of[1])] == 1
    assert found["tidegate_time_to_first_byte_seconds_bucket", (of[0], ("le", "0.025"), of[1])] == 2
    tokens = (*of, ("tenant", "sales"))
    assert found["tidegate_prompt_tokens_total", tokens] == 10
    assert found["tidegate_completion_tokens_total", tokens] == 22


def test_what_an_engine_did_not_count_adds_nothing():
    accounting = made()
    accounting.ended(ended(prompt_tokens=None, completion_tokens=None, first_s=None, outcome=Outcome.CANCELLED))
    (usage,) = accounting.take_usage()
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 0, 0)
    assert total(accounting, "tidegate_time_to_first_byte_seconds_count") == 0
    assert total(accounting, "tidegate_request_duration_seconds_count") == 1


def test_usage_is_taken_once_and_by_the_utc_day_on_which_it_ended():
    accounting = made()
    accounting.ended(ended(at_s=NOON + 43_199.9))
    accounting.ended(ended(at_s=NOON + 43_200))
    accounting.ended(ended(at_s=NOON + 43_201, status=404))
    taken = accounting.take_usage()
    assert [(one.day, one.requests, one.prompt_tokens) for one in taken] == [(DAY, 1, 5), ("2026-09-22", 2, 10)]
    assert accounting.take_usage() == ()


EVENT = st.one_of(
    st.tuples(
        st.just("end"),
        st.sampled_from(("a", "b")),
        st.sampled_from(Outcome),
        st.integers(0, 3),
        st.none() | st.integers(0, 100),
    ),
    st.just(("take",)),
    st.just(("lost",)),
)


@given(st.lists(EVENT, max_size=60))
def test_reports_add_up_to_what_ended_under_any_order_of_reports_and_failures(events):
    accounting, told, real = made(), Counter(), Counter()

    def deliver(usage):
        for one in usage:
            key = (one.day, one.tenant, one.outcome)
            told.update(
                {(*key, "n"): one.requests, (*key, "in"): one.prompt_tokens, (*key, "out"): one.completion_tokens}
            )

    for kind, *rest in events:
        if kind == "end":
            tenant, outcome, day, tokens = rest
            at_s = NOON + day * 86_400
            accounting.ended(
                ended(caller=Caller(tenant), outcome=outcome, at_s=at_s, prompt_tokens=tokens, completion_tokens=tokens)
            )
            key = (f"2026-09-{21 + day}", tenant, outcome)
            real.update({(*key, "n"): 1, (*key, "in"): tokens or 0, (*key, "out"): tokens or 0})
        else:
            usage = accounting.take_usage()
            deliver(usage) if kind == "take" else accounting.give_back(usage)
    deliver(accounting.take_usage())
    assert {key: count for key, count in told.items() if count} == {key: count for key, count in real.items() if count}
    assert total(accounting, "tidegate_requests_total") == sum(event[0] == "end" for event in events)


def test_while_nobody_takes_it_usage_is_bounded_and_nothing_is_lost():
    accounting = made()
    many = ROWS_MAX + 500
    for number in range(many):
        accounting.ended(ended(caller=Caller(f"t{number}")))
    usage = accounting.take_usage()
    assert len(usage) == ROWS_MAX + 1
    assert {one.tenant: one.requests for one in usage}["other"] == 500
    assert sum(one.requests for one in usage) == many
    assert len(accounting._cells) <= CELLS_MAX


def test_tenants_have_metrics_of_their_own_up_to_a_bound():
    accounting = made(metrics_tenants_max=2)
    for tenant in ("a", "b", "c", "d", "a"):
        accounting.ended(ended(caller=Caller(tenant)))
    found = {dict(labels)["tenant"]: n for (name, labels), n in samples(accounting).items() if "prompt_tokens" in name}
    assert found == {"a": 10, "b": 5, "other": 10}
    assert {one.tenant for one in accounting.take_usage()} == {"a", "b", "c", "d"}, "the table keeps them apart"


def test_no_label_makes_endless_series():
    accounting = made()
    for number in range(MODELS_MAX + 50):
        accounting.ended(ended(model=f"m{number}", klass=f"c{number}", status=200 + number))
        accounting.refused(at_s=NOON, request_id="r", caller=ANONYMOUS, path="/", status=404, code=f"c{number}")
    names = [dict(labels) for name, labels in samples(accounting) if name == "tidegate_requests_total"]
    assert len({one["model"] for one in names}) == MODELS_MAX + 1
    assert {one["status"] for one in names} == {
        "200",
        "2xx",
        "3xx",
        "4xx",
        *map(str, (400, 401, 403, 404, 405)),
        *(str(n) for n in (408, 409, 413, 415, 422, 429, 431)),
    }
    assert total(accounting, "tidegate_requests_refused_total") == MODELS_MAX + 50
    assert len(accounting._metrics.refused) <= REFUSALS_MAX + 1


def logging_accounting(tmp_path):
    log = AccessLog(tmp_path / "access.log")
    log._run = lambda: None  # nobody empties the queue
    accounting = Accounting(Metrics(), RequestFiles(log, TraceLog(tmp_path / "trace.jsonl")))
    accounting.apply(FleetSnapshot(number=1, access_log=LineFileOptions(enabled=True)))
    return accounting, log


def test_refused_requests_get_a_few_lines_a_second_and_are_all_counted(tmp_path):
    accounting, log = logging_accounting(tmp_path)
    for second in (0, 1):
        for number in range(1000):
            at_s = NOON + second + number / 1001
            accounting.refused(at_s=at_s, request_id="r", caller=ANONYMOUS, path=f"/{number}", status=404, code="x")
    accounting.settle()
    assert b"".join(log.queue).count(b"\n") == 2 * REFUSED_LINES_PER_S
    assert log.dropped["rate"] == 2000 - 2 * REFUSED_LINES_PER_S
    assert accounting._metrics.refused == {(404, "x"): 2000}


def test_a_log_that_nobody_empties_is_bounded_and_what_it_misses_is_counted(tmp_path):
    accounting, log = logging_accounting(tmp_path)
    for _ in range(QUEUE_BATCHES * BATCH + 7):
        accounting.ended(ended())
    assert samples(accounting)["tidegate_access_log_dropped_total", (("reason", "full"),)] == 7
    assert b"".join(log.queue).count(b"\n") == QUEUE_BATCHES * BATCH


def test_without_a_log_nothing_waits_for_one(tmp_path):
    accounting, log = logging_accounting(tmp_path)
    accounting.apply(FleetSnapshot(number=2, access_log=LineFileOptions(enabled=False)))
    accounting.ended(ended())
    accounting.settle()
    assert not log.queue
