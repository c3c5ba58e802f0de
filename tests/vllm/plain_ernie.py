"""A tiny ERNIE whose greedy answers are printable ASCII, one character a token, so that text and tokens are the same thing.

Answers of random weights are no words, and most texts of theirs would come back from a tokenizer as other tokens. Here
there are no merges, and what is not printable scores nothing.
"""

import json

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from models.tiny import SPECIAL, write_ernie

POSITIONS = 16_384
"""So tiny a model makes thousands of tokens a second: an answer is to last for seconds."""
PRINTABLE = [chr(number) for number in range(0x21, 0x7F)]


def write_plain_ernie(folder, *, seed=0, **config):
    """Write it, in bfloat16, under the architecture's older name."""
    folder.mkdir(parents=True)
    tokenizer = characters()
    kept = [tokenizer.token_to_id(letter) for letter in PRINTABLE]

    def printable_only(tensors):
        embeddings = tensors["model.embed_tokens.weight"]
        silent = [number for number in range(len(embeddings)) if number not in kept]
        embeddings[silent] = 0.0
        return tensors

    write_ernie(
        folder,
        tokenizer=tokenizer,
        dtype="bfloat16",
        seed=seed,
        rename=printable_only,
        model_type="ernie4_5",
        torch_dtype="bfloat16",
        max_position_embeddings=POSITIONS,
        **config,
    )
    return folder


def characters():
    """A byte-level BPE with one merge, of a control character no text here has: llama.cpp wants one."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True) for text in SPECIAL]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=len(special) + len(alphabet) + 1,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(["\x01\x01"] * 20, trainer)
    return tokenizer


def token_id(folder, text):
    return next(
        one["id"]
        for one in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        if one["content"] == text
    )
