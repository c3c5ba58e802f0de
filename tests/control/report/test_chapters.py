"""What a report says of samples, held to figures worked out by hand."""

import math

import msgspec
import pytest

from tidegate.control.report import capacity, drift, service, words
from tidegate.control.report.chapters import Asked, Installed, Profile
from tidegate.control.report.making import make
from tidegate.control.report.samples import ClassSample, ReplicaSample, Sample, TenantSample
from tidegate.gateway.metrics import BUCKETS_S, BUCKETS_TOKENS
from tidegate.types import ClassView

MIDNIGHT = 20_000 * 86_400.0


def counts(bounds=BUCKETS_S, **by_bound):
    """`_0_5=3` puts 3 in the bucket up to 0.5; `above=1` one past all."""
    found = [0] * (len(bounds) + 1)
    for name, count in by_bound.items():
        at = len(bounds) if name == "above" else bounds.index(float(name[1:].replace("_", ".")))
        found[at] = count
    return tuple(found)


def asked(*samples, **fields):
    return Asked(MIDNIGHT, MIDNIGHT + 3600, samples, **fields)


def minute(number=0, **fields):
    return Sample(MIDNIGHT + 60 * number, 60.0, **fields)


def test_load_is_told_by_hour_of_the_day_with_what_was_refused():
    samples = (
        minute(
            0, classes={"batch": ClassSample({"done": 50, "failed": 4}, 6)}, tenants={"t": TenantSample(54, 0, 120)}
        ),
        minute(60, classes={"batch": ClassSample({"done": 6})}),
        *(minute(60 * hour) for hour in range(2, 11)),
    )
    found = service.load(asked(*samples))
    assert found.figures["requests_per_s.00"] == 1.0
    assert found.figures["requests_per_s.01"] == 0.1
    assert found.figures["requests_per_s"] == pytest.approx(66 / 660)
    assert found.rows[0] == ("00:00", "1", "2", "1 min")
    assert found.setting == "pool.replicas_max"  # ten times the mean
    assert service.load(asked(samples[0])).setting == ""


def test_a_refused_request_has_not_held_its_target():
    klass = ClassSample({"done": 90}, 10, first_s=counts(_0_5=80, _1=10), queue_s=counts(_0_005=90))
    found = service.attainment(asked(minute(classes={"c": klass}), classes=[ClassView("c", first_token_s=0.5)]))
    assert found.figures == {"c.attained": 0.8}
    assert found.setting == "limits.token_s"
    waiting = msgspec.structs.replace(klass, queue_s=counts(_1=90))
    found = service.attainment(asked(minute(classes={"c": waiting}), classes=[ClassView("c", first_token_s=0.5)]))
    assert found.setting == "pool.replicas"


def test_a_target_that_was_held_needs_nothing():
    klass = ClassSample({"done": 100}, first_s=counts(_0_5=100), queue_s=counts(_0_005=100))
    found = service.attainment(asked(minute(classes={"c": klass}), classes=[ClassView("c", first_token_s=0.5)]))
    assert (found.figures, found.setting) == ({"c.attained": 1.0}, "")


def test_shares_over_one_second_are_of_first_bytes_and_of_whole_answers():
    klass = ClassSample({"done": 10}, first_s=counts(_1=9, _2_5=1), duration_s=counts(_1=4, _30=6))
    sample = minute(classes={"c": klass})
    found = service.over_1_s(asked(sample, classes=[ClassView("c", first_token_s=0.5)]))
    assert found.figures == {"c.first": 0.1, "c.whole": 0.6}
    assert found.setting == "class.max_wait_s"
    assert service.over_1_s(asked(sample, classes=[ClassView("c")])).setting == ""  # nobody is in a hurry


def test_refusals_are_shares_of_all_that_came():
    found = service.refusals(asked(minute(classes={"c": ClassSample({"done": 95, "failed": 1}, 4)})))
    assert found.figures == {"c.refused": 4, "c.refused_share": 0.04, "c.failed": 1}
    assert found.setting == "pool.replicas"


def test_moves_of_limits_are_counted_from_minute_to_minute():
    limits = (8, 9, 9, 7, 8, None, 8)
    samples = [minute(number, replicas={"p-0": ReplicaSample(limit)}) for number, limit in enumerate(limits)]
    found = capacity.limits(asked(*samples))
    assert found.rows == (("p-0", "8", "8", "7", "9", "2", "1"),)
    assert found.setting == "limits.kind"  # three moves in seven minutes


def test_a_gpu_that_idles_while_requests_wait_asks_for_a_higher_limit():
    samples = (minute(0, gpus={"g": 0.3}, queued=5.0), minute(1, gpus={"g": 0.9}))
    found = capacity.gpus(asked(*samples))
    assert found.figures == {"waiting_share": 0.5, "g.use": 0.6, "g.use_while_waiting": 0.3}
    assert found.setting == "limits.sequences"
    assert "30.0 % busy" in found.text
    busy = (minute(0, gpus={"g": 0.95}, queued=5.0), minute(1, gpus={"g": 0.1}))
    assert capacity.gpus(asked(*busy)).setting == ""


