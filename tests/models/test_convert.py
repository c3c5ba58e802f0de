"""Conversion of safetensors to GGUF: llama.cpp must say what a reference implementation says."""

import json

import llamacpp
import numpy as np
import pytest
import reference
import sentencepiece
import tiny
from tokenizers import Tokenizer

from tidegate.errors import DownloadError, ModelError
from tidegate.gguf import read_header
from tidegate.models import download
from tidegate.models.convert import convert
from tidegate.models.progress import Silent

COUNT = 8
EXACT, NOISY = 0.05, 1.5
"""How far the best token must be ahead of the second: without quantisation, and with llama.cpp's 8-bit products."""


def separated(weights, config, lead, *, interleaved=True):
    """A prompt whose greedy answer does not hang on rounding, and that answer."""
    rng = np.random.default_rng(1)
    for _ in range(400):
        prompt = rng.integers(5, config["vocab_size"], 6).tolist()
        made, found = reference.generate(prompt, weights, config, COUNT, interleaved=interleaved)
        # llama.cpp is told to ignore ends, which lie at either end of the vocabulary.
        plain = all(5 <= token < config["vocab_size"] - 2 for token in made)
        if found > lead and plain and len(set(made)) > COUNT // 2:
            return prompt, made
    raise AssertionError("no prompt of these weights is far enough from a tie")


def answers(path, prompt):
    with llamacpp.serving(path) as http:
        return llamacpp.greedy(http, prompt, COUNT)


@pytest.mark.parametrize("tokenizer", ["json", "sentencepiece"])
@pytest.mark.parametrize(("quantisation", "lead"), [("Q8_0", NOISY), ("F32", EXACT), ("BF16", EXACT), ("F16", EXACT)])
def test_llamacpp_generates_the_reference_s_greedy_tokens(tmp_path, tokenizer, quantisation, lead):
    weights, config = tiny.write_ernie(tmp_path / "ernie", tokenizer=tokenizer, dtype="bfloat16")
    convert(tmp_path / "ernie", tmp_path / "ernie.gguf", quantisation, Silent(), name="tiny")
    prompt, expected = separated(weights, config, lead)
    assert answers(tmp_path / "ernie.gguf", prompt) == expected
    # The comparison would notice the other kind of RoPE.
    assert reference.generate(prompt, weights, config, COUNT, interleaved=False)[0] != expected


def test_a_llama_s_heads_are_permuted_back(tmp_path):
    weights, config = tiny.write_ernie(tmp_path / "llama", architectures=["LlamaForCausalLM"])
    convert(tmp_path / "llama", tmp_path / "llama.gguf", "F32", Silent(), name="tiny")
    prompt, expected = separated(weights, config, EXACT, interleaved=False)
    assert answers(tmp_path / "llama.gguf", prompt) == expected


def test_the_family_s_older_names_and_fused_projections_are_known(tmp_path):
    def older(tensors):
        made = {}
        for name, values in tensors.items():
            old = name.replace("model.", "ernie.")
            if "k_proj" in name or "v_proj" in name or "up_proj" in name:
                continue
            if "q_proj" in name:
                parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
                made[old.replace("q_proj", "qkv_proj")] = np.concatenate(parts)
            elif "gate_proj" in name:
                made[old.replace("gate_proj", "up_gate_proj")] = np.concatenate(
                    [values, tensors[name.replace("gate", "up")]]
                )
            else:
                made[old] = values
        return made

    weights, config = tiny.write_ernie(tmp_path / "ernie", rename=older, architectures=["Ernie4_5ForCausalLM"])
    convert(tmp_path / "ernie", tmp_path / "ernie.gguf", "F32", Silent(), name="tiny")
    prompt, expected = separated(weights, config, EXACT)
    assert answers(tmp_path / "ernie.gguf", prompt) == expected


def test_an_untied_output_matrix_is_used(tmp_path):
    def untied(tensors):
        return tensors | {"lm_head.weight": np.roll(tensors["model.embed_tokens.weight"], 7, axis=0)}

    weights, config = tiny.write_ernie(tmp_path / "ernie", rename=untied, tie_word_embeddings=False)
    convert(tmp_path / "ernie", tmp_path / "ernie.gguf", "F32", Silent(), name="tiny")
    prompt, expected = separated(untied(weights), config, EXACT)
    assert answers(tmp_path / "ernie.gguf", prompt) == expected


TEXTS = [
    "The tide gate opens.",
    "潮闸在涨潮时打开。",
    "emoji 🌊 and  two spaces\nnew line",
    "def f(x): return {'a': 12345}",
]


