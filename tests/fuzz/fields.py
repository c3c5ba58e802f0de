"""Bodies: what `read_fields` takes out of one is what another JSON parser finds there, and a key that comes twice never passes."""

import json
import random
from collections import Counter

from fuzz.mutation import Mutator
from tidegate.errors import BadRequest
from tidegate.openai import read_fields, write_fields

CORPUS = tuple(
    text.encode()
    for text in (
        '{"model":"m","messages":[{"role":"user","content":"你好"}],"stream":true}',
        '{ "model" : "m" ,\n\t"prompt":"a\\nb\\u4f60", "max_tokens":16, "temperature":0.7, "stop":["x", "y"] }',
        '{"a":{"a":1,"a":2},"b":[{"a":1}],"c":null,"d":-1.5e10,"e":"\\ud83d\\ude00"}',
        '{"model":"m","mod\\u0065l":"n"}',
        '{"model":"m","model":"n"}',
        '{"":1,"\\"":2,"\\\\":3}',
        "{}",
        "[]",
        '{"stream_options":{"include_usage":true},"n":1}',
    )
)
TOKENS = (
    b'"model"', b'"mod\\u0065l"', b'"model":"n",', b'"m\\u006fdel":"n",', b',"model":1', b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\",
    b"\\u0000", b"\\ud800", b"\\u00e9", b"\xc3\xa9", b"\xff", b"\0", b" ", b"\n", b"\t", b"\r", b"null", b"true", b"NaN", b"1e999",
    b"-0", b"01", b"1" * 30, b"[" * 600, b'{"a":' * 300, b"/**/", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"'a'", b'"a":1,', b'"a":{"a":1},',
)  # fmt: skip


class Pairs(list):
    """An object's keys and values as they come."""


def by_json(body: bytes) -> Pairs | None:
    """The pairs of a JSON object by the standard library; None for what is none."""
    try:
        found = json.loads(body.decode(), object_pairs_hook=Pairs)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, Pairs) else None


def check(body: bytes, seen: Counter[str]) -> None:
    """One input."""
    pairs = by_json(body)
    try:
        fields = read_fields(body)
    except BadRequest as error:
        seen[f"refused, {error.code}"] += 1
        if error.code == "duplicate_key":
            check_double(pairs, error.param)
        return
    assert pairs is not None, "json refuses it"
    assert [key for key, _ in pairs] == list(fields), "keys, their order, and each once"
    for key, value in pairs:
        raw = bytes(fields[key]).decode()
        assert repr(json.loads(raw, object_pairs_hook=Pairs)) == repr(value)
    assert repr(by_json(write_fields(fields))) == repr(pairs), "written again it says the same"
    seen["read"] += 1


def check_double(pairs: Pairs | None, key: str | None) -> None:
    """A key that was refused for coming twice does."""
    assert pairs is not None
    assert [name for name, _ in pairs].count(key) > 1


def run(seed: int, inputs: int, seen: Counter[str]) -> None:
    """So many inputs; the first that fails is told with what repeats it."""
    mutator = Mutator(random.Random(seed), CORPUS, TOKENS)
    for number in range(inputs):
        body = mutator.input(most=1)
        try:
            check(body, seen)
        except Exception as error:
            raise AssertionError(f"seed {seed}, input {number}, body={body!r}: {error!r}") from error
