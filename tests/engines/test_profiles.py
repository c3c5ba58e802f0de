"""From hardware, model and preset to flags: each follows from a number, each has its reason, and all exist in vLLM."""

import contextlib
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engines.model_facts import ERNIE_CONFIG, from_config
from tidegate.engines.plan_presets import PRESETS, Preset, named, read_tuned, tuned_file
from tidegate.engines.plan_types import Cpu, Gpu, Wishes
from tidegate.engines.profiles import plan
from tidegate.engines.vllm_flags import PINNED, canonical, known, release
from tidegate.errors import ModelError, SettingError

GIB = 1 << 30
ERNIE = from_config(ERNIE_CONFIG, name="ernie-4.5-0.3b")
SEVEN_B = from_config(
    {
        **ERNIE_CONFIG,
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32_000,
        "tie_word_embeddings": False,
    },
    name="seven-b",
)
L4 = Gpu("NVIDIA L4", int(22.49 * GIB), 22 * GIB, (8, 9))
A10 = Gpu("NVIDIA A10", int(22.49 * GIB), 22 * GIB, (8, 6))
T4 = Gpu("Tesla T4", int(14.6 * GIB), int(14.5 * GIB), (7, 5))
H100 = Gpu("NVIDIA H100 80GB HBM3", 79 * GIB, 78 * GIB, (9, 0))
AVX2 = Cpu(frozenset({"lm", "avx", "avx2", "fma"}), 2, 24 * GIB, 20 * GIB)
SAPPHIRE = replace(AVX2, flags=AVX2.flags | {"avx512f", "avx512_bf16", "amx_bf16"}, cores=32)
HARDWARE = (L4, A10, T4, H100, AVX2, SAPPHIRE)


def flags(found):
    return {one.name: one.value for one in found.choices}


@pytest.mark.parametrize(("preset", "hardware"), list(itertools.product(PRESETS, HARDWARE)), ids=str)
def test_every_flag_of_every_plan_is_one_of_the_pinned_engine_with_a_value_it_takes(preset, hardware):
    found = plan(ERNIE, hardware, preset=preset, wishes=Wishes(fp8="both" if hardware == L4 else "none"))
    by_name = known().by_name()
    for choice in found.choices:
        flag = by_name[choice.name]
        assert flag.name == choice.name
        assert not flag.deprecated
        assert (choice.value is None) is (flag.takes == "none")
        assert not flag.choices or choice.value in flag.choices
        if flag.kind in {"int", "float"}:
            assert float(choice.value) >= 0
        assert choice.reason
    assert len(flags(found)) == len(found.choices)
    assert found.upgrade_reason


@pytest.mark.parametrize(
    ("hardware", "dtype"),
    [
        (L4, "bfloat16"),
        (A10, "bfloat16"),
        (H100, "bfloat16"),
        (T4, "float16"),
        (AVX2, "float32"),
        (SAPPHIRE, "bfloat16"),
    ],
)
def test_precision_is_what_the_hardware_computes(hardware, dtype):
    assert plan(ERNIE, hardware).value("--dtype") == dtype


def test_a_model_that_leaves_float16_s_range_is_float32_on_an_old_card():
    assert plan(replace(ERNIE, architecture="Gemma2ForCausalLM"), T4).value("--dtype") == "float32"


def test_fp8_is_an_option_from_compute_capability_8_9_on_and_halves_what_a_token_takes():
    assert "--kv-cache-dtype" not in flags(plan(ERNIE, L4))
    found = plan(ERNIE, L4, wishes=Wishes(fp8="both"))
    assert (found.value("--quantization"), found.value("--kv-cache-dtype")) == ("fp8", "fp8")
    assert found.memory.kv_token_bytes == 9 * 1024
    assert found.memory.weights_bytes < ERNIE.weights_bytes
    for card in (A10, T4):
        with pytest.raises(SettingError, match=r"fp8 needs 8\.9"):
            plan(ERNIE, card, wishes=Wishes(fp8="kv"))


def test_a_card_without_kernels_is_refused():
    with pytest.raises(ModelError, match=r"compute capability 6\.1, and vLLM .* 7\.5 and newer"):
        plan(ERNIE, Gpu("Tesla P4", 8 * GIB, 8 * GIB, (6, 1)))


