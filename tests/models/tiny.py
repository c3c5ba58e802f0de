"""A tiny ERNIE 4.5 with random weights, as a safetensors folder, with either kind of tokenizer."""

import io
import json

import numpy as np
import sentencepiece
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

CORPUS = [
    "The tide gate opens when the water rises, and closes before the harbour runs dry.",
    "潮闸在涨潮时打开，在港口干涸之前关闭。小模型也能回答问题。",
    "User: what is a replica? Assistant: one engine process behind a gateway.",
    "0123456789 def main(): return {'a': [1, 2, 3]}",
] * 20
SPECIAL = ["<unk>", "<s>", "</s>", "<|begin_of_sentence|>", "<|end_of_sentence|>"]
TEMPLATE = (
    "<|begin_of_sentence|>{% for message in messages %}{% if message['role'] == 'user' %}User: {{ message['content'] }}\n"
    "{% elif message['role'] == 'assistant' %}Assistant: {{ message['content'] }}<|end_of_sentence|>"
    "{% else %}{{ message['content'] }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}Assistant: {% endif %}"
)
CONFIG = {
    "architectures": ["Ernie4_5_ForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 500000,
    "tie_word_embeddings": True,
    "use_bias": False,
}


def write_byte_level(folder):
    """A byte-level BPE as tokenizer.json; its number of tokens."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=420,
        special_tokens=[AddedToken(text, special=True) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer.get_vocab_size()


def write_sentencepiece(folder):
    """A SentencePiece BPE as tokenizer.model, the special tokens added after training; its number of tokens."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=440,
        byte_fallback=True,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    size = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).GetPieceSize()
    added = {text: size + position for position, text in enumerate(SPECIAL[3:])}
    (folder / "added_tokens.json").write_text(json.dumps(added))
    return size + len(added)


def tokenizer_settings(**more):
    return {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": TEMPLATE} | more


def random_weights(vocabulary, rng, config):
    """Weights by Hugging Face's names, float32, of a spread that keeps the best token well ahead of the second."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))

    def matrix(rows, columns, spread=1.0):
        return (rng.standard_normal((rows, columns)) * spread / np.sqrt(columns)).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": rng.standard_normal((vocabulary, hidden)).astype(np.float32),
        "model.norm.weight": (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "input_layernorm.weight": (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32),
            at + "post_attention_layernorm.weight": (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32),
            at + "self_attn.q_proj.weight": matrix(q, hidden, 2.0),
            at + "self_attn.k_proj.weight": matrix(kv, hidden, 2.0),
            at + "self_attn.v_proj.weight": matrix(kv, hidden, 2.0),
            at + "self_attn.o_proj.weight": matrix(hidden, q, 2.0),
            at + "mlp.gate_proj.weight": matrix(inner, hidden, 2.0),
            at + "mlp.up_proj.weight": matrix(inner, hidden, 2.0),
            at + "mlp.down_proj.weight": matrix(hidden, inner, 2.0),
        }
    return tensors


def as_bfloat16_bits(values):
    """The nearest bfloat16 of each float32, as its 16 bits."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_bfloat16(tensors, path):
    """A safetensors file of bfloat16, which numpy does not know, written by hand."""
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, values in tensors.items():
        raw = as_bfloat16_bits(values).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, offset + len(raw)]}
        blobs.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_ernie(folder, *, tokenizer="json", dtype="float32", seed=0, rename=lambda tensors: tensors, **config):
    """Write a tiny ERNIE; its weights as the reference implementation takes them. `tokenizer` may be one of your own."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(tokenizer, Tokenizer):
        tokenizer.save(str(folder / "tokenizer.json"))
        vocabulary = tokenizer.get_vocab_size()
    else:
        vocabulary = write_byte_level(folder) if tokenizer == "json" else write_sentencepiece(folder)
    vocabulary = config.get("vocab_size", vocabulary)
    settings = CONFIG | {"vocab_size": vocabulary} | config
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_settings()))
    tensors = random_weights(vocabulary, np.random.default_rng(seed), settings)
    if dtype == "bfloat16":
        write_bfloat16(rename(tensors), folder / "model.safetensors")
        tensors = {
            name: (as_bfloat16_bits(values).astype(np.uint32) << 16).view(np.float32)
            for name, values in tensors.items()
        }
    else:
        save_file(rename(tensors), folder / "model.safetensors")
    return tensors, settings
