"""A tokenizer as GGUF keeps it: SentencePiece (`tokenizer.model`), or BPE of a `tokenizer.json`.

Token types and keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from tidegate.errors import ModelError
from tidegate.gguf import TURN_END
from tidegate.models.shape import read_json


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass
class Vocabulary:
    """What goes into the header."""

    model: str
    """`llama` (SentencePiece) or `gpt2` (byte-level BPE)."""
    pre: str
    """How text is cut into words before BPE, by llama.cpp's name."""
    tokens: list[str]
    types: list[int]
    scores: list[float] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    special: dict[str, int] = field(default_factory=dict)
    """`bos`, `eos`, `eot`, `eom`, `unk`, `pad`."""
    add_bos: bool | None = None
    add_eos: bool | None = None
    add_space_prefix: bool | None = None
    chat_template: str = ""


LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
SPLITS: Mapping[str, str] = {LLAMA3_SPLIT: "llama-bpe", QWEN2_SPLIT: "qwen2"}
"""Regular expressions of `Split` pre-tokenizers, and llama.cpp's names for what they do."""


def read_vocabulary(folder: Path, size: int) -> Vocabulary:
    """The tokenizer of a safetensors folder, filled up to `size` tokens. Raises ModelError."""
    settings = read_json(folder / "tokenizer_config.json")
    if (folder / "tokenizer.model").is_file():
        vocabulary = _sentencepiece(folder, settings, size)
    elif (folder / "tokenizer.json").is_file():
        vocabulary = _tokenizer_json(folder / "tokenizer.json", settings, size)
    else:
        raise ModelError(
            f"{folder} has no tokenizer", hint="it needs tokenizer.model (SentencePiece) or tokenizer.json"
        )
    vocabulary.chat_template = chat_template(folder, settings)
    _set_special(vocabulary, folder, settings)
    return vocabulary


def chat_template(folder: Path, settings: Mapping[str, Any]) -> str:
    """The folder's chat template; empty for none."""
    if (path := folder / "chat_template.jinja").is_file():
        return path.read_text("utf-8")
    found = settings.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        named = {str(entry.get("name")): str(entry.get("template")) for entry in found if isinstance(entry, dict)}
        return named.get("default") or next(iter(named.values()), "")
    return found if isinstance(found, str) else ""


def _sentencepiece(folder: Path, settings: Mapping[str, Any], size: int) -> Vocabulary:
    from sentencepiece import SentencePieceProcessor

    path = folder / "tokenizer.model"
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromFile(str(path))
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{path} is not a SentencePiece model: {error}") from None
    vocabulary = _padded("llama", "default", size)
    for token in range(min(processor.GetPieceSize(), size)):
        vocabulary.tokens[token] = processor.IdToPiece(token)
        vocabulary.scores[token] = processor.GetScore(token)
        vocabulary.types[token] = _piece_type(processor, token)
    _add_tokens(vocabulary, _added_tokens(folder, settings))
    space = settings.get("add_prefix_space")
    vocabulary.add_space_prefix = (
        bool(processor.Encode("a", out_type=str)[0].startswith("\u2581")) if space is None else bool(space)
    )
    return vocabulary


def _piece_type(processor: Any, token: int) -> TokenType:
    if processor.IsUnknown(token):
        return TokenType.UNKNOWN
    if processor.IsControl(token):
        return TokenType.CONTROL
    if processor.IsUnused(token):
        return TokenType.UNUSED
    return TokenType.BYTE if processor.IsByte(token) else TokenType.NORMAL


def _added_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """Tokens added after training, by id: text, and whether they are special."""
    added = {int(token): (text, looks_special(text)) for text, token in read_json(folder / "added_tokens.json").items()}
    for token, entry in settings.get("added_tokens_decoder", {}).items():
        text = str(entry["content"])
        added[int(token)] = text, bool(entry.get("special")) or looks_special(text)
    return added


def looks_special(text: str) -> bool:
    """Whether a token is meant for the machine, whatever its file says: `<|...|>` must never come out of a user's text."""
    return text.startswith("<|") and text.endswith("|>")


def _add_tokens(vocabulary: Vocabulary, added: Mapping[int, tuple[str, bool]]) -> None:
    for token, (text, special) in added.items():
        if token >= len(vocabulary.tokens):
            raise ModelError(
                f"the token {text!r} has the id {token}, and the model has {len(vocabulary.tokens)} tokens"
            )
        vocabulary.tokens[token] = text
        if vocabulary.types[token] != TokenType.UNKNOWN:
            vocabulary.types[token] = TokenType.CONTROL if special else TokenType.USER_DEFINED
    for token, text in enumerate(vocabulary.tokens):
        if looks_special(text) and vocabulary.types[token] in {TokenType.NORMAL, TokenType.USER_DEFINED}:
            vocabulary.types[token] = TokenType.CONTROL


def _padded(model: str, pre: str, size: int) -> Vocabulary:
    return Vocabulary(
        model, pre, [f"[PAD{token}]" for token in range(size)], [TokenType.UNUSED] * size, [-10_000.0] * size
    )