def test_engines_for_the_peak_are_its_tokens_by_those_of_an_engine_at_its_knee():
    full = {"p-0": ReplicaSample(10, 9.0, 60.0)}
    samples = (
        minute(0, replicas=full, tenants={"t": TenantSample(10, 0, 6000)}, classes={"c": ClassSample({"done": 10})}),
        minute(
            1, replicas=full, tenants={"t": TenantSample(10, 0, 6000)}, classes={"c": ClassSample({"done": 10}, 10)}
        ),
    )
    found = capacity.engines(asked(*samples))
    # 100 tokens/s served, 200 asked for with as many refused as served; 200 / (100 * 0.8) = 2.5
    assert (found.figures["peak_tokens_per_s"], found.figures["engine_tokens_per_s"]) == (200.0, 100.0)
    assert (found.figures["engines"], found.figures["engines_now"]) == (3, 1)
    assert found.advice == "set pool.replicas = 3"
    profile = Profile("tuned", tokens_per_s=250.0, default_tokens_per_s=50.0, gpus=2)
    told = capacity.engines(asked(*samples, profile=profile)).figures
    assert (told["engines"], told["gpus"]) == (1, 2)
    assert (told["engines_with_defaults"], told["gpus_with_defaults"]) == (5, 10)


def test_an_engine_that_was_never_full_is_no_reason_to_take_one_away():
    calm = {name: ReplicaSample(10, 1.0, 60.0) for name in ("p-0", "p-1")}
    sample = minute(replicas=calm, tenants={"t": TenantSample(1, 0, 60)}, classes={"c": ClassSample({"done": 1})})
    assert capacity.engines(asked(sample)).setting == ""


def test_engine_seconds_are_shared_out_by_how_long_engines_had_whose_requests():
    tenants = {"a": TenantSample(10, 0, 0, 90.0), "b": TenantSample(100, 0, 0, 30.0)}
    found = capacity.costs(asked(minute(replicas={"p-0": ReplicaSample(busy_s=40.0)}, tenants=tenants)))
    assert found.figures == {
        "a.gpu_s": 30.0,
        "a.gpu_s_per_1000_requests": 3000.0,
        "b.gpu_s": 10.0,
        "b.gpu_s_per_1000_requests": 100.0,
    }
    assert found.setting == "tenant.weight"


def test_the_stability_index_is_that_of_its_formula():
    one, other = counts(BUCKETS_TOKENS, _64=500, _128=500), counts(BUCKETS_TOKENS, _64=250, _128=750)
    assert drift.stability(one, other) == pytest.approx(-0.25 * math.log(0.5) + 0.25 * math.log(1.5))
    assert drift.stability(one, one) == 0.0
    assert drift.stability(one, counts(BUCKETS_TOKENS, _64=100)) is None  # too few
    assert drift.stability((1000,), one) is None  # other buckets


def test_lengths_that_drifted_ask_for_a_new_profile():
    profile = Profile(
        "p", prompt_tokens=counts(BUCKETS_TOKENS, _64=1000), answer_tokens=counts(BUCKETS_TOKENS, _64=1000)
    )
    klass = ClassSample(
        prompt_tokens=counts(BUCKETS_TOKENS, _4096=1000), answer_tokens=counts(BUCKETS_TOKENS, _64=1000)
    )
    found = drift.lengths(asked(minute(classes={"c": klass}), profile=profile))
    assert "of prompts are others" in found.text
    assert found.advice == "tune the profile anew"
    assert found.figures["answers.stability_index"] == 0.0
    assert "no profile" in drift.lengths(asked(minute(classes={"c": klass}))).text


def test_what_is_outdated_is_named_with_its_command():
    found = drift.outdated(
        asked(
            installed=[Installed("engine", "vllm", "0.31.0", "0.32.0", "run it"), Installed("model", "m", "a", "a", "")]
        )
    )
    assert (found.figures, found.advice) == ({"outdated": 1}, "run it")


def test_a_report_of_nothing_is_whole_in_its_chapters_and_partial_in_its_time():
    made = make(asked(partial=("interrupted",)))
    assert made.partial == ("interrupted", "there are samples of 0.0 % of the time")
    assert all(one.text and one.advice for one in made.chapters)


def test_every_form_has_every_chapter_and_escapes_what_tenants_call_themselves():
    tenants = {"<b>|x": TenantSample(10, 5, 5, 9.0), "b": TenantSample(1, 1, 1, 1.0)}
    klass = ClassSample({"done": 11}, first_s=counts(_1=11), duration_s=counts(_1=11), queue_s=counts(_1=11))
    samples = [
        minute(60 * hour, classes={"c": klass}, replicas={"p-0": ReplicaSample(4, 1.0, 30.0)}, tenants=tenants)
        for hour in range(2)
    ]
    made = make(asked(*samples))
    for form in (words.text, words.markdown, words.html):
        told = form(made).lower()
        assert all(chapter.subject.lower() in told for chapter in made.chapters)
        assert "partial" in told
    page = words.html(made)
    assert "<b>|x" not in page
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<b>\\|x" in words.markdown(made)
