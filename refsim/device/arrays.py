"""GPU memory as other libraries accept it: `__cuda_array_interface__` and DLPack, without a copy."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim.sources import DLPACK

SOURCE = DLPACK["DLDataTypeCode, DLManagedTensor"]
ON_CUDA = 2
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMED = {
    "bfloat16": 4,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
"""DLDataTypeCode of a type, by NumPy's kind or by its name in ml_dtypes."""


class _Tensor(Structure):
    """DLTensor with the DLManagedTensor around it."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
        ("manager", c_void_p),
        ("deleter", c_void_p),
    )


_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
_held: dict[int, Any] = {}
"""Tensors with their shapes by address, kept until the consumer calls the deleter."""


def _release(address: int) -> None:
    _held.pop(address, None)


_RELEASE = _DELETER(_release)
_capsule = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_is_unused = ctypes.PYFUNCTYPE(c_int32, c_void_p, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def _forget(capsule: int) -> None:
    """Release the tensor of a capsule that no consumer took; a consumer renames the capsule and calls the deleter."""
    if _is_unused(capsule, b"dltensor"):
        _release(_pointer(capsule, b"dltensor"))


_FORGET = _DELETER(_forget)


@dataclass(frozen=True)
class DeviceArray:
    """A buffer on a GPU, C-contiguous: `torch.from_dlpack(x)`, `cupy.asarray(x)`, `numba.cuda.as_cuda_array(x)`.

    The array is valid until the launcher is closed; nothing is copied. FP8 and bfloat16 (ml_dtypes) exist in DLPack
    only.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int = 0

    def reshape(self, *shape: int) -> "DeviceArray":
        """Return the array in another shape; one extent may be -1."""
        known = -prod(shape) if -1 in shape else prod(shape)
        size = prod(self.shape)
        whole = tuple(size // known if extent == -1 and known else extent for extent in shape)
        if prod(whole) != size or min(whole, default=0) < 0:
            raise RefsimError("bad-shape", f"{size} elements do not make {shape}", "a device array")
        return DeviceArray(self.address, whole, self.dtype, self.device)

    def view(self, dtype: Any) -> "DeviceArray":
        """Return the bytes as elements of another type of equal width."""
        other = np.dtype(dtype)
        if other.itemsize != self.dtype.itemsize:
            raise RefsimError("bad-dtype", f"{self.dtype} is no {other}: another width", "a device array")
        return DeviceArray(self.address, self.shape, other, self.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind not in _KINDS:
            raise AttributeError(
                f"{self.dtype} has no type in __cuda_array_interface__: DLPack has, or view it as integers"
            )
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if prod(self.shape) else 0, False),
            "version": 3,
            "strides": None,
            "stream": None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return ON_CUDA, self.device

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        """Return a capsule "dltensor". The memory is ready on every stream: the host has waited for all launches."""
        code = _NAMED.get(self.dtype.name, _KINDS.get(self.dtype.kind))
        if code is None:
            raise BufferError(f"{self.dtype} has no type in DLPack: view it as integers")
        shape = (c_int64 * max(len(self.shape), 1))(*self.shape)
        tensor = _Tensor(
            self.address, ON_CUDA, self.device, len(self.shape), code, 8 * self.dtype.itemsize, 1, shape, None, 0, None
        )
        tensor.deleter = ctypes.cast(_RELEASE, c_void_p).value
        address = ctypes.addressof(tensor)
        _held[address] = tensor, shape
        return _capsule(address, b"dltensor", ctypes.cast(_FORGET, c_void_p))
