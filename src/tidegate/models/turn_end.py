"""Telling llama.cpp that a turn of ERNIE ends with `<|end_of_sentence|>` too.

Files made from ERNIE's configuration name `</s>` alone. The missing key is put into the header once, after the
download was checked; the tensors stay as they are.
"""

import shutil
import struct
from pathlib import Path

from tidegate.gguf import SCALARS, GgufHeader, read_header
from tidegate.models.download import CHUNK_BYTES, PART, check_free_space

KEYS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
COUNTS = struct.Struct("<4sIQQ")
"""Magic, version, number of tensors, number of keys: how every file begins."""
UNSIGNED = next(kind for kind, code in SCALARS.items() if code == "I")


def is_missing(header: GgufHeader) -> bool:
    """Whether a file has `<|end_of_sentence|>`, does not name it as an end, and has room to."""
    return header.turn_end_token_id is not None and any(key not in header.fields for key in KEYS)


def declare(path: Path, target: Path) -> bool:
    """Write `path` with the end of a turn named to `target` (which may be `path`), whole or not at all.

    False, and nothing is written, where it is named already.
    """
    header = read_header(path)
    if not is_missing(header):
        return False
    key = next(key for key in KEYS if key not in header.fields)
    check_free_space(target.parent, path.stat().st_size, f"a copy of {path.name}")
    entry = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<II", UNSIGNED, header.turn_end_token_id)
    part = target.with_name(target.name + PART)
    try:
        with path.open("rb") as old, part.open("wb") as new:
            magic, version, tensors, keys = COUNTS.unpack(old.read(COUNTS.size))
            new.write(COUNTS.pack(magic, version, tensors, keys + 1))
            new.write(old.read(header.keys_end - COUNTS.size))
            new.write(entry)
            new.write(old.read(header.tensors_end - header.keys_end))
            new.write(bytes(-new.tell() % header.alignment))
            old.seek(header.tensors_end + -header.tensors_end % header.alignment)
            shutil.copyfileobj(old, new, CHUNK_BYTES)
        read_header(part)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return True
