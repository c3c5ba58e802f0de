"""What older guides and other engines call their flags is answered with today's name; what nobody knows is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engines import old_flags, old_names
from tidegate.engines.old_flags import Verdict, check, parse
from tidegate.engines.vllm_flags import known
from tidegate.errors import SettingError


def test_the_table_holds_only_names_that_are_gone_and_points_only_to_names_that_exist():
    flags, variables = known().by_name(), known().environment
    assert not set(old_names.FLAGS) & set(flags)
    assert not set(old_names.VARIABLES) & set(variables)
    assert not set(old_names.COMMANDS) & set(known().commands)
    for old in (*old_names.FLAGS.values(), *old_names.VARIABLES.values()):
        assert old.why
        assert old.today == "" or old.today in flags or old.today in variables
    for old in old_names.COMMANDS.values():
        assert old.today == "" or old.today in known().commands


@pytest.mark.parametrize(
    "flag",
    [
        "--enable-chunked-prefill",
        "--max-num-batched-tokens",
        "--max-num-seqs",
        "--block-size",
        "--gpu-memory-utilization",
        "--enforce-eager",
        "--disable-log-stats",
        "--max-model-len",
        "--tensor-parallel-size",
        "--dtype",
        "--served-model-name",
    ],
)
def test_what_still_exists_is_left_alone(flag):
    value = {"--dtype": "half", "--gpu-memory-utilization": "0.9"}.get(flag, "16")
    takes = known().by_name()[flag].takes
    assert check([flag] if takes == "none" else [flag, value]) == ()


@pytest.mark.parametrize(
    ("written", "verdict", "words", "advice"),
    [
        ("--chunked-prefill-size 512", Verdict.FOREIGN, "is SGLang's", "--max-num-batched-tokens"),
        ("--disable-log-requests", Verdict.GONE, "no longer exists", "leave it out"),
        ("--disable_log_requests", Verdict.GONE, "no longer exists", "leave it out"),
        ("--mem-fraction-static=0.8", Verdict.FOREIGN, "SGLang", "--gpu-memory-utilization"),
        ("--max-total-tokens 2048", Verdict.FOREIGN, "Text Generation Inference", "--max-model-len"),
        ("-ngl 99", Verdict.FOREIGN, "llama.cpp", "leave it out"),
        ("--guided-decoding-backend xgrammar", Verdict.GONE, "backend is a key", "--structured-outputs-config"),
        ("--max-nmu-seqs 4", Verdict.UNKNOWN, "has no flag --max-nmu-seqs", "--max-num-seqs"),
        ("--frobnicate", Verdict.UNKNOWN, "has no flag --frobnicate", "--help=all"),
        ("--disable-cascade-attn", Verdict.DEPRECATED, "deprecated", "leave it out"),
        ("--dtype bf16", Verdict.WRONG, "has no value 'bf16'", "did you mean bfloat16"),
        ("--max-num-seqs many", Verdict.WRONG, "is 'many'", "a whole number"),
        ("--gpu-memory-utilization 90%", Verdict.WRONG, "is '90%'", "a number"),
        ("--enable-prefix-caching True", Verdict.WRONG, "takes no value", "write --enable-prefix-caching"),
        ("--enable-chunked-prefill=False", Verdict.WRONG, "takes no value", "write --no-enable-chunked-prefill"),
        ("--port", Verdict.WRONG, "has no value", "give it one"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_write(written, verdict, words, advice):
    (remark,) = check(["model", *written.split()])
    assert remark.verdict is verdict
    assert words in remark.text.replace("TGI's", "Text Generation Inference's")
    assert advice in remark.advice
    assert remark.position == 1


@pytest.mark.parametrize(
    "written",
    [
        "-O3",
        "-O 2",
        "-O=1",
        "-tp 2",
        "--max-model-len 32K",
        "--max-model-len -1",
        "--max-model-len $CONTEXT",
        "--compilation-config.cudagraph_mode FULL",
        "--hf_overrides {}",
        "--served-model-name a b c",
        "--gpu-memory-util 0.5",
        "--no-enable-prefix-caching",
        "--enable-log-requests --port 8000",
        "--kv-cache-dtype fp8",
    ],
)
def test_every_way_in_which_vllm_takes_a_flag_is_understood(written):
    assert check(["model", *written.split()]) == ()


def test_arguments_are_split_as_vllm_splits_them():
    found = list(parse(["m", "--served-model-name", "a", "b", "--port=80", "--enforce-eager", "x", "-tp", "2"]))
    assert [(one.name, one.values) for one in found] == [
        ("--served-model-name", ("a", "b")),
        ("--port", ("80",)),
        ("--enforce-eager", ()),
        ("-tp", ("2",)),
    ]


def test_settings_with_such_flags_are_refused_before_anything_starts():
    with pytest.raises(SettingError) as refused:
        old_flags.refuse(["--disable-log-requests"], "pool.1.options.args")
    assert str(refused.value).startswith("pool.1.options.args: --disable-log-requests no longer exists")
    assert refused.value.hint == "leave it out"
    old_flags.refuse(["--disable-cascade-attn", "--max-num-seqs", "4"], "pool.1.options.args")


def test_of_another_version_only_what_is_sure_is_told():
    arguments = ["--frobnicate", "--disable-log-requests", "--ctx-size", "1"]
    assert [one.verdict for one in check(arguments, "0.6.3")] == [Verdict.FOREIGN]
    assert [one.verdict for one in check(arguments, "0.40.0")] == [Verdict.GONE, Verdict.FOREIGN]
    assert len(check(arguments)) == 3


@pytest.mark.parametrize(
    ("words", "verdict", "advice"),
    [
        (["vllm.entrypoints.api_server"], Verdict.GONE, "vllm serve MODEL"),
        (["vllm.entrypoints.openai.api_server"], Verdict.DEPRECATED, "vllm serve MODEL"),
        (["convert", "x"], Verdict.GONE, "leave it out"),
        (["server"], Verdict.GONE, "`vllm serve`"),
        (["serv"], Verdict.UNKNOWN, "'serve'"),
        (["xyzzy"], Verdict.UNKNOWN, "vllm serve MODEL"),
    ],
)
def test_commands_that_do_not_exist_are_known(words, verdict, advice):
    remark = old_flags.check_command(words)
    assert remark.verdict is verdict
    assert advice in remark.advice


def test_images_and_variables_are_known_too():
    assert old_flags.check_command(["serve"]) is None
    assert old_flags.check_command([]) is None
    assert "vllm/vllm-openai" in old_flags.check_image("vllm/vllm:latest").advice
    assert "vllm/vllm-openai" in old_flags.check_image("images.example:5000/vllm/vllm").advice
    assert old_flags.check_image("vllm/vllm-openai:v0.32.0") is None
    assert old_flags.check_image("images.example:5000/mine") is None
    assert old_flags.check_variable("VLLM_USE_V1").verdict is Verdict.GONE
    assert "VLLM_LOGGING_LEVEL" in old_flags.check_variable("VLLM_LOGING_LEVEL").advice
    assert old_flags.check_variable("VLLM_API_KEY") is None
    assert old_flags.check_variable("PATH") is None


@given(
    st.lists(st.text(max_size=12) | st.sampled_from(["--port", "--port=", "-O", "-tp", "--", "-", "--=1"]), max_size=8)
)
def test_any_words_at_all_are_gone_through(words):
    for remark in check(words):
        assert 0 <= remark.position < len(words)
        assert remark.text
        assert remark.advice
