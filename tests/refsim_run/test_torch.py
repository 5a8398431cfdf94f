"""The stand-in for PyTorch's GPU: addresses of tensors, moments."""

from types import SimpleNamespace

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.ptx.machine.launch_rules import LaunchRequest
from refsim_run.session import GpuSession
from refsim_run.torch.cuda import PointedMemory, TorchEvent, host_addresses
from tests.refsim_run.kernels import HEAD

STORE = f"""{HEAD}
.visible .entry store(.param .u64 y) {{
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [y];
    st.global.u8 [%rd1], 99;
    ret;
}}
"""


class Storage:
    """What is asked of the memory of a tensor; `alive` says whether it still is there."""

    def __init__(self, size):
        self.array, self.alive = np.arange(size, dtype=np.uint8), SimpleNamespace(expired=lambda: False)

    def nbytes(self):
        return self.array.nbytes

    def data_ptr(self):
        return self.array.ctypes.data


class HostTensor:
    """A view of it, a few bytes behind its beginning."""

    def __init__(self, storage, offset):
        self.storage, self.offset = storage, offset

    def untyped_storage(self):
        return self.storage

    def data_ptr(self):
        return self.storage.data_ptr() + self.offset


@pytest.fixture
def torch():
    reductions = SimpleNamespace(StorageWeakRef=lambda storage: storage.alive)
    return SimpleNamespace(multiprocessing=SimpleNamespace(reductions=reductions))


def test_a_tensor_whose_address_was_asked_for_keeps_it_and_kernels_find_it_there(torch):
    session = GpuSession()
    pointed, storage = PointedMemory.of(session), Storage(64)
    first, second = (pointed.address(HostTensor(storage, offset), torch) for offset in (0, 8))
    assert (second - first, PointedMemory.of(session), session.memory.count) == (8, pointed, 1)
    with pointed.lent() as (stretches, addresses):
        assert ([host for host, _ in stretches], addresses) == ([storage.data_ptr()], [first])
        assert session.memory.read(second, 4).tolist() == [8, 9, 10, 11]
        module = session.load(STORE, "test")
        module.launch(LaunchRequest("store", 1, 1, [np.uint64(first)]))
    assert storage.array[:2].tolist() == [99, 1]


def test_the_address_ends_with_the_memory(torch):
    session = GpuSession()
    pointed, storage = PointedMemory.of(session), Storage(16)
    address = pointed.address(HostTensor(storage, 0), torch)
    storage.alive = None
    pointed.known[storage.data_ptr()].alive.expired = lambda: True
    with pointed.lent() as (stretches, _):
        assert stretches == []
    with pytest.raises(RefsimError, match="freed"):
        session.memory.read(address, 1)


def test_a_launch_asks_where_the_host_has_it(torch):
    session, storage = GpuSession(), Storage(16)
    with host_addresses():
        assert PointedMemory.of(session).address(HostTensor(storage, 4), torch) == storage.data_ptr() + 4
    assert PointedMemory.of(session).address(HostTensor(Storage(0), 0), torch) != 0
    assert session.memory.count == 0


def test_times_are_between_moments_that_were_recorded():
    start, end = TorchEvent(enable_timing=True), TorchEvent(enable_timing=True)
    start.record()
    with pytest.raises(RuntimeError, match="recorded"):
        start.elapsed_time(end)
    end.record()
    assert start.elapsed_time(end) >= 0
