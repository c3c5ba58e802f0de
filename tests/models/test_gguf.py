"""GGUF headers, whole and broken files, and the memory arithmetic."""

import contextlib
import struct
import time

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import ModelError
from tidegate.gguf import BLOCK_SIZES, FILE_TYPES, read_header


def test_the_tables_are_those_of_the_package_gguf():
    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        assert BLOCK_SIZES[int(kind)] == sizes
    for number, name in FILE_TYPES.items():
        assert gguf.LlamaFileType(number).name in {f"MOSTLY_{name}", f"ALL_{name}", f"MOSTLY_{name}_MOE"}


def test_a_header_says_what_the_model_is(ernie_gguf):
    header = read_header(ernie_gguf)
    assert (header.architecture, header.name, header.quantisation) == ("ernie4_5", "tiny", "Q8_0")
    assert (header.layers, header.hidden, header.heads, header.feed_forward) == (2, 64, 4, 128)
    assert (header.vocabulary, header.context_tokens) == (420, 512)
    assert header.kv_values_per_token == 2 * 2 * 2 * 32
    assert (header.eos_token_id, header.eot_token_id, header.turn_end_token_id) == (2, 4, None)
    assert header.chat_template.startswith("<|begin_of_sentence|>")
    assert header.parameters == sum(int(np.prod(t.shape)) for t in gguf.GGUFReader(ernie_gguf).tensors)
    assert header.weights_bytes == sum(int(t.n_bytes) for t in gguf.GGUFReader(ernie_gguf).tensors)


def write(path, *, vocabulary=100, tensors=1, **keys):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"token{number}" for number in range(vocabulary)])
    writer.add_token_merges([f"a b{number}" for number in range(vocabulary)])
    writer.add_token_scores([0.5] * vocabulary)
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)
    for number in range(tensors):
        writer.add_tensor(f"t{number}", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_vocabulary_as_large_as_ernie_s_is_read_many_times_faster_than_by_the_package(tmp_path):
    """Every warm start reads it, so it has to be a matter of milliseconds; the package's reader is the yardstick."""
    path = tmp_path / "large.gguf"
    write(path, vocabulary=103_424)

    def seconds(read):
        begun = time.perf_counter()
        read(path)
        return time.perf_counter() - begun

    assert read_header(path).vocabulary == 103_424
    assert 5 * min(seconds(read_header) for _ in range(3)) < seconds(gguf.GGUFReader)


def test_heads_that_differ_by_layer_are_added_up(tmp_path):
    write(tmp_path / "x.gguf", head_count=[8, 8], head_count_kv=[2, 4], block_count=2, embedding_length=256)
    header = read_header(tmp_path / "x.gguf")
    assert header.kv_values_per_token == (2 + 4) * (32 + 32)


def test_a_file_cut_anywhere_is_never_taken_for_a_model(tmp_path, ernie_gguf):
    data = ernie_gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    for keep in {0, 1, 4, 8, 23, 24, 100, 5_000, 20_000, len(data) // 2, len(data) - 1}:
        cut.write_bytes(data[:keep])
        with pytest.raises(ModelError, match="not a whole GGUF file"):
            read_header(cut)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_anywhere_in_the_header_gives_a_model_error_or_a_header_and_nothing_else(
    tmp_path_factory, ernie_gguf, data
):
    whole = bytearray(ernie_gguf.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, 12_000))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(whole)
    with contextlib.suppress(ModelError):
        assert read_header(path).path == path


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "it is empty"),
        (b"<html>please log in</html>" * 10, "does not begin with GGUF"),
        (struct.pack("<4sIQQ", b"GGUF", 9, 1, 1), "format version is 9"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 1), "claims"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 0), "no tensors"),
    ],
)
def test_what_is_no_gguf_is_named_as_what_it_is(tmp_path, data, told):
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=told):
        read_header(tmp_path / "x.gguf")


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="cannot be read"):
        read_header(tmp_path)
