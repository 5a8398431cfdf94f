"""Laws of refsim.files: what is saved is what is loaded, and a file that is cut or grown is never a tensor."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import files
from refsim.errors import RefsimError
from refsim.files import Stored
from refsim.formats import FORMATS, Format

NAMED = (".npy", ".npz", ".safetensors")
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
KEYS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=12)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[NDArray[np.unsignedinteger[Any]], Format]:
    """Codes of any format and shape, rebuilt from a seed: (codes, format)."""
    format, shape, seed = draw(st.sampled_from(FORMATS)), draw(SHAPES), draw(st.integers(0, 999))
    codes = np.random.default_rng(seed).integers(0, format.code_limit, size=shape, dtype=np.uint64)
    return np.asarray(codes.astype(format.code_dtype)), format


def reloaded(suffix: str, tensor: tuple[NDArray[np.unsignedinteger[Any]], Format], **said: Any) -> tuple[Stored, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"w{suffix}")
        files.save(path, *tensor)
        return files.load(path, **said), path.read_bytes()


def same(stored: Stored, tensor: tuple[NDArray[np.unsignedinteger[Any]], Format]) -> bool:
    codes, format = tensor
    return stored.format is format and stored.codes.dtype == codes.dtype and np.array_equal(stored.codes, codes)


@given(tensor=tensors(), suffix=st.sampled_from(NAMED))
def test_load_inverts_save_without_being_told_the_format(tensor, suffix):
    assert same(reloaded(suffix, tensor)[0], tensor)


@given(tensor=tensors())
def test_load_inverts_save_for_raw_files_told_format_and_shape(tensor):
    stored, content = reloaded(".bin", tensor, format=tensor[1], shape=tensor[0].shape)
    assert same(stored, tensor)
    width = {4: 4, 6: 6}.get(tensor[1].bits, 8 * tensor[0].itemsize)
    assert len(content) == -(-tensor[0].size * width // 8)


@given(tensor=tensors(), suffix=st.sampled_from(NAMED))
def test_saving_what_was_loaded_gives_the_same_bytes(tensor, suffix):
    stored, content = reloaded(suffix, tensor)
    assert reloaded(suffix, (stored.codes, stored.format))[1] == content


@given(tensor=tensors(), suffix=st.sampled_from((*NAMED, ".bin")), place=st.floats(0, 1, exclude_max=True))
def test_a_file_that_is_cut_is_refused(tensor, suffix, place):
    _, content = reloaded(suffix, tensor, format=tensor[1], **({"shape": tensor[0].shape} if suffix == ".bin" else {}))
    assume(content)
    refused(suffix, content[: int(place * len(content))], tensor)


@given(
    tensor=tensors(), suffix=st.sampled_from((".npy", ".safetensors", ".bin")), more=st.binary(min_size=1, max_size=9)
)
def test_a_file_that_has_grown_is_refused(tensor, suffix, more):
    _, content = reloaded(suffix, tensor, format=tensor[1], **({"shape": tensor[0].shape} if suffix == ".bin" else {}))
    refused(suffix, content + more, tensor)


def refused(suffix: str, content: bytes, tensor: tuple[NDArray[np.unsignedinteger[Any]], Format]) -> None:
    said: dict[str, Any] = {"shape": tensor[0].shape} if suffix == ".bin" else {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"w{suffix}")
        path.write_bytes(content)
        with pytest.raises(RefsimError):
            files.load(path, tensor[1], **said)


@given(
    given_tensors=st.dictionaries(KEYS, tensors(), min_size=1, max_size=5),
    metadata=st.dictionaries(KEYS, KEYS, max_size=3),
)
def test_safetensors_keeps_every_key_and_all_metadata(given_tensors, metadata):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.safetensors")
        files.save_all(path, given_tensors, metadata=metadata)
        loaded = files.load_all(path)
        assert set(loaded) == set(given_tensors)
        for key, tensor in given_tensors.items():
            assert same(loaded[key], tensor)
            assert dict(loaded[key].metadata) == metadata
        files.save_all(Path(folder, "again.safetensors"), loaded, metadata=metadata)
        assert Path(folder, "again.safetensors").read_bytes() == path.read_bytes()


@given(
    given_tensors=st.dictionaries(
        st.from_regex(r"[A-Za-z0-9_]{1,9}(\.[0-9]{1,2})?", fullmatch=True), tensors(), max_size=5
    )
)
def test_npz_keeps_every_key(given_tensors):
    with tempfile.TemporaryDirectory() as folder:
        files.save_all(Path(folder, "w.npz"), given_tensors)
        loaded = files.load_all(Path(folder, "w.npz"))
        assert list(loaded) == list(given_tensors)
        for key, tensor in given_tensors.items():
            assert same(loaded[key], tensor)


@given(tensor=tensors(), order=st.sampled_from("CF"), big=st.booleans())
def test_numpys_own_files_hold_the_same_codes_in_any_order(tensor, order, big):
    codes, format = tensor
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.npy")
        np.save(path, np.array(codes, dtype=codes.dtype.newbyteorder(">" if big else "<"), order=order))
        assert same(files.load(path, format), tensor)
