"""Tensors of a safetensors folder as numpy arrays, one at a time, without torch.

Format: 8 bytes of length, a JSON header of that length, the tensors
(https://huggingface.co/docs/safetensors/index#format).
"""

import json
import mmap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import ModelError

MAX_HEADER_BYTES = 100_000_000
"""The format's own bound."""

NUMPY_TYPES: Mapping[str, str] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}


@dataclass(frozen=True)
class _Place:
    data: mmap.mmap
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Weights:
    """The tensors of every `*.safetensors` file in a folder. Raises ModelError for a file that is cut or damaged."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._places: dict[str, _Place] = {}
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ModelError(
                f"{folder} has no *.safetensors file",
                hint="give a folder with config.json and safetensors, or a .gguf file",
            )
        try:
            for path in files:
                self._open(path)
            self._check_index(folder)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._places.clear()
        self._stack.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._places[name].shape

    def float32(self, name: str) -> NDArray[np.float32]:
        """A tensor as float32, in memory of its own."""
        place = self._places[name]
        raw = np.frombuffer(place.data[place.begin : place.end], dtype=NUMPY_TYPES[place.dtype]).reshape(place.shape)
        if place.dtype == "BF16":
            # bfloat16 is the upper half of a float32.
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32)

    def _open(self, path: Path) -> None:
        file = self._stack.enter_context(path.open("rb"))
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise _damaged(path, "its header is longer than the file")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            data = self._stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            for name, entry in header.items():
                if name != "__metadata__":
                    self._places[name] = _place(data, entry, 8 + length, size)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(path, str(error)) from None

    def _check_index(self, folder: Path) -> None:
        """A sharded model names all its tensors in an index: a shard that was left out shows here."""
        index = folder / "model.safetensors.index.json"
        if not index.is_file():
            return
        try:
            missing = sorted(set(json.loads(index.read_bytes())["weight_map"]) - set(self._places))
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(index, str(error)) from None
        if missing:
            raise ModelError(
                f"{folder} lacks {len(missing)} tensors that {index.name} names, the first is {missing[0]}"
            )


def _place(data: mmap.mmap, entry: dict[str, Any], start: int, size: int) -> _Place:
    dtype, shape = str(entry["dtype"]), tuple(int(number) for number in entry["shape"])
    begin, end = (start + int(offset) for offset in entry["data_offsets"])
    if dtype not in NUMPY_TYPES:
        raise ValueError(f"tensors of type {dtype} are not converted, only {', '.join(NUMPY_TYPES)}")
    if not start <= begin <= end <= size:
        raise ValueError(f"a tensor ends at byte {end:,}, the file at {size:,}: it was cut")
    if end - begin != prod(shape) * np.dtype(NUMPY_TYPES[dtype]).itemsize:
        raise ValueError("a tensor's shape and its bytes differ")
    return _Place(data, dtype, shape, begin, end)


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path} is damaged: {what}", hint="get it anew from where it came")
