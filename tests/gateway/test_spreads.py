"""How requests spread is told to control once, whatever becomes of the reports."""

from gateway.test_accounting import ended
from tidegate.gateway.accounting import Accounting
from tidegate.gateway.metrics import BUCKETS_S, BUCKETS_TOKENS, Metrics
from tidegate.gateway.spreads import Spreads
from tidegate.types import ClassReport


def test_each_request_is_in_every_histogram_once_and_told_once():
    metrics = Metrics()
    accounting, spreads = Accounting(metrics), Spreads(metrics)
    accounting.ended(ended(first_s=0.5, total_s=1.02, queue_s=0.3, prompt_tokens=17, completion_tokens=16))
    accounting.ended(ended(model="other", first_s=None, total_s=400.0, prompt_tokens=None, completion_tokens=None))
    (told,) = spreads.take()
    assert told.klass == "interactive"
    assert [bound for bound, count in zip(BUCKETS_S, told.first_s, strict=False) if count] == [0.5]
    assert (told.duration_s[BUCKETS_S.index(2.5)], told.duration_s[-1]) == (1, 1)
    assert (told.queue_s[0], told.queue_s[BUCKETS_S.index(0.5)]) == (1, 1)
    assert told.prompt_tokens[BUCKETS_TOKENS.index(32)] == 1 == sum(told.prompt_tokens)
    assert told.answer_tokens[BUCKETS_TOKENS.index(16)] == 1 == sum(told.answer_tokens)
    assert spreads.take() == ()


def test_what_was_not_delivered_is_told_again_with_what_came_since():
    metrics = Metrics()
    accounting, spreads = Accounting(metrics), Spreads(metrics)
    metrics.classes = lambda: [ClassReport("interactive", refused=3)]
    accounting.ended(ended())
    lost = spreads.take()
    spreads.give_back(lost)
    accounting.ended(ended())
    (told,) = spreads.take()
    assert sum(told.duration_s) == 2
    assert told.refused == 3


def test_refusals_are_counted_from_anew_where_a_class_began_anew():
    metrics = Metrics()
    spreads, refused = Spreads(metrics), 5
    metrics.classes = lambda: [ClassReport("batch", refused=refused)]
    assert spreads.take()[0].refused == 5
    refused = 2
    assert spreads.take()[0].refused == 2


def test_seconds_with_engines_are_without_the_wait_and_of_requests_that_reached_one():
    metrics = Metrics()
    accounting = Accounting(metrics)
    accounting.ended(ended(total_s=2.0, queue_s=0.5))
    accounting.ended(ended(replica="", total_s=9.0))
    (usage,) = accounting.take_usage()
    assert usage.engine_s == 1.5
    accounting.give_back([usage])
    assert accounting.take_usage() == (usage,)
