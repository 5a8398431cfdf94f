"""Two-dimensional copies of PyCUDA: Memcpy2D, without the driver's arrays."""

from typing import Any

import numpy as np

from refsim.standins.pycuda.context import needed
from refsim.standins.pycuda.errors import LogicError, as_pycuda
from refsim.standins.pycuda.memory import host_bytes
from refsim.standins.session import current


class Memcpy2D:
    """Copies `height` rows of `width_in_bytes`; rows begin `src_pitch` and `dst_pitch` bytes apart."""

    CALL = "cuMemcpy2D"

    def __init__(self) -> None:
        self.src_x_in_bytes = self.src_y = self.dst_x_in_bytes = self.dst_y = 0
        self.src_pitch = self.dst_pitch = self.width_in_bytes = self.height = 0
        self._from: Any = None
        self._to: Any = None

    def set_src_host(self, buffer: Any) -> None:
        self._from = host_bytes(self.CALL, buffer)

    def set_dst_host(self, buffer: Any) -> None:
        self._to = host_bytes(self.CALL, buffer, writable=True)

    def set_src_device(self, address: Any) -> None:
        self._from = int(address)

    def set_dst_device(self, address: Any) -> None:
        self._to = int(address)

    def __call__(self, aligned: Any = None) -> None:
        """Copy row by row; each row is checked against its allocation."""
        needed(self.CALL)
        if self._from is None or self._to is None:
            raise LogicError(f"{self.CALL} failed: invalid value: where from and where to is to be said")
        width = int(self.width_in_bytes)
        for row in range(int(self.height)):
            source = (self.src_y + row) * int(self.src_pitch or width) + self.src_x_in_bytes
            target = (self.dst_y + row) * int(self.dst_pitch or width) + self.dst_x_in_bytes
            with as_pycuda(self.CALL):
                self._row(source, target, width)

    def _row(self, source: int, target: int, width: int) -> None:
        memory = current().memory
        if isinstance(self._from, int) and isinstance(self._to, int):
            memory.copy(self._to + target, self._from + source, width)
        elif isinstance(self._from, int):
            _part(self._to, target, width)[:] = memory.read(self._from + source, width)
        elif isinstance(self._to, int):
            memory.write(self._to + target, np.ascontiguousarray(_part(self._from, source, width)))
        else:
            _part(self._to, target, width)[:] = _part(self._from, source, width)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("_") else current().unsupported(f"pycuda.driver.Memcpy2D.{name}")


def _part(host: Any, at: int, width: int) -> Any:
    if at + width > host.nbytes:
        raise LogicError(f"cuMemcpy2D failed: invalid value: bytes {at} to {at + width} of {host.nbytes} of the host")
    return host[at : at + width]
