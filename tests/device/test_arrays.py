"""Device arrays as other libraries see them: the interface's dictionary, and the tensor in a DLPack capsule, field by field."""

import ctypes
import gc

import ml_dtypes
import numpy as np
import pytest

from refsim.device import cuda_launcher as arrays
from refsim.device.cuda_launcher import DeviceArray
from refsim.errors import RefsimError

ADDRESS = 0x7F0000001000
capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))


class DLManagedTensor(ctypes.Structure):
    """As dlpack.h has it, written down a second time."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_uint32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_uint64),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_uint64),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


def array(dtype, shape=(2, 3), device=1):
    return DeviceArray(ADDRESS, shape, np.dtype(dtype), device)


def test_the_interface_says_where_and_what():
    said = array(np.float32).__cuda_array_interface__
    assert said == {
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (ADDRESS, False),
        "version": 3,
        "strides": None,
        "stream": None,
    }
    assert array(np.uint8, (0,)).__cuda_array_interface__["data"] == (0, False)
    assert not hasattr(array(ml_dtypes.bfloat16), "__cuda_array_interface__")


@pytest.mark.parametrize(
    ("dtype", "code", "bits"),
    [
        (np.int8, 0, 8),
        (np.uint16, 1, 16),
        (np.float64, 2, 64),
        (ml_dtypes.bfloat16, 4, 16),
        (np.complex64, 5, 64),
        (np.bool_, 6, 8),
        (ml_dtypes.float8_e4m3fn, 10, 8),
        (ml_dtypes.float8_e5m2, 12, 8),
        (ml_dtypes.float8_e8m0fnu, 14, 8),
    ],
)
def test_the_capsule_holds_the_tensor_until_its_consumer_lets_go(dtype, code, bits):
    given = array(dtype)
    assert given.__dlpack_device__() == (2, 1)
    capsule = given.__dlpack__(stream=1)
    tensor = DLManagedTensor.from_address(capsule_pointer(capsule, b"dltensor"))
    assert (tensor.data, tensor.device_type, tensor.device_id, tensor.ndim) == (ADDRESS, 2, 1, 2)
    assert (tensor.dtype[0], tensor.dtype[1], tensor.dtype[2] | tensor.dtype[3] << 8) == (code, bits, 1)
    assert (tensor.shape[0], tensor.shape[1], tensor.strides, tensor.byte_offset) == (2, 3, 0, 0)
    set_name(capsule, b"used_dltensor")
    del capsule
    gc.collect()
    address = ctypes.addressof(tensor)
    assert address in arrays._held
    tensor.deleter(address)
    assert address not in arrays._held


def test_a_capsule_that_nobody_takes_lets_go_by_itself():
    before = len(arrays._held)
    capsule = array(np.int32).__dlpack__()
    assert len(arrays._held) == before + 1
    del capsule
    gc.collect()
    assert len(arrays._held) == before


def test_shapes_and_types_that_do_not_fit_are_refused():
    given = array(np.uint16)
    assert given.reshape(3, -1).shape == (3, 2)
    assert given.reshape(6).view(np.float16).dtype == np.float16
    for shape in ((4,), (-1, 4), (-1, -1, 7), (-2, -3)):
        with pytest.raises(RefsimError, match="bad-shape"):
            given.reshape(*shape)
    with pytest.raises(RefsimError, match="bad-shape"):
        array(np.uint16, (0,)).reshape(0, -1)
    assert array(np.uint16, (0,)).reshape(-1, 3).shape == (0, 3)
    for dtype in (np.float32, np.uint8):
        with pytest.raises(RefsimError, match="bad-dtype"):
            given.view(dtype)
    with pytest.raises(BufferError):
        array([("a", "u1")]).__dlpack__()
