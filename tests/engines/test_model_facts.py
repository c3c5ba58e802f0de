"""A model's folder tells the numbers that a plan is made of, or says in plain words what it lacks."""

import json

import pytest

from tidegate.engines.model_facts import ERNIE_CONFIG, from_config, read
from tidegate.errors import ModelError


def folder(tmp_path, *, weights=(), **changes):
    (tmp_path / "config.json").write_text(json.dumps({**ERNIE_CONFIG, **changes}))
    for number, size in enumerate(weights, 1):
        with (tmp_path / f"model-{number:05}.safetensors").open("wb") as file:
            file.truncate(size)
    return tmp_path


def test_the_reference_model_has_the_numbers_it_is_known_by():
    facts = from_config(ERNIE_CONFIG, name="ernie-4.5-0.3b")
    assert facts.parameters == 360_748_032
    assert facts.weights_bytes == 721_496_064
    assert facts.kv_bytes_per_token("bfloat16") == 18 * 1024
    assert facts.kv_bytes_per_token("float32") == 36 * 1024
    assert facts.kv_bytes_per_token("fp8") == 9 * 1024
    assert facts.kv_bytes_per_token("bfloat16") * 131_072 == 2.25 * (1 << 30)
    assert facts.dense


def test_weights_count_as_they_lie_on_the_disk(tmp_path):
    facts = read(folder(tmp_path, weights=(1000, 500)))
    assert facts.weights_bytes == 1500
    assert facts.weights_bytes_as("float32") == 3000
    assert read(folder(tmp_path), name="x").weights_bytes == 1500


def test_embeddings_stay_whole_in_fp8_and_quantised_weights_stay_as_they_are():
    facts = from_config(ERNIE_CONFIG, name="ernie")
    assert facts.weights_bytes_as("fp8") == facts.parameters + 103_424 * 1024
    awq = from_config({**ERNIE_CONFIG, "quantization_config": {"quant_method": "awq"}}, name="x", weights_bytes=300)
    assert awq.weights_bytes_as("float16") == awq.weights_bytes_as("fp8") == 300


def test_compressed_caches_experts_and_nested_configs_are_read():
    latent = from_config({**ERNIE_CONFIG, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, name="x")
    assert latent.kv_values_per_token == 18 * 576
    experts = from_config({**ERNIE_CONFIG, "moe_num_experts": 8, "moe_intermediate_size": 512}, name="x")
    assert not experts.dense
    assert experts.parameters > 360_748_032
    nested = from_config({"architectures": ["X"], "text_config": dict(ERNIE_CONFIG)}, name="x")
    assert nested.layers == 18


def test_older_names_of_the_same_numbers_are_understood():
    gpt2 = {"architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024}
    facts = from_config({**gpt2, "n_inner": None, "vocab_size": 50_257}, name="gpt2")
    assert (facts.hidden, facts.layers, facts.heads, facts.feed_forward) == (768, 12, 12, 3072)
    assert facts.context_tokens == 1024
    assert facts.generates
    untold = {key: value for key, value in ERNIE_CONFIG.items() if key != "max_position_embeddings"}
    assert from_config(untold, name="x").context_tokens == 2048


@pytest.mark.parametrize(("told", "dtype"), [("float32", "float32"), ("torch.float16", "float16"), (None, "bfloat16")])
def test_the_dtype_is_read_in_every_spelling(told, dtype):
    assert from_config({**ERNIE_CONFIG, "torch_dtype": told}, name="x").dtype == dtype


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path, "has no config.json"),
        (lambda path: path / "model.gguf", "is a GGUF file, which vLLM no longer loads"),
        (lambda path: folder(path, num_hidden_layers="many"), "has a wrong number"),
        (lambda path: folder(path, num_hidden_layers=0), "has a size of 0"),
    ],
)
def test_what_cannot_be_planned_for_is_said(tmp_path, make, words):
    with pytest.raises(ModelError, match=words):
        read(make(tmp_path))


def test_a_config_that_lacks_a_number_is_named_with_it(tmp_path):
    config = {key: value for key, value in ERNIE_CONFIG.items() if key != "vocab_size"}
    with pytest.raises(ModelError, match="has no 'vocab_size'"):
        from_config(config, name="x")
    for text in ("[1]", "{", "\udc80"):
        (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ModelError, match=r"config\.json"):
            read(tmp_path)
