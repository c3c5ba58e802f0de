"""The pure parts of `tidegate bench`: arrivals, lengths, prompts, figures, SLOs, knees, traces, summaries."""

import itertools
import json
import math
import random
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.bench import arrivals, figures, knee, lengths, probe, prompts, summary, trace, workload
from tidegate.bench.driver import UNFINISHED
from tidegate.bench.results import Use
from tidegate.bench.samples import Sample
from tidegate.bench.slo import Slo
from tidegate.bench.svg import chart
from tidegate.bench.wire import explanation
from tidegate.errors import SettingError

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


def sample(at=0.0, *, first=0.1, last=0.3, end=0.3, tokens=3, kind="", klass=""):
    """Times of `first`, `last` and `end` from the start."""
    one = Sample(at, klass)
    one.first, one.last, one.end, one.output_tokens, one.prompt_tokens, one.events = (
        first,
        last,
        end,
        tokens,
        10,
        tokens,
    )
    one.kind = kind
    return one


# figures


def test_quantiles_of_ten_values_are_those_worked_out_by_hand():
    """1 to 10: place 4.5 is 5.5, place 8.1 is 9.1, place 8.91 is 9.91."""
    told = figures.spread([10, 9, 8, 7, 6, 5, 4, 3, 2, 1])
    assert told == figures.Spread(10, 5.5, 5.5, pytest.approx(9.1), pytest.approx(9.91), 10)


def test_an_interval_of_three_repeats_is_that_of_students_t():
    """Mean 12, deviation 2, t(2) = 4.303: 12 ± 4.303 · 2 / √3."""
    told = figures.interval([10.0, 12.0, 14.0])
    half = 4.303 * 2 / math.sqrt(3)
    assert (told.mean, told.low, told.high) == (12, pytest.approx(12 - half), pytest.approx(12 + half))
    assert figures.interval([1.0]) is None
    assert figures.spread([]) is None
    assert figures.curve([]) == []


def test_intervals_hold_the_true_mean_in_95_of_100():
    drawn = random.Random(3)
    held = 0
    for _ in range(2000):
        told = figures.interval([drawn.gauss(5, 1) for _ in range(4)])
        held += told.low <= 5 <= told.high
    assert 1860 <= held <= 1940


@given(VALUES)
def test_quantiles_are_in_order_within_the_values_and_as_statistics_has_them(values):
    told = figures.spread(values)
    assert min(values) <= told.p50 <= told.p90 <= told.p99 <= told.most == max(values)
    if len(values) > 1:
        assert told.p90 == pytest.approx(statistics.quantiles(values, n=10, method="inclusive")[8])
        assert told.p99 == pytest.approx(statistics.quantiles(values, n=100, method="inclusive")[98])


# arrivals


@given(st.floats(0.1, 5000), st.integers(0, 1000), st.sampled_from(["poisson", "steady", "bursts:7"]))
def test_times_ascend_and_come_at_the_rate(rate, seed, written):
    times = list(itertools.islice(arrivals.parse(written)(rate, random.Random(seed)), 3500))
    assert times == sorted(times)
    assert times[0] >= 0
    assert 3500 / times[-1] == pytest.approx(rate, rel=0.25)


def test_poisson_gaps_are_spread_like_an_exponential():
    """Deviation as large as the mean; steady ones have none."""
    times = list(itertools.islice(arrivals.poisson(10, random.Random(1)), 20_000))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.1, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.1, rel=0.03)


def test_a_burst_comes_at_one_moment():
    times = list(itertools.islice(arrivals.bursts(5)(10, random.Random(1)), 20))
    assert [len(list(group)) for _, group in itertools.groupby(times)] == [5, 5, 5, 5]


def test_a_ramp_goes_in_equal_steps():
    assert arrivals.Ramp.parse("10:40:4").rates() == [10, 20, 30, 40]
    assert len(arrivals.Ramp.parse("1:2").rates()) == 8


# lengths