def _tokenizer_json(path: Path, settings: Mapping[str, Any], size: int) -> Vocabulary:
    file = read_json(path)
    model = file.get("model", {})
    if model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise ModelError(
            f"{path} is a tokenizer of the kind {model.get('type')!r}; BPE and SentencePiece are converted"
        )
    byte_level = not model.get("byte_fallback")
    vocabulary = _padded("gpt2", _pre_tokenizer(path, file), size) if byte_level else _padded("llama", "default", size)
    merges = [entry if isinstance(entry, str) else " ".join(entry) for entry in model.get("merges", [])]
    for text, token in model["vocab"].items():
        if token >= size:
            raise ModelError(f"{path}: the token {text!r} has the id {token}, and the model has {size} tokens")
        vocabulary.tokens[token], vocabulary.types[token] = text, TokenType.NORMAL
    if byte_level:
        vocabulary.merges, vocabulary.scores = merges, []
    else:
        _as_sentencepiece(vocabulary, merges, str(model.get("unk_token") or ""))
        # "prepend" puts a space before the text, as SentencePiece's dummy prefix does.
        explicit = settings.get("add_prefix_space")
        vocabulary.add_space_prefix = (
            '"Prepend"' in json.dumps(file.get("normalizer")) if explicit is None else bool(explicit)
        )
    _add_tokens(
        vocabulary, {entry["id"]: (entry["content"], bool(entry["special"])) for entry in file.get("added_tokens", [])}
    )
    return vocabulary


def _as_sentencepiece(vocabulary: Vocabulary, merges: list[str], unknown: str) -> None:
    """Scores and byte tokens: llama.cpp merges the pair of the highest score first, BPE that of the lowest rank."""
    rank: dict[str, int] = {}
    for position, merge in enumerate(merges):
        rank.setdefault("".join(merge.split(" ", 1)), position)
    for token, text in enumerate(vocabulary.tokens):
        if vocabulary.types[token] != TokenType.NORMAL:
            continue
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            vocabulary.types[token], vocabulary.scores[token] = TokenType.BYTE, 0.0
        elif text == unknown:
            vocabulary.types[token], vocabulary.scores[token] = TokenType.UNKNOWN, 0.0
        else:
            vocabulary.scores[token] = -float(rank.get(text, 0))


def _pre_tokenizer(path: Path, file: Mapping[str, Any]) -> str:
    """llama.cpp's name of how the file cuts text into words. Raises ModelError for one that it does not know.

    A wrong one still gives text, only worse text, so there is no guessing.
    """
    whole = file.get("pre_tokenizer") or {}
    steps = whole.get("pretokenizers", [whole])
    kinds = [step.get("type") for step in steps]
    match kinds:
        case ["ByteLevel"] if steps[0].get("use_regex", True):
            return "gpt-2"
        case ["Digits", "ByteLevel"] if steps[0].get("individual_digits"):
            return "smollm"
        case ["Split", "ByteLevel"]:
            pattern = steps[0].get("pattern", {}).get("Regex")
            if pattern in SPLITS:
                return SPLITS[pattern]
    raise ModelError(
        f"{path} cuts text into words in a way that is not known here ({', '.join(map(str, kinds)) or 'none'})",
        hint="give a GGUF file of this model instead",
    )


def _set_special(vocabulary: Vocabulary, folder: Path, settings: Mapping[str, Any]) -> None:
    """Beginning, end, and what else stops a turn: both the tokenizer's end and `<|end_of_sentence|>` do."""
    config, generation = read_json(folder / "config.json"), read_json(folder / "generation_config.json")
    ids = {text: token for token, text in enumerate(vocabulary.tokens)}
    for role in ("bos", "eos", "unk", "pad"):
        text = settings.get(f"{role}_token")
        token = ids.get(str(text["content"] if isinstance(text, dict) else text))
        named = _as_list(config.get(f"{role}_token_id"))
        if token is None and named:
            token = named[0]
        if token is not None and 0 <= token < len(vocabulary.tokens):
            vocabulary.special[role] = token
    stops = [ids.get(TURN_END), *_as_list(generation.get("eos_token_id")), *_as_list(config.get("eos_token_id"))]
    further = [token for token in dict.fromkeys(stops) if token is not None and token != vocabulary.special.get("eos")]
    for role, token in zip(("eot", "eom"), further, strict=False):
        vocabulary.special[role] = token
    for role in ("bos", "eos", "eot", "eom"):
        if (token := vocabulary.special.get(role)) is not None:
            vocabulary.types[token] = TokenType.CONTROL
    vocabulary.add_bos, vocabulary.add_eos = settings.get("add_bos_token"), settings.get("add_eos_token")
    bos = vocabulary.tokens[vocabulary.special["bos"]] if "bos" in vocabulary.special else ""
    if (
        vocabulary.chat_template
        and "bos_token" not in vocabulary.chat_template
        and (not bos or bos not in vocabulary.chat_template)
    ):
        # The template writes its own beginning; the engine must not put another before it.
        vocabulary.add_bos = False


def _as_list(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value or [])
