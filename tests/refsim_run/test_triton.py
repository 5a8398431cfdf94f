"""The stand-in for Triton's driver: what becomes of arguments, and a program with an autotuned kernel from start to end."""

from types import SimpleNamespace

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim_run.session import GpuSession
from refsim_run.triton.driver import DeviceAddresses, HostMemory, benchmarked, flattened, tensors, values


class HostTensor:
    """What Triton asks of a tensor, over an array of NumPy's."""

    def __init__(self, array):
        self.base, self.dtype = array, array.dtype

    def data_ptr(self):
        return self.base.ctypes.data


def test_tuples_are_taken_apart_and_constants_left_out():
    signature = ("*fp32", "constexpr", ("i32", ("constexpr", "*i8")), "fp64")
    assert list(flattened(signature, [1, 2, (3, (4, 5)), 6])) == [("*fp32", 1), ("i32", 3), ("*i8", 5), ("fp64", 6)]


def test_views_of_one_piece_of_memory_are_mapped_once():
    whole, other = np.arange(64, dtype=np.uint8), np.zeros(8, np.uint8)
    memory = HostMemory()
    for array in (whole[8:16], whole[12:40], other, whole[8:10]):
        memory.take(HostTensor(array))
    found = {first: held.nbytes for first, held in memory.parted()}
    assert found == {whole.ctypes.data + 8: 32, other.ctypes.data: 8}


def test_pointers_become_addresses_of_the_device():
    session, x = GpuSession(), np.arange(8, dtype=np.float32)
    tensor = HostTensor(x)
    pairs = [("*fp32", tensor), ("*fp32", x.ctypes.data + 4), ("*fp32", None), ("*fp32", 12345)]
    assert list(tensors(pairs)) == [tensor]
    memory = HostMemory()
    memory.take(tensor)
    stretches = memory.parted()
    with session.memory.mapped(stretches, "test") as mapped:
        addresses = DeviceAddresses(session, stretches, mapped)
        first, second, none = values(pairs[:3], (), addresses)
        assert session.memory.read(int(first), 32).view(np.float32).tolist() == x.tolist()
        assert (second - first, none, first.dtype) == (4, 0, np.uint64)
        with pytest.raises(RefsimError, match="bad-argument"):
            values(pairs[3:], (), addresses)


def test_the_first_element_of_one_array_is_no_end_of_the_one_before_it():
    whole = np.zeros(64, np.uint8)
    parts = [(whole.ctypes.data + at, whole[at : at + 32]) for at in (0, 32)]
    addresses = DeviceAddresses(GpuSession(), parts, [1 << 20, 2 << 20])
    assert [addresses.of(whole.ctypes.data + at) for at in (0, 31, 32, 63)] == [
        1 << 20,
        (1 << 20) + 31,
        2 << 20,
        (2 << 20) + 31,
    ]


def test_memory_that_the_device_knows_is_not_mapped_again():
    array, other = np.zeros(32, np.uint8), np.zeros(8, np.uint8)
    memory = HostMemory()
    for each in (array[4:8], other):
        memory.take(HostTensor(each))
    assert [first for first, _ in memory.parted(but=[(array.ctypes.data, array)])] == [other.ctypes.data]


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        ("i1", True, np.bool_(True)),
        ("i32", -1, np.int32(-1)),
        ("i64", 2**63, np.int64(-(2**63))),
        ("u8", 255, np.uint8(255)),
        ("fp16", 1.5, np.float16(1.5)),
        ("fp32", 0.1, np.float32(0.1)),
        ("bf16", 0.1, np.uint16(0x3DCC)),
    ],
)
def test_numbers_have_the_width_of_the_signature(kind, given, wanted):
    (found,) = values([(kind, given)], (), DeviceAddresses(GpuSession(), [], []))
    assert (found.dtype, found.tobytes()) == (wanted.dtype, wanted.tobytes())


def test_what_autotuning_compares_are_instructions(monkeypatch):
    session = SimpleNamespace(instructions=5)
    monkeypatch.setattr("refsim_run.triton.driver.current", lambda: session)

    def launch():
        session.instructions += 3_000_000

    assert benchmarked(launch, quantiles=(0.5, 0.2)) == [3.0, 3.0]
    assert benchmarked(launch) == 3.0