@given(st.sampled_from(["512", "uniform:3-9", "lognormal:200,0.6", "lognormal:50,2,80"]), st.integers())
def test_lengths_keep_their_bounds(written, seed):
    drawn = [lengths.parse("--input", written)(random.Random(seed)) for _ in range(20)]
    assert all(1 <= one <= lengths.MOST_TOKENS for one in drawn)
    bounds = {"512": (512, 512), "uniform:3-9": (3, 9), "lognormal:50,2,80": (1, 80)}.get(written)
    assert bounds is None or all(bounds[0] <= one <= bounds[1] for one in drawn)


def test_half_of_lognormal_lengths_are_below_the_median():
    draw, drawn = lengths.lognormal(200, 0.6), random.Random(5)
    values = [draw(drawn) for _ in range(4000)]
    assert statistics.median(values) == pytest.approx(200, rel=0.05)
    assert statistics.mean(values) == pytest.approx(200 * math.exp(0.18), rel=0.05)


# prompts


@given(st.integers(1, 3000), st.integers())
def test_prose_has_exactly_as_many_characters_as_asked(characters, seed):
    assert len(prompts.Prose(random.Random(1)).text(characters, random.Random(seed))) == characters


def test_no_two_prompts_begin_alike():
    """Neither prose nor questions: a server's prefix cache would answer for the model."""
    drawn = random.Random(2)
    prose, questions = prompts.Prose(drawn), prompts.Questions()
    assert len({prose.text(200, drawn)[:12] for _ in range(500)}) > 490
    assert len({questions.text(drawn) for _ in range(500)}) > 490
    assert len(prompts.lines("service_zh.txt")) >= 40
    assert all("{n}" in line for line in prompts.lines("service_zh.txt"))


@given(st.floats(0.1, 4), st.integers(0, 60), st.integers(80, 5000))
def test_sizes_fitted_to_two_texts_give_prompts_of_the_tokens_asked(per_character, fixed, wanted):
    def counted(characters):
        return round(fixed + per_character * characters)

    sizes = prompts.Sizes.fit((100, counted(100)), (400, counted(400)))
    assert counted(sizes.characters(wanted)) == pytest.approx(wanted, rel=0.05, abs=per_character + 2)


def test_counts_that_make_no_sense_are_not_fitted():
    assert prompts.Sizes.fit((100, 5), (400, 5)) is None


# requests


def drawn_workload(**changes):
    wire = workload.Wire(b"h:1", "m", **changes.pop("wire", {}))
    asked = {
        "prompt": lengths.fixed(50), "output": lengths.fixed(7), "sizes": prompts.Sizes(0, 1),
        "classes": {}, "prefix": None, "seed": 1,
    }  # fmt: skip
    return workload.Workload(wire, **(asked | changes))


def bodies(planned):
    return [json.loads(one.request.partition(b"\r\n\r\n")[2]) for one in planned]


def test_the_same_seed_gives_the_same_requests_and_another_one_others():
    first, again, other = ([one.request for one in drawn_workload(seed=seed).planned([0.0] * 5)] for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)


def test_classes_and_prefixes_come_by_their_share():
    draw = drawn_workload(classes={"a": 1, "b": 3}, prefix=workload.Prefix(0.5, 20, 2))
    planned = list(draw.planned([0.0] * 2000))
    assert sum(one.klass == "b" for one in planned) == pytest.approx(1500, abs=80)
    assert all(b"x-request-type: %b\r\n" % one.klass.encode() in one.request for one in planned)
    systems = [body["messages"][0]["content"] for body in bodies(planned) if len(body["messages"]) == 2]
    assert len(systems) == pytest.approx(1000, abs=80)
    assert len(set(systems)) == 2
    assert {len(one) for one in systems} == {20}


def test_a_request_says_its_length_key_and_fields():
    wire = {"path": workload.COMPLETIONS, "stream": False, "api_key": "k", "extra": {"ignore_eos": True}}
    (planned,) = drawn_workload(wire=wire).planned([1.5])
    head, _, body = planned.request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nhost: h:1\r\n")
    assert b"authorization: Bearer k\r\n" in head
    assert b"content-length: %d" % len(body) in head
    fields = json.loads(body)
    assert len(fields.pop("prompt")) == 50
    assert fields == {"model": "m", "max_tokens": 7, "ignore_eos": True}


# traces


