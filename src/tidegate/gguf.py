"""GGUF files: what their header says, and whether they are whole.

Reads the header alone (tens of milliseconds for a vocabulary of 100,000), never the weights. The format is
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; numbers are little-endian.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from tidegate.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)

BLOCK_SIZES: Mapping[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18),
}  # fmt: skip
"""Tensor type: values in a block, bytes of a block. A test holds it to the package `gguf`."""

FILE_TYPES: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 25: "IQ4_NL", 30: "IQ4_XS",
    32: "BF16", 38: "MXFP4", 39: "NVFP4",
}  # fmt: skip
"""`general.file_type`: quantisation."""

SCALARS: Mapping[int, str] = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MAX_COUNT = 1 << 24
"""More keys, tensors or characters than this are a broken file, not a large one."""
SHORT_ARRAY = 4096
"""Arrays of numbers up to this length (heads of each layer) are kept; vocabularies are skipped."""

TURN_END = "<|end_of_sentence|>"
"""Ends a turn of ERNIE 4.5, whose files name only `</s>` as the end."""


@dataclass(frozen=True)
class GgufHeader:
    """What the header of one GGUF file says."""

    path: Path
    architecture: str
    name: str
    quantisation: str
    parameters: int
    weights_bytes: int
    context_tokens: int | None
    """Positions the model was trained on."""
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_values_per_token: int
    """Numbers a token leaves in the KV cache: keys and values of all layers."""
    vocabulary: int
    chat_template: str
    eos_token_id: int | None
    eot_token_id: int | None
    turn_end_token_id: int | None
    """Id of `<|end_of_sentence|>` where the file names it neither as eos nor as eot: the engine must be told
    (`tokenizer.ggml.eot_token_id`), or turns do not end."""
    keys_end: int
    """Where in the file the keys end and the descriptions of tensors begin."""
    tensors_end: int
    """Where these end; the tensors follow at the next multiple of `alignment`."""
    alignment: int
    fields: Mapping[str, Any] = field(repr=False)
    """Every scalar, string and short array of numbers, by its key."""


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of `path`. Raises ModelError that says what is wrong with the file.

    A file is whole when every tensor that its header names lies inside it.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except (struct.error, IndexError, UnicodeDecodeError, ArithmeticError, TypeError):
        raise _broken(path, "its header ends too early or is damaged") from None
    except ValueError as error:
        # mmap refuses an empty file; _parse says what it found.
        raise _broken(path, "it is empty" if "empty" in str(error) else str(error)) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None


def _broken(path: Path, what: str) -> ModelError:
    return ModelError(
        f"{path} is not a whole GGUF file: {what}",
        hint="pull it again (`tidegate models pull`), or give another file with --model",
    )


class _Cursor:
    """A position in the header, moved on by every read."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def number(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += size
        return value

    def count(self) -> int:
        value: int = self.number("Q")
        if value > MAX_COUNT:
            raise ValueError(f"its header claims {value} entries")
        return value

    def text(self) -> str:
        size = self.count()
        raw = self.data[self.at : self.at + size]
        if len(raw) != size:
            raise IndexError
        self.at += size
        return raw.decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array()
        if kind not in SCALARS:
            raise ValueError(f"its header has a value of the unknown type {kind}")
        return self.number(SCALARS[kind])

    def array(self) -> Any:
        """A short array of numbers as a tuple; of any other its length and where it begins."""
        kind, size = self.number("I"), self.count()
        start = self.at
        if kind in SCALARS:
            width = struct.calcsize("<" + SCALARS[kind])
            self.at += width * size
            if self.at > len(self.data):
                raise IndexError
            if size <= SHORT_ARRAY:
                return struct.unpack_from(f"<{size}{SCALARS[kind]}", self.data, start)
        elif kind == STRING:
            self._skip_strings(size)
        else:
            raise ValueError(f"its header has an array of the unsupported type {kind}")
        return Skipped(size, start)

    def _skip_strings(self, size: int) -> None:
        at, data, length = self.at, self.data, struct.Struct("<Q").unpack_from
        for _ in range(size):
            at += 8 + length(data, at)[0]
        self.at = at


@dataclass(frozen=True)
class Skipped:
    """An array too long to keep: its length, and the offset of its first element."""

    size: int
    start: int