@pytest.mark.parametrize("tokenizer", ["json", "sentencepiece"])
def test_text_becomes_the_original_tokenizer_s_tokens_and_text_again(tmp_path, tokenizer):
    tiny.write_ernie(tmp_path / "ernie", tokenizer=tokenizer)
    convert(tmp_path / "ernie", tmp_path / "ernie.gguf", "F16", Silent(), name="tiny")
    if tokenizer == "json":
        original = Tokenizer.from_file(str(tmp_path / "ernie" / "tokenizer.json"))
        expected = [original.encode(text).ids for text in TEXTS]
    else:
        original = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "ernie" / "tokenizer.model"))
        # SentencePiece folds spaces and line ends before it cuts; llama.cpp keeps them, so those are compared as text.
        expected = [original.Encode(text) if "  " not in text else None for text in TEXTS]
    with llamacpp.serving(tmp_path / "ernie.gguf") as http:
        for text, tokens in zip(TEXTS, expected, strict=True):
            found = http.post("/tokenize", json={"content": text, "add_special": False}).json()["tokens"]
            assert tokens is None or found == tokens
            back = http.post("/detokenize", json={"tokens": found}).json()["content"]
            assert back.removeprefix(" ") == text


@pytest.mark.parametrize("tokenizer", ["json", "sentencepiece"])
def test_a_turn_ends_at_either_end_token_and_user_text_never_becomes_one(tmp_path, tokenizer):
    tiny.write_ernie(tmp_path / "ernie", tokenizer=tokenizer)
    convert(tmp_path / "ernie", tmp_path / "ernie.gguf", "F16", Silent(), name="tiny")
    header = read_header(tmp_path / "ernie.gguf")
    assert header.eos_token_id == 2
    assert header.turn_end_token_id is None
    with llamacpp.serving(tmp_path / "ernie.gguf") as http:
        for text, token in (("</s>", header.eos_token_id), ("<|end_of_sentence|>", header.eot_token_id)):
            as_special = http.post("/tokenize", json={"content": text, "parse_special": True}).json()["tokens"]
            assert as_special[-1] == token
            as_text = http.post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
            assert token not in as_text
            # Forced by a bias, each of them stops generation at once.
            body = {"prompt": [5, 6], "n_predict": 8, "temperature": 0, "logit_bias": [[token, 1000.0]]}
            answer = http.post("/completion", json=body).json()
            assert (answer["stop_type"], answer["content"]) == ("eos", "")


@pytest.mark.parametrize("tokenizer", ["json", "sentencepiece"])
def test_the_chat_template_is_carried_over_and_nothing_is_put_before_it(tmp_path, tokenizer):
    tiny.write_ernie(tmp_path / "ernie", tokenizer=tokenizer)
    convert(tmp_path / "ernie", tmp_path / "ernie.gguf", "F16", Silent(), name="tiny")
    assert read_header(tmp_path / "ernie.gguf").chat_template == tiny.TEMPLATE
    messages = [{"role": "system", "content": "short"}, {"role": "user", "content": "a"}]
    with llamacpp.serving(tmp_path / "ernie.gguf") as http:
        prompt = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
        assert prompt == "<|begin_of_sentence|>short\nUser: a\nAssistant: "
        tokens = http.post("/tokenize", json={"content": prompt, "add_special": True, "parse_special": True}).json()[
            "tokens"
        ]
        begin = http.post("/tokenize", json={"content": "<|begin_of_sentence|>", "parse_special": True}).json()[
            "tokens"
        ]
        assert tokens[: len(begin)] == begin
        assert 1 not in tokens


def test_a_template_of_its_own_file_wins(tmp_path):
    tiny.write_ernie(tmp_path / "ernie")
    (tmp_path / "ernie" / "chat_template.jinja").write_text("{{ bos_token }}own", "utf-8")
    convert(tmp_path / "ernie", tmp_path / "ernie.gguf", "F16", Silent(), name="tiny")
    header = read_header(tmp_path / "ernie.gguf")
    assert header.chat_template == "{{ bos_token }}own"
    assert "tokenizer.ggml.add_bos_token" not in header.fields


def test_four_bits_keep_eight_for_the_vocabulary_and_still_answer(tmp_path):
    _, config = tiny.write_ernie(tmp_path / "ernie")
    convert(tmp_path / "ernie", tmp_path / "q4.gguf", "Q4_0", Silent(), name="tiny")
    convert(tmp_path / "ernie", tmp_path / "q8.gguf", "Q8_0", Silent(), name="tiny")
    four, eight = read_header(tmp_path / "q4.gguf"), read_header(tmp_path / "q8.gguf")
    assert (four.quantisation, eight.quantisation) == ("Q4_0", "Q8_0")
    vocabulary_bytes = config["vocab_size"] * config["hidden_size"] * 34 // 32
    assert vocabulary_bytes < four.weights_bytes < 0.8 * eight.weights_bytes
    assert len(answers(tmp_path / "q4.gguf", [5, 6, 7])) == COUNT


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