def recorded(text, speed=1):
    """A trace of these lines."""
    return trace.read("t", [(f"line {number} of t", line) for number, line in enumerate(text.split(b"\n"), 1)], speed)


def test_a_trace_is_replayed_as_it_was_recorded_and_faster_if_asked():
    text = b'{"at_s": 5, "class": "a", "prompt_tokens": 20, "output_tokens": 3, "stream": false}\n\n{"at_s": 3}\n'
    read = recorded(text, 2).arrivals
    assert read == [trace.Arrival(0.0), trace.Arrival(1.0, "a", 20, 3, stream=False)]
    first, second = drawn_workload().replayed(read)
    assert (second.at_s, second.klass, second.stream, first.stream) == (1.0, "a", False, True)
    assert bodies([second])[0]["max_tokens"] == 3
    assert len(bodies([second])[0]["messages"][0]["content"]) == 20


def test_an_access_log_is_a_trace():
    """Its times are those of the ends."""
    line = '{"time":"2026-09-21T12:00:0%s.500Z","class":"standard","total_ms":%s,"tokens_in":23,"tokens_out":null,"stream":true}\n'
    read = recorded((line % ("2", 1500) + line % ("1", 0)).encode())
    assert [(one.at_s, one.klass, one.prompt_tokens, one.output_tokens) for one in read.arrivals] == [
        (pytest.approx(0.0), "standard", 23, None),
        (pytest.approx(0.5), "standard", 23, None),
    ]


END = '{"at_s":%s,"class":"standard","prompt_tokens":3,"output_tokens":4,"total_ms":%s,"stream":true}'


def test_a_torn_line_is_left_out_and_told():
    """As a machine that lost its power leaves the last one."""
    read = recorded("\n".join([END % (1, 0), END % (2, 0), '{"at_s":3,"cla']).encode())
    assert [one.at_s for one in read.arrivals] == [0, 1]
    assert len(read.notes) == 1
    assert read.notes[0].startswith("Trace: line 3 of t is torn, and left out: ")


def test_a_file_of_something_else_is_no_trace_with_torn_lines():
    with pytest.raises(SettingError, match=r"^--trace: line 1 of t is no JSON line: "):
        recorded(b"time,tokens\na,2\nb,4\n")


@pytest.mark.parametrize(
    "fields",
    [
        b'"at_s": 2, "prompt_tokens": -1', b'"at_s": 2, "output_tokens": 1000001', b'"at_s": 2, "class": "a\\r\\nx: y"',
        b'"at_s": 2, "class": "a\\n"', b'"at_s": 2, "stream": "yes"', b'"at_s": 2, "total_ms": -1', b'"at_s": 1e300',
        b'"at_s": null', b'"time": 5',
    ],
)  # fmt: skip
def test_a_wrong_field_is_told_with_its_line(fields):
    with pytest.raises(SettingError, match=r"^--trace: line 2 of t"):
        recorded(b'{"at_s": 1}\n{%b}\n' % fields)


def test_a_clock_that_was_set_is_told_with_its_line_and_slow_answers_are_no_such_thing():
    slow = recorded("\n".join([END % (100, 0), END % (1, 120_000), END % (122, 0)]).encode())
    assert slow.notes == []
    jumped = recorded("\n".join([END % (9000, 0), END % (5400, 0), END % (5401, 0), END % (12_601, 0)]).encode())
    assert jumped.notes == [
        "Trace: line 2 of t: time goes back by 3,600 s: a clock was set, or files are mixed.",
        "Trace: line 4 of t: nothing came for 7,200 s: a pause, or a clock that was set.",
    ]


def test_lines_of_an_access_log_that_ask_for_no_text_are_left_out():
    text = b'{"at_s": 1, "path": "/v1/embeddings"}\n{"at_s": 2, "path": "/v1/completions"}\n{"at_s": 3, "outcome": "refused"}'
    read = recorded(text)
    assert read.arrivals == [trace.Arrival(0.0)]
    assert read.notes == ["Trace: 2 lines of requests that were refused, or asked for no text, are left out."]


# SLOs


