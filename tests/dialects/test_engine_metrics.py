"""What an engine's /metrics tells, under every name it ever had, and what is made of rubbish."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.dialects.metrics import advanced, read_load, read_slots, restarted
from tidegate.types import Load

VLLM = b"""\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="a } b"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.2345e+04
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.79e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 678.0 1790000000000
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 7.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 55.0
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="m"} 1.5"""

OLD_VLLM = b"""\
vllm:num_requests_running{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.125
"""

LLAMACPP = b"""\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 1500
llamacpp:prompt_seconds_total 10.5
llamacpp:tokens_predicted_total 64
llamacpp:n_decode_total 70
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
"""


def test_vllm_says_what_it_has_to_do_and_what_it_did():
    assert read_load(VLLM) == Load(
        running=7,
        waiting=2,
        kv_usage=0.5,
        prompt_tokens_total=12345,
        generation_tokens_total=678,
        iterations_total=55,
        preemptions_total=1,
        prefill_s_total=1.5,
        started_at_s=1.79e9,
    )


def test_older_names_are_known():
    assert read_load(OLD_VLLM) == Load(running=1, kv_usage=0.125)


def cache(labels: bytes, name: bytes = b"vllm:cache_config_info") -> int | None:
    load = read_load(
        b"vllm:num_requests_running 1\n" + b"".join(b"%b{%b} 1.0\n" % (name, one) for one in labels.split(b"|"))
    )
    assert load is not None
    return load.kv_tokens


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        (
            b'block_size="16",cache_dtype="auto",num_cpu_blocks="1024",num_gpu_blocks="573",num_gpu_blocks_override="None"',
            9168,
        ),
        (b'num_gpu_blocks="320",block_size="8",engine="0",kv_cache_size_tokens="463459",mamba_block_size="16"', 463459),
        (b'block_size="16",engine="0",num_gpu_blocks="10"|block_size="16",engine="1",num_gpu_blocks="20"', 480),
        (b'block_size="16",engine="0",num_gpu_blocks="10"|block_size="16",engine="1",num_gpu_blocks="None"', None),
        (b'block_size="16",num_gpu_blocks="None",num_gpu_blocks_override="100"', 1600),
        (b'block_size="16",kv_cache_size_tokens="None",num_gpu_blocks="7"', 112),
        (b'mamba_block_size="16",num_gpu_blocks="7"', None),
        (b'block_size="16",other="num_gpu_blocks=\\"9\\""', None),
        (b'block_size="16",num_gpu_blocks="-7"', None),
        (b'block_size="0",num_gpu_blocks="7"', None),
        (b'block_size="16",num_gpu_blocks="99999999999999999999"', None),
        (b"", None),
    ],
)
def test_the_size_of_the_cache_is_in_the_labels(labels, tokens):
    assert cache(labels) == tokens
    assert cache(labels, b"vllm:cache_config") == tokens


def test_a_ratio_that_is_called_one_is_the_usage_too():
    assert read_load(b"vllm:gpu_cache_usage_ratio 0.5\n") == Load(kv_usage=0.5)


@pytest.mark.parametrize(
    ("props", "told"),
    [
        (b'{"default_generation_settings":{"n_ctx":512,"params":{}},"total_slots":4,"model_path":"/m"}', (4, 512)),
        (b'{"total_slots":4}', (4, None)),
        (b'{"total_slots":0,"default_generation_settings":{"n_ctx":-1}}', (None, None)),
        (b'{"total_slots":"4"}', (None, None)),
        (b"[]", (None, None)),
        (b"<html>", (None, None)),
    ],
)
def test_llama_cpp_says_its_slots_in_its_props(props, told):
    assert read_slots(props) == told


def test_llama_cpp_is_read_by_its_own_names():
    assert read_load(LLAMACPP) == Load(
        running=2,
        waiting=1,
        prompt_tokens_total=1500,
        generation_tokens_total=64,
        iterations_total=70,
        prefill_s_total=10.5,
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>503</html>",
        b"vllm:num_requests_running{ NaN\n\xff\xfe }{\nllamacpp: 1 2 3 x\n",
        b"vllm:num_requests_running -1\n",
        b"vllm:num_requests_running inf\nvllm:num_requests_waiting\nvllm:kv_cache_usage_perc{}\n",
        b"process_start_time_seconds 5\nsomething_else 3\n",
        b"other:vllm:num_requests_running 3\n",
    ],
)
def test_what_cannot_be_read_is_no_load(text):
    assert read_load(text) is None


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reading(data):
    assert read_slots(data) == (None, None)
    for text in (data, VLLM[:200] + data, data + b"\n" + LLAMACPP, b"vllm:cache_config_info{block_size=" + data + VLLM):
        load = read_load(text)
        assert load is None or (load.running is None or load.running >= 0)


def test_an_engine_that_began_anew_is_known_by_a_counter_that_fell_or_by_its_start():
    before = Load(prompt_tokens_total=100, generation_tokens_total=50, started_at_s=5.0)
    assert not restarted(before, before)
    assert not restarted(before, Load(prompt_tokens_total=101, generation_tokens_total=50, started_at_s=5.0))
    assert restarted(before, Load(prompt_tokens_total=0, generation_tokens_total=50, started_at_s=5.0))
    assert restarted(before, Load(prompt_tokens_total=100, generation_tokens_total=50, started_at_s=6.0))
    assert not restarted(before, Load(running=0)), "what is not said has not fallen"


def test_any_counter_that_grew_is_progress_and_a_gauge_is_none():
    before = Load(running=1, kv_usage=0.1, iterations_total=7)
    assert advanced(before, Load(running=1, iterations_total=8))
    assert not advanced(before, Load(running=2, kv_usage=0.2, iterations_total=7))
    assert not advanced(before, Load())
