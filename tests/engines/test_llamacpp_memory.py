from types import SimpleNamespace

from tidegate.engines.llamacpp_memory import MIB, PROCESS_BYTES, memory_needed
from tidegate.errors import ModelError

ERNIE = SimpleNamespace(
    weights_bytes=362 * MIB,
    hidden=1024,
    feed_forward=3072,
    vocabulary=103_424,
    kv_values_per_token=18 * 2 * (128 + 128),
)
"""What the arithmetic reads of the header of ERNIE-4.5-0.3B, Q8_0."""


def test_memory_is_weights_and_cache_and_working_memory():
    need = memory_needed(ERNIE, context_tokens=2048, slots=8)
    assert need.weights_bytes == ERNIE.weights_bytes
    assert need.kv_bytes == 2048 * 8 * ERNIE.kv_values_per_token * 2
    assert need.compute_bytes > PROCESS_BYTES
    assert need.total_bytes == need.weights_bytes + need.kv_bytes + need.compute_bytes
    assert memory_needed(ERNIE, context_tokens=2048, slots=16).kv_bytes == 2 * need.kv_bytes


def test_the_real_ernie_takes_18_kib_a_token():
    need = memory_needed(ERNIE, context_tokens=131_072, slots=1)
    assert need.kv_bytes_per_token == 18 * 1024
    assert need.kv_bytes == 2.25 * 1024 * MIB


def test_a_refusal_shows_the_sum_and_what_would_fit():
    need = memory_needed(ERNIE, context_tokens=200_000, slots=8)
    available = need.weights_bytes + need.compute_bytes + need.kv_bytes // 2
    refusal = need.refusal("tiny", available)
    assert isinstance(refusal, ModelError)
    assert need.arithmetic() in str(refusal)
    assert f"{available / MIB:,.0f} MiB are available" in str(refusal)
    assert "slots = 4 and context_tokens = 200000 would fit" in refusal.hint
    assert "a machine with more memory" in need.refusal("tiny", MIB).hint