def test_an_slo_is_met_only_within_every_bound():
    slo = Slo.parse("ttft=500ms, tpot=50ms,latency=1.5s")
    assert slo.bounds == {"ttft": 0.5, "tpot": 0.05, "latency": 1.5}
    good = sample(1.0, first=1.4, last=1.5, end=1.5, tokens=5)
    assert slo.met(good)
    assert not slo.met(sample(1.0, first=1.6, last=1.7, end=1.7))
    assert not slo.met(sample(1.0, first=1.1, last=1.3, end=1.3, tokens=3))
    assert not slo.met(sample(1.0, first=1.1, last=1.11, end=2.6))
    assert not slo.met(sample(1.0, first=1.1, last=1.11, end=1.2, kind="cut short"))
    assert slo.met(sample(0.0, first=0.0, last=0.0, end=0.4)), "in one piece: its end counts as the first token"


@given(st.floats(0, 3), st.floats(0.001, 3))
def test_a_looser_bound_never_meets_less(ttft, bound):
    one = sample(0.0, first=ttft or 0.001, last=4.0, end=4.0)
    assert Slo({"ttft": bound}).met(one) <= Slo({"ttft": bound * 2}).met(one)


# knees


def step(offered, answered=None, failed=0.0, p90=0.1, good=None):
    return knee.Step(offered, offered if answered is None else answered, failed, p90, good)


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (step(30, answered=24), "answers fall behind"),
        (step(30, failed=0.05), "requests fail"),
        (step(30, p90=0.5), "waiting grows"),
        (step(30, good=0.9), "the SLO is missed"),
    ],
)
def test_the_knee_is_the_last_rate_it_keeps_up_with(last, why):
    found = knee.knee([step(10), step(20), last, step(40)])
    assert (found.rate, found.ended) == (20, True), why


def test_a_knee_out_of_reach_is_told_as_such():
    assert knee.knee([step(10), step(20)]) == knee.Knee(20, ended=False, most_answered=20)
    assert knee.knee([step(10, answered=2)]) == knee.Knee(None, ended=True, most_answered=2)


def test_answers_on_their_way_at_a_short_runs_end_are_no_backlog():
    """A second of requests, each answered in a quarter: kept. Answered ever later, the last after a second: not."""
    sound = [sample(at / 10, first=at / 10 + 0.1, end=at / 10 + 0.25) for at in range(11)]
    behind = [sample(at / 10, first=at / 5 + 0.1, end=at / 5 + 0.1) for at in range(11)]
    assert summary.step(summed(sound)).kept == pytest.approx(1)
    assert summary.step(summed(behind)).kept < knee.KEPT


# summaries


def summed(samples, **changes):
    observed = summary.Observed(samples, [0.1, 0.3], {"timeout": "late"}, partial=False, most_in_flight=3, use=Use())
    asked = {"offered_per_s": 2.0, "slo": Slo({"latency": 0.5}), "bound_s": 0.25, "warmup_s": 0.0}
    return summary.run("x", observed, **(asked | changes))


def test_a_summary_is_what_one_works_out_by_hand():
    """Two answers, a failure and one given up, over two seconds."""
    told = summed(
        [
            sample(0.0, first=0.1, last=0.2, end=0.2, tokens=5, klass="a"),
            sample(1.0, first=1.4, last=2.0, end=2.0, tokens=3, klass="b"),
            sample(1.0, end=1.5, kind="timeout", klass="b"),
            sample(1.5, end=1.9, kind=UNFINISHED),
        ]
    )
    assert (told.requests, told.answered, told.failed, told.unfinished) == (4, 2, {"timeout": 1}, 1)
    assert (told.seconds, told.queries_per_s, told.output_tokens_per_s, told.prompt_tokens_per_s) == (2.0, 1, 4, 10)
    assert (told.latency_s.mean, told.latency_s.p50) == (pytest.approx(0.6), pytest.approx(0.6))
    assert told.first_token_s.mean == pytest.approx(0.25)
    assert told.per_output_token_s.mean == pytest.approx((0.1 / 4 + 0.6 / 2) / 2)
    assert told.inter_token_s.mean == pytest.approx(0.2)
    assert (told.over_bound, told.within_slo, told.goodput_per_s) == (0.5, pytest.approx(1 / 3), 0.5)
    assert {name: (part.requests, part.answered) for name, part in told.classes.items()} == {"a": (1, 1), "b": (2, 1)}
    assert [second.answered_per_s for second in told.time_line] == [1, 0, 1]
    assert sum(second.sent_per_s for second in told.time_line) == 3
    assert told.explained == {"timeout": "late"}