BROKEN = {
    "another architecture": (lambda d: edit_config(d, architectures=["Qwen2ForCausalLM"]), "Qwen2ForCausalLM"),
    "stretched positions": (lambda d: edit_config(d, rope_scaling={"type": "yarn", "factor": 4}), "yarn"),
    "more layers than tensors": (lambda d: edit_config(d, num_hidden_layers=3), "lacks 9 tensors"),
    "another vocabulary": (lambda d: edit_config(d, vocab_size=600), "embeddings"),
    "config without a number": (lambda d: edit_config(d, hidden_size=None), "lacks a number"),
    "config that is no JSON": (lambda d: (d / "config.json").write_text("{"), "is not JSON"),
    "no config": (lambda d: (d / "config.json").unlink(), "architecture none"),
    "weights cut": (lambda d: cut(d / "model.safetensors", 100_000), "was cut"),
    "weights cut in the header": (lambda d: cut(d / "model.safetensors", 30), "header is longer"),
    "weights empty": (lambda d: cut(d / "model.safetensors", 0), "header is longer"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "no *.safetensors"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "has no tokenizer"),
    "tokenizer that is no JSON": (lambda d: (d / "tokenizer.json").write_text("x"), "is not JSON"),
    "tokenizer of another kind": (
        lambda d: (d / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": {}}})),
        "WordPiece",
    ),
    "SentencePiece that is none": (lambda d: (d / "tokenizer.model").write_text("x"), "SentencePiece"),
    "an index that names more": (
        lambda d: (d / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"left.out": "b"}})),
        "left.out",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_converted_is_named_and_leaves_no_file(tmp_path, name):
    tiny.write_ernie(tmp_path / "ernie")
    harm, told = BROKEN[name]
    harm(tmp_path / "ernie")
    with pytest.raises(ModelError) as caught:
        convert(tmp_path / "ernie", tmp_path / "out" / "ernie.gguf", "Q8_0", Silent(), name="tiny")
    assert told in str(caught.value)
    assert not list(tmp_path.glob("out/*"))


def test_a_full_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    tiny.write_ernie(tmp_path / "ernie")
    monkeypatch.setattr(download, "SPARE_BYTES", 1 << 60)
    with pytest.raises(DownloadError, match="no room for tiny as Q8_0"):
        convert(tmp_path / "ernie", tmp_path / "out" / "ernie.gguf", "Q8_0", Silent(), name="tiny")
    assert not list(tmp_path.glob("out/*"))


def test_an_unknown_way_to_cut_words_is_refused_not_guessed(tmp_path):
    tiny.write_ernie(tmp_path / "ernie")
    path = tmp_path / "ernie" / "tokenizer.json"
    file = json.loads(path.read_text()) | {"pre_tokenizer": {"type": "Whitespace"}}
    path.write_text(json.dumps(file))
    with pytest.raises(ModelError, match="Whitespace"):
        convert(tmp_path / "ernie", tmp_path / "ernie.gguf", "Q8_0", Silent(), name="tiny")


def test_tokenizer_json_made_from_sentencepiece_gives_the_same_tokens(tmp_path):
    """The newer form of ERNIE's own tokenizer: BPE with byte fallback and spaces as U+2581."""
    folder = tmp_path / "ernie"
    tiny.write_ernie(folder, tokenizer="sentencepiece")
    original = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    pieces = [original.IdToPiece(token) for token in range(original.GetPieceSize())]
    ids = {piece: token for token, piece in enumerate(pieces)}
    # Every split of a piece into two others is a merge, ranked by the piece's score: how converters do it.
    merges = sorted(
        (token, [piece[:at], piece[at:]])
        for piece, token in ids.items()
        for at in range(1, len(piece))
        if token > 258 and piece[:at] in ids and piece[at:] in ids
    )
    added = json.loads((folder / "added_tokens.json").read_text())
    file = {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}]},
        "pre_tokenizer": None,
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "unk_token": "<unk>",
            "vocab": ids,
            "merges": [m for _, m in merges],
        },
        "added_tokens": [
            {"id": token, "content": text, "special": True}
            for text, token in {"<unk>": 0, "<s>": 1, "</s>": 2}.items() | added.items()
        ],
    }
    (folder / "tokenizer.json").write_text(json.dumps(file))
    (folder / "tokenizer.model").unlink()
    convert(folder, tmp_path / "ernie.gguf", "F16", Silent(), name="tiny")
    with llamacpp.serving(tmp_path / "ernie.gguf") as http:
        for text in TEXTS:
            if "  " not in text:
                found = http.post("/tokenize", json={"content": text, "add_special": False}).json()["tokens"]
                assert found == original.Encode(text)
