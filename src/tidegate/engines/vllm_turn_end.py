"""Telling vLLM that a turn of ERNIE ends with `<|end_of_sentence|>` too.

vLLM stops at the ids of `generation_config.json` and at the tokenizer's end of text; ERNIE's files name `</s>` alone. A
folder with a mended copy is handed to it (`--generation-config`): the model's own files stay as they are.
"""

import json
from pathlib import Path
from typing import Any, Final

from tidegate.gguf import TURN_END

FILE: Final = "generation_config.json"


def mended(folder: Path) -> dict[str, Any] | None:
    """The `generation_config.json` that a model should have; None where its own will do. Unreadable files are vLLM's to tell."""
    token = _token_id(folder)
    if token is None:
        return None
    held = _read(folder / FILE)
    ends = _ids(held.get("eos_token_id")) or _ids(_read(folder / "config.json").get("eos_token_id"))
    return None if token in ends else {**held, "eos_token_id": [*ends, token]}


def _token_id(folder: Path) -> int | None:
    added = _read(folder / "added_tokens.json").get(TURN_END)
    if isinstance(added, int):
        return added
    decoder = _read(folder / "tokenizer_config.json").get("added_tokens_decoder")
    for number, token in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and token.get("content") == TURN_END and number.isdigit():
            return int(number)
    tokens = _read(folder / "tokenizer.json").get("added_tokens")
    for token in tokens if isinstance(tokens, list) else ():
        if isinstance(token, dict) and token.get("content") == TURN_END and isinstance(token.get("id"), int):
            return int(token["id"])
    return None


def _ids(value: Any) -> list[int]:
    return (
        [value]
        if isinstance(value, int)
        else [one for one in value if isinstance(one, int)]
        if isinstance(value, list)
        else []
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
