import re
from types import SimpleNamespace

import pytest

from tidegate.config import LlamaCppOptions
from tidegate.engines.llamacpp_fit import Machine, fit
from tidegate.engines.llamacpp_memory import MIB
from tidegate.errors import ModelError

HEADER = SimpleNamespace(
    weights_bytes=100 * MIB,
    context_tokens=8192,
    hidden=1024,
    feed_forward=3072,
    vocabulary=50_000,
    kv_values_per_token=9216,
)
"""What the fit reads of a header."""


def fitted(mib: int, cores: int = 2, **options: object):
    return fit(HEADER, LlamaCppOptions(**options), Machine(cores=cores, available_bytes=mib * MIB), model="m")


def test_with_room_enough_it_is_the_default_for_the_cores():
    assert (fitted(8000).slots, fitted(8000).context_tokens, fitted(8000).threads) == (4, 4096, 2)
    assert [fitted(64_000, cores=cores).slots for cores in (1, 2, 4, 8, 64)] == [4, 4, 8, 16, 16]


def test_contexts_shrink_to_a_useful_size_before_slots_are_given_up():
    seen = []
    for mib in range(1200, 100, -2):
        try:
            got = fitted(mib)
        except ModelError:
            break
        assert got.need.total_bytes <= mib * MIB * 0.9
        if (got.slots, got.context_tokens) not in seen:
            seen.append((got.slots, got.context_tokens))
    assert seen == [(4, 4096), (4, 2048), (4, 1024), (2, 1024), (1, 1024), (1, 512)]


def test_what_was_asked_for_is_taken_or_refused_never_changed():
    assert (fitted(8000, slots=3, context_tokens=300).slots, fitted(8000, threads=7).threads) == (3, 7)
    assert fitted(500, slots=2).slots == 2
    with pytest.raises(
        ModelError, match=r"m does not fit in memory: it needs weights 100 MiB \+ KV cache 8 slots x 8,192"
    ):
        fitted(600, slots=8, context_tokens=8192)


def test_a_refusal_says_what_would_fit():
    with pytest.raises(ModelError) as raised:
        fitted(600, slots=8, context_tokens=4096)
    slots, context = map(int, re.findall(r"= (\d+)", raised.value.hint))
    assert fitted(600, slots=slots, context_tokens=context).slots == slots < 8
    with pytest.raises(ModelError) as raised:
        fitted(150)
    assert "smaller quantisation" in raised.value.hint


def test_a_context_beyond_the_model_s_is_refused():
    with pytest.raises(ModelError, match=r"trained on contexts of 8,192 tokens, and .* asks for 9,000"):
        fitted(8000, context_tokens=9000)


def test_a_micro_batch_is_never_larger_than_a_batch():
    assert fitted(8000, batch_tokens=64).micro_batch_tokens == 64
