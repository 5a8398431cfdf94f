"""Arguments of Triton kernels: flattened as the signature has them, with host tensors mapped to device memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.formats import BF16
from refsim.kernels import Buffer, Struct
from refsim.layouts.tma import MAP_ALIGN, TensorMap
from refsim.ptx.memory.tensor_map import encoded
from refsim.standins.memory import host_bytes
from refsim.standins.session import GpuSession
from refsim.standins.torch.pointers import host_addresses
from refsim.testing.adapters.triton_descriptors import TritonDescriptor, descriptor_values, is_descriptor
from refsim.testing.adapters.triton_kernels import SCALARS

CONSTANT = "constexpr"
UPPER_HALVES = dict.fromkeys((BF16.name,), 16)
"""Types that Triton's launcher passes as the upper half of a float32, truncated; the value is the shift in bits."""


class HostArray:
    """A NumPy array with the methods that Triton needs of a tensor."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.base, self.dtype = array, array.dtype

    def data_ptr(self) -> int:
        return int(self.base.ctypes.data)


def take_arrays(module: ModuleType) -> None:
    """Let kernels of triton.runtime.jit, just imported, take NumPy arrays where they take tensors."""
    theirs = module.JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with host_addresses():
            return theirs(self, *map(_tensor, args), **{name: _tensor(value) for name, value in kwargs.items()})

    module.JITFunction.run = run


def _tensor(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return HostArray(argument)
    if type(argument) is tuple:
        return tuple(map(_tensor, argument))
    return argument


@dataclass
class HostMemory:
    """The host memory of the tensors of a launch: the bytes of each storage, by its first address."""

    storages: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    def take(self, tensor: Any) -> None:
        """Add the memory of a tensor; a raw address is left to `DeviceAddresses.of`."""
        tensor = getattr(tensor, "base", None) if not hasattr(tensor, "untyped_storage") else tensor
        if isinstance(tensor, np.ndarray):
            first, end = np.lib.array_utils.byte_bounds(tensor)
            self._add(first, end - first)
        elif hasattr(tensor, "untyped_storage"):
            storage = tensor.untyped_storage()
            self._add(storage.data_ptr(), storage.nbytes())

    def _add(self, first: int, size: int) -> None:
        if first not in self.storages or self.storages[first].nbytes < size:
            self.storages[first] = host_bytes(first, size)

    def parted(self, but: Sequence[tuple[int, NDArray[np.uint8]]] = ()) -> list[tuple[int, NDArray[np.uint8]]]:
        """Return disjoint (address, bytes) in order, joining views of one storage; memory within `but` is left out."""
        found: list[tuple[int, int]] = []
        for first, size in sorted((first, held.nbytes) for first, held in self.storages.items()):
            if any(start <= first < start + held.nbytes for start, held in but):
                continue
            if found and first < found[-1][1]:
                found[-1] = (found[-1][0], max(found[-1][1], first + size))
            else:
                found.append((first, first + size))
        whole = HostMemory()
        for first, end in found:
            whole._add(first, end - first)
        return list(whole.storages.items())


@dataclass
class DeviceAddresses:
    """Translates addresses of host memory into device addresses, while the host memory is mapped."""

    session: GpuSession
    stretches: Sequence[tuple[int, NDArray[np.uint8]]]
    mapped: Sequence[int]

    def of(self, host: int) -> int:
        """Return the device address of a host address; others that are valid stay. RefsimError `bad-argument`."""
        for (first, held), address in zip(self.stretches, self.mapped, strict=True):
            if first <= host < first + max(held.nbytes, 1):
                return address + host - first
        if not host or self.session.memory.holds(host):
            return host
        raise RefsimError(
            "bad-argument",
            f"{host:#x} points into no tensor of this launch",
            rule="a pointer is a tensor, or an address within a tensor that the launch is given too",
            help="give the kernel the tensor",
        )


def flattened(signature: Sequence[Any], args: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield type and value of each argument that the kernel takes: tuples are flattened, constants left out."""
    for kind, argument in zip(signature, args, strict=True):
        if isinstance(kind, tuple):
            yield from flattened(kind, argument)
        elif kind != CONSTANT:
            yield kind, argument


def tensors(pairs: Sequence[tuple[str, Any]]) -> Iterator[Any]:
    """Yield the arguments that point to memory."""
    for kind, argument in pairs:
        if is_descriptor(kind):
            yield argument.base
        elif kind.startswith("*") and not isinstance(argument, int) and argument is not None:
            yield argument


def values(
    pairs: Sequence[tuple[str, Any]], said: Sequence[Mapping[str, Any]], addresses: DeviceAddresses
) -> list[Any]:
    """Return a launch's parameters: device addresses, numbers of their width, descriptors as tensor maps or parts."""
    found: list[Any] = []
    maps = iter(said)
    for kind, argument in pairs:
        if is_descriptor(kind):
            parts = descriptor_values(kind, _descriptor(argument, addresses), next(maps, None))
            found += [_part(each) for each in parts]
        elif kind.startswith("*"):
            found.append(np.uint64(addresses.of(_pointer(argument))))
        else:
            found.append(_number(kind, argument))
    return found


def _pointer(argument: Any) -> int:
    if argument is None:
        return 0
    return int(argument) if isinstance(argument, int) else int(argument.data_ptr())


def _number(kind: str, argument: Any) -> Any:
    scalar = SCALARS.get(kind)
    if scalar is None:
        upper = UPPER_HALVES.get(kind)
        if upper is None:
            raise RefsimError("bad-argument", f"an argument of Triton's type {kind}")
        return (np.float32(argument).view(np.uint32) >> upper).astype(np.uint16)
    if np.dtype(scalar).kind in "iu":
        bits = np.dtype(scalar).itemsize * 8
        return np.array(int(argument) & (1 << bits) - 1, f"u{bits // 8}").view(scalar)[()]
    return scalar(argument)


def _descriptor(argument: Any, addresses: DeviceAddresses) -> TritonDescriptor:
    """Return a descriptor of Triton's host code as one over device memory."""
    base = argument.base
    size = base.element_size()
    buffer = Buffer("descriptor", addresses.of(base.data_ptr()), base.numel(), np.dtype(f"V{size}"))
    shape, strides = [int(each) for each in argument.shape], [int(each) for each in argument.strides]
    return TritonDescriptor(buffer, shape, strides, argument.padding, bool(argument.round_f32_to_tf32))


def _part(part: Any) -> Any:
    if isinstance(part, TensorMap):
        return Struct(encoded(part), MAP_ALIGN)
    return np.uint64(part.address) if isinstance(part, Buffer) else part