def test_the_presets_have_the_numbers_they_are_known_by():
    balanced = flags(plan(ERNIE, L4, preset="balanced"))
    assert balanced["--max-num-seqs"] == "128"
    assert balanced["--max-num-batched-tokens"] == "2048"
    assert balanced["--block-size"] == "16"
    assert balanced["--gpu-memory-utilization"] == "0.95"
    production = flags(plan(ERNIE, L4, preset="production"))
    assert production["--max-model-len"] == "8192"
    assert production["--max-num-seqs"] == "256"
    assert production["--gpu-memory-utilization"] == "0.92"
    assert flags(plan(ERNIE, L4, preset="long-context"))["--max-model-len"] == "32768"
    default = flags(plan(ERNIE, L4))
    assert "--max-model-len" not in default
    assert "--max-num-seqs" not in default
    assert "--enforce-eager" not in default


def test_the_arithmetic_is_shown():
    found = plan(ERNIE, L4, preset="production")
    text = found.memory.arithmetic()
    assert "0.92 of 22.5 GiB = 20.7 GiB, less weights 688 MiB" in text
    assert "at 18 KiB a token" in text
    assert found.memory.kv_tokens == found.memory.kv_bytes // (18 * 1024)
    reason = next(one.reason for one in found.choices if one.name == "--max-model-len")
    assert f"hold {found.memory.kv_tokens // 8192} contexts of 8,192 in full" in reason


def test_the_share_is_of_all_memory_and_what_is_free_suffices_for_it():
    half_free = replace(L4, free_bytes=11 * GIB)
    share = float(plan(ERNIE, half_free, preset="production").value("--gpu-memory-utilization"))
    assert share * half_free.total_bytes < half_free.free_bytes
    assert share > 0.4
    with pytest.raises(SettingError, match=r"0\.9 of 22\.5 GiB is 20\.2 GiB, and 11\.0 GiB of NVIDIA L4 are free"):
        plan(ERNIE, half_free, wishes=Wishes(memory_share=0.9))


def test_the_plan_says_which_way_of_upgrading_is_open():
    alone = plan(ERNIE, L4, preset="production")
    assert alone.upgrade == "rolling or stop-start"
    assert "--memory-share 0.45 or less, which would hold" in alone.upgrade_reason
    assert plan(ERNIE, L4, preset="production", wishes=Wishes(memory_share=0.45)).upgrade == "blue-green"
    crowded = replace(L4, free_bytes=10 * GIB)
    assert plan(ERNIE, crowded).upgrade == "rolling or stop-start"
    assert plan(ERNIE, AVX2).upgrade == "blue-green"
    assert plan(ERNIE, replace(AVX2, available_bytes=8 * GIB)).upgrade == "rolling or stop-start"


def test_a_preset_shrinks_until_it_fits_and_says_so():
    found = plan(SEVEN_B, replace(L4, free_bytes=20 * GIB), preset="long-context")
    assert int(found.value("--max-model-len")) < 32_768
    assert int(found.value("--max-num-seqs")) < 64
    assert "32,768 were wanted" in next(one.reason for one in found.choices if one.name == "--max-model-len")
    assert found.memory.kv_tokens >= int(found.value("--max-model-len"))


def test_what_was_said_and_does_not_fit_is_refused_with_the_arithmetic_and_the_nearest():
    with pytest.raises(ModelError) as refused:
        plan(SEVEN_B, L4, wishes=Wishes(context_tokens=65_536))
    assert "less weights 12.6 GiB" in str(refused.value)
    assert "one request of 65,536 tokens needs 32.0 GiB" in str(refused.value)
    assert "a context of " in refused.value.hint
    assert "fp8" in refused.value.hint


def test_weights_that_do_not_fit_at_all_name_smaller_ones():
    with pytest.raises(ModelError) as refused:
        plan(SEVEN_B, replace(T4, free_bytes=12 * GIB))
    assert "a 4-bit version of it" in refused.value.hint
    assert "billion parameters or less in 16 bit" in refused.value.hint
    with pytest.raises(ModelError) as none:
        plan(ERNIE, replace(L4, free_bytes=1 * GIB))
    assert "free some memory" in none.value.hint


