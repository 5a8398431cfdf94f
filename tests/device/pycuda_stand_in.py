"""The part of PyCUDA that refsim uses, over the fake driver: PyCUDA itself is built on a host with a toolkit only."""

import ctypes
import sys
from types import ModuleType, SimpleNamespace

import numpy as np


class Error(Exception):
    pass


class OutOfMemoryError(Error):
    pass


def call(name, *arguments):
    status = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    if status:
        text = "an illegal memory access was encountered" if status == 700 else f"status {status}"
        raise (OutOfMemoryError if status == 2 else Error)(f"{name.removesuffix('_v2')} failed: {text}")


class Context:
    def __init__(self):
        self.handle = ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(self.handle), 0)

    def push(self):
        call("cuCtxPushCurrent_v2", self.handle)

    def detach(self):
        call("cuDevicePrimaryCtxRelease_v2", 0)

    @staticmethod
    def pop():
        call("cuCtxPopCurrent_v2", None)

    @staticmethod
    def synchronize():
        call("cuCtxSynchronize")


class Device:
    def __init__(self, index):
        self.index = index

    @staticmethod
    def count():
        return 1

    def name(self):
        return "Fake GPU"

    def compute_capability(self):
        return 9, 0

    def total_memory(self):
        return 1 << 30

    def get_attribute(self, number):
        return {16: 4}[number]

    def retain_primary_context(self):
        return Context()


class Allocation:
    def __init__(self, size):
        self.address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(size))

    def __int__(self):
        return self.address.value

    def free(self):
        call("cuMemFree_v2", self.address)


def memcpy_htod(address, content):
    call(
        "cuMemcpyHtoD_v2",
        ctypes.c_uint64(address),
        content.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_size_t(content.nbytes),
    )


def memcpy_dtoh(content: np.ndarray, address):
    call(
        "cuMemcpyDtoH_v2",
        content.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_uint64(address),
        ctypes.c_size_t(content.nbytes),
    )


def init():
    call("cuInit", 0)


def install():
    """Let `import pycuda.driver` find this."""
    package, driver = ModuleType("pycuda"), ModuleType("pycuda.driver")
    package.VERSION_TEXT = "stand-in"
    for name in ("Error", "Context", "Device", "memcpy_htod", "memcpy_dtoh", "init"):
        setattr(driver, name, globals()[name])
    driver.MemoryError, driver.mem_alloc = OutOfMemoryError, Allocation
    driver.device_attribute = SimpleNamespace(MULTIPROCESSOR_COUNT=16)
    driver.get_driver_version = lambda: 13000
    sys.modules |= {"pycuda": package, "pycuda.driver": driver}