def _parse(path: Path, data: mmap.mmap) -> GgufHeader:
    if data[:4] != MAGIC:
        raise ValueError("it does not begin with GGUF")
    cursor = _Cursor(data)
    cursor.at = 4
    version = cursor.number("I")
    if version not in VERSIONS:
        raise ValueError(f"its format version is {version}, not one of {', '.join(map(str, VERSIONS))}")
    tensors, keys = cursor.count(), cursor.count()
    fields: dict[str, Any] = {}
    for _ in range(keys):
        key = cursor.text()
        fields[key] = cursor.value(cursor.number("I"))
    keys_end, alignment = cursor.at, fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {alignment!r}")
    parameters, weights, last = _tensors(cursor, tensors)
    end = -(-cursor.at // alignment) * alignment + last
    if end > len(data):
        raise ValueError(f"it has {len(data):,} bytes, and its tensors end at {end:,}: it was cut")
    places = {"keys_end": keys_end, "tensors_end": cursor.at, "alignment": alignment}
    return _header(path, data, fields, parameters=parameters, weights_bytes=weights, **places)


def _tensors(cursor: _Cursor, count: int) -> tuple[int, int, int]:
    """Number of parameters, bytes of all tensors, and the offset, from where they begin, at which the last one ends."""
    if count == 0:
        raise ValueError("it has no tensors")
    parameters = weights = last = 0
    for _ in range(count):
        name = cursor.text()
        dimensions = [cursor.number("Q") for _ in range(cursor.number("I"))]
        kind, offset = cursor.number("I"), cursor.number("Q")
        if kind not in BLOCK_SIZES:
            raise ValueError(f"tensor {name} has the unknown type {kind}; a newer Tidegate may know it")
        values, size = BLOCK_SIZES[kind]
        elements = prod(dimensions)
        parameters += elements
        weights += elements // values * size
        last = max(last, offset + elements // values * size)
    return parameters, weights, last


def _header(path: Path, data: mmap.mmap, fields: dict[str, Any], **measured: int) -> GgufHeader:
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str):
        raise ValueError("it does not say what architecture it is")  # noqa: TRY004 - translated by read_header

    def of(key: str, default: Any = 0) -> Any:
        value = fields.get(f"{architecture}.{key}", default)
        if value is not default and not isinstance(value, int | tuple):
            raise ValueError(f"{architecture}.{key} is {value!r}")
        return value

    layers, hidden = of("block_count"), of("embedding_length")
    heads = _largest(of("attention.head_count"))
    kv_heads = of("attention.head_count_kv", heads)
    kv_heads_of_all_layers = sum(kv_heads) if isinstance(kv_heads, tuple) else kv_heads * layers
    head_dim = hidden // heads if heads else 0
    tokens = fields.get("tokenizer.ggml.tokens", ())
    eos, eot = fields.get("tokenizer.ggml.eos_token_id"), fields.get("tokenizer.ggml.eot_token_id")
    turn_end = _token_id(data, tokens, TURN_END) if isinstance(tokens, Skipped) else None
    return GgufHeader(
        path=path,
        architecture=architecture,
        name=fields.get("general.name", path.stem),
        quantisation=FILE_TYPES.get(fields.get("general.file_type", -1), "unknown"),
        context_tokens=of("context_length", None),
        layers=layers,
        hidden=hidden,
        feed_forward=_largest(of("feed_forward_length")),
        heads=heads,
        kv_values_per_token=kv_heads_of_all_layers
        * (of("attention.key_length", head_dim) + of("attention.value_length", head_dim)),
        vocabulary=tokens.size if isinstance(tokens, Skipped) else of("vocab_size"),
        chat_template=fields.get("tokenizer.chat_template", ""),
        eos_token_id=eos,
        eot_token_id=eot,
        turn_end_token_id=turn_end if turn_end not in {eos, eot} else None,
        fields=fields,
        **measured,
    )


def _largest(value: Any) -> int:
    """A number, or the largest of those that the layers have each."""
    return int(max(value) if isinstance(value, tuple) else value)


def _token_id(data: mmap.mmap, tokens: Skipped, text: str) -> int | None:
    """The position of `text` in the array of strings `tokens`."""
    wanted = struct.pack("<Q", len(text)) + text.encode()
    if data.find(wanted, tokens.start) < 0:
        return None
    at, length = tokens.start, struct.Struct("<Q").unpack_from
    for position in range(tokens.size):
        if data[at : at + len(wanted)] == wanted:
            return position
        at += 8 + length(data, at)[0]
    return None