def test_what_was_to_be_sent_in_the_warm_up_is_not_counted():
    told = summed([sample(0.0), sample(1.0, first=1.1, last=1.2, end=1.2)], warmup_s=0.5)
    assert (told.requests, told.latency_s.mean) == (1, pytest.approx(0.2))


def test_a_summary_of_nothing_has_no_figures_and_is_no_error():
    told = summed([])
    assert (told.requests, told.queries_per_s, told.latency_s, told.time_line, told.within_slo) == (0, 0, None, [], 0)
    assert summary.step(told).p90_s == math.inf


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 900)), min_size=1, max_size=60))
def test_a_time_line_holds_every_request_once(times):
    samples = [sample(at, end=at + more) for at, more in times]
    line = summary.time_line(samples)
    width = line[1].at_s if len(line) > 1 else max(1, line[0].at_s)
    assert sum(second.sent_per_s for second in line) * width == pytest.approx(len(times))
    assert sum(second.answered_per_s for second in line) * width == pytest.approx(len(times))
    assert len(line) <= summary.MOST_STEPS + 1


def test_intervals_are_told_of_whole_repeats_alone():
    runs = [summed([sample(0.0, end=end)]) for end in (0.3, 0.5)]
    assert summary.intervals(runs)["x"]["latency_mean_s"].mean == pytest.approx(0.4)
    assert summary.intervals([runs[0], msgspec.structs.replace(runs[1], partial=True)]) == {}


# words


@pytest.mark.parametrize(
    ("parse", "written"),
    [
        (arrivals.parse, "often"),
        (arrivals.parse, "bursts:0"),
        (arrivals.Ramp.parse, "50:10"),
        (arrivals.Ramp.parse, "1-2"),
        (lambda text: lengths.parse("--input", text), "0"),
        (lambda text: lengths.parse("--input", text), "uniform:9-3"),
        (lambda text: lengths.parse("--input", text), "long"),
        (workload.Prefix.parse, "2:100"),
        (lambda text: workload.classes([text]), "a"),
        (lambda text: workload.classes([text]), "a b=1"),
        (Slo.parse, "ttft=fast"),
        (Slo.parse, "ttft=1s,ttft=2s"),
        (Slo.parse, "e2e=1s"),
        (Slo.parse, ""),
        (lambda text: recorded(text.encode()), '{"at_s": "now"}'),
        (lambda text: recorded(text.encode()), "{}"),
        (lambda text: recorded(text.encode()), ""),
        (probe.base_url, "https://h/v2"),
        (probe.base_url, "ftp://h"),
        (probe.base_url, "http://h:1/v2"),
        (probe.base_url, "http://h:99999"),
        (probe.base_url, ""),
    ],
)
def test_bad_input_is_told_by_the_name_of_its_option(parse, written):
    with pytest.raises(SettingError, match=r"^(--[a-z-]+|URL): "):
        parse(written)


@pytest.mark.parametrize("written", ["h:80", "http://h", "http://h/", "http://h:80/v1", "h:80/v1/"])
def test_an_address_may_be_written_in_several_ways(written):
    assert probe.base_url(written) == "http://h:80"
    assert probe.base_url("https://h/v1") == "https://h:443"


def test_a_servers_words_are_one_printable_line():
    assert explanation(b'{"error":{"message":"no\\n such\\u001b[2J model"}}') == "no such?[2J model"
    assert explanation(b"\xff<html>") == "\ufffd<html>"
    assert len(explanation(b"x" * 999)) == 200
    assert explanation(b"[1]") == "[1]"


@given(st.lists(st.tuples(st.floats(0, 1e6), st.none() | st.floats(0, 1e9)), max_size=40))
def test_a_plot_of_anything_is_well_formed(points):
    from xml.etree import ElementTree as ET

    ET.fromstring(chart("<a>", [("b&c", points)], across="x", up="y", marks=[(1.0, "<m>")]))  # noqa: S314 - our own