def test_too_many_sequences_are_refused_with_how_many_would_do():
    with pytest.raises(ModelError) as refused:
        plan(ERNIE, L4, wishes=Wishes(sequences=9000, context_tokens=131_072))
    assert "fewer sequences (4500 or less)" in refused.value.hint


def test_more_context_than_trained_on_is_refused_if_it_was_said_and_cut_if_a_preset_wanted_it():
    short = replace(ERNIE, context_tokens=2048)
    with pytest.raises(ModelError, match="trained on contexts of 2,048 tokens, and 4,096 are asked for"):
        plan(short, L4, wishes=Wishes(context_tokens=4096))
    assert plan(short, L4, preset="production").value("--max-model-len") == "2048"


def test_an_engine_older_than_the_model_is_refused():
    with pytest.raises(ModelError, match=r"vLLM 0\.6\.3 is older than Ernie4_5ForCausalLM: 0\.10 is the first"):
        plan(ERNIE, L4, version="0.6.3")
    assert release("0.32.0+cpu") == (0, 32, 0)


def test_an_older_engine_gets_no_flag_that_came_lately():
    found = plan(ERNIE, L4, preset="latency", version="0.11.0")
    assert "--max-num-queued-reqs" not in flags(found)
    assert "--performance-mode" not in flags(found)
    assert any("left out for vLLM 0.11.0" in note for note in found.notes)
    cpu = plan(ERNIE, AVX2, version="0.11.0")
    assert {one.name: one.value for one in cpu.environment}["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert "--max-num-queued-reqs" in flags(plan(ERNIE, L4, version="0.33.0"))


def test_an_architecture_s_older_name_is_overridden():
    found = plan(replace(ERNIE, architecture="Ernie4_5_ForCausalLM"), L4)
    assert found.value("--hf-overrides") == '{"architectures": ["Ernie4_5ForCausalLM"]}'


def test_on_a_cpu_the_cache_is_said_in_bytes_and_eager_has_its_reason():
    found = plan(ERNIE, AVX2)
    assert int(found.value("--kv-cache-memory-bytes")) == 8 * 4096 * 36 * 1024
    assert found.value("--block-size") == "128"
    assert "start-up" in next(one.reason for one in found.choices if one.name == "--enforce-eager")
    assert "--gpu-memory-utilization" not in flags(found)
    assert "--enforce-eager" not in flags(plan(ERNIE, AVX2, preset="throughput"))
    with pytest.raises(ModelError, match="needs AVX2"):
        plan(ERNIE, replace(AVX2, flags=frozenset({"lm", "avx"})))
    with pytest.raises(SettingError, match="no fp8 on a CPU"):
        plan(ERNIE, AVX2, wishes=Wishes(fp8="kv"))


def test_without_a_gpu_it_is_llamacpp_with_int8_weights_and_the_engine_s_own_arithmetic():
    found = plan(ERNIE, AVX2, engine="auto")
    assert found.engine == "llamacpp"
    assert found.value("quantisation") == "Q8_0"
    assert (found.value("slots"), found.value("context_tokens")) == ("4", "4096")
    assert "18 KiB" in next(one.reason for one in found.choices if one.name == "context_tokens")
    assert plan(ERNIE, AVX2, engine="auto", preset="long-context").value("context_tokens") == "32768"
    small = plan(ERNIE, replace(AVX2, available_bytes=GIB), engine="auto", preset="long-context")
    assert int(small.value("context_tokens")) <= 4096
    assert any("32,768" in note for note in small.notes)
    assert plan(ERNIE, L4, engine="auto").engine == "vllm"


def test_what_a_cpu_cannot_hold_names_the_engine_that_needs_less():
    with pytest.raises(ModelError) as refused:
        plan(ERNIE, replace(AVX2, available_bytes=3 * GIB))
    assert "llama.cpp with Q8_0" in refused.value.hint


def test_a_model_that_is_shared_out_among_gpus_needs_its_part_of_each():
    seventy = replace(SEVEN_B, weights_bytes=30 * GIB, parameters=16_000_000_000)
    with pytest.raises(ModelError):
        plan(seventy, L4)
    found = plan(seventy, L4, gpus=2)
    assert found.memory.weights_bytes == 15 * GIB
    assert found.memory.kv_token_bytes == SEVEN_B.kv_bytes_per_token("bfloat16") // 2


def test_models_that_write_no_texts_get_no_flags_for_texts():
    encoder = replace(ERNIE, architecture="BertModel", context_tokens=512)
    long = replace(encoder, context_tokens=8192)
    for model, hardware, preset in itertools.product((encoder, long), (L4, AVX2), PRESETS):
        found = flags(plan(model, hardware, preset=preset))
        assert "--enable-chunked-prefill" not in found
        assert "--long-prefill-token-threshold" not in found
        length = int(found.get("--max-model-len", model.context_tokens))
        assert int(found.get("--max-num-batched-tokens", length)) >= length


def test_what_the_tuner_left_is_a_preset(tmp_path):
    file = tuned_file(tmp_path, "Ernie 4.5/0.3B", "NVIDIA L4")
    assert file.name == "ernie-4.5-0.3b--nvidia-l4.json"
    with pytest.raises(SettingError, match="nothing was tuned yet"):
        read_tuned(file)
    file.write_text('{"why": "found by 40 trials", "sequences": 96, "batched_tokens": 3072, "memory_share": 0.9}')
    found = plan(ERNIE, L4, preset="tuned", tuned=read_tuned(file))
    assert (found.value("--max-num-seqs"), found.value("--max-num-batched-tokens")) == ("96", "3072")
    for broken in ("{", '{"why": "x", "sequences": "many"}', '{"why": "x", "colour": 1}'):
        file.write_text(broken)
        with pytest.raises(SettingError, match="cannot be used"):
            read_tuned(file)


def test_an_unknown_preset_lists_those_there_are():
    with pytest.raises(SettingError) as refused:
        named("turbo")
    assert "balanced" in refused.value.hint


def test_the_backstop_is_never_below_what_runs_and_waits_in_order():
    for preset in PRESETS:
        found = plan(ERNIE, L4, preset=preset)
        sequences = int(found.value("--max-num-seqs") or 256)
        assert int(found.value("--max-num-queued-reqs")) >= 2 * sequences


def test_flags_are_read_as_vllm_reads_them():
    assert canonical("--max_num_seqs") == "--max-num-seqs"
    assert canonical("--compilation_config.cudagraph_mode") == "--compilation-config.cudagraph_mode"


CARDS = st.builds(
    lambda free, extra, compute: Gpu("any", free + extra + 1, free, compute),
    st.integers(0, 200 * GIB),
    st.integers(0, 8 * GIB),
    st.sampled_from([(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)]),
)
WISHES = st.builds(
    Wishes, context_tokens=st.none() | st.integers(1, 200_000), sequences=st.none() | st.integers(1, 4096)
)


@given(CARDS, st.sampled_from(sorted(PRESETS)), st.sampled_from([ERNIE, SEVEN_B]), WISHES)
def test_a_plan_fits_or_is_refused_whatever_the_card(gpu, preset, model, wishes):
    with contextlib.suppress(ModelError):
        found = plan(model, gpu, preset=preset, wishes=wishes)
        share = float(found.value("--gpu-memory-utilization"))
        assert 0 < share * gpu.total_bytes <= gpu.free_bytes
        length = int(found.value("--max-model-len") or model.context_tokens)
        assert length <= found.memory.kv_tokens
        assert length == (wishes.context_tokens or length)
        taken = found.memory.weights_bytes + found.memory.working_bytes + found.memory.kv_bytes
        assert taken <= found.memory.budget_bytes


@given(preset=st.builds(Preset, why=st.just("x"), sequences=st.none() | st.integers(1, 9000)))
def test_any_tuned_preset_makes_a_plan(preset):
    assert plan(ERNIE, L4, preset="tuned", tuned=preset).choices


def test_the_known_flags_are_those_of_the_release_that_is_installed():
    assert known().version == PINNED == "0.32.0"
    assert len(known().flags) > 300
