"""Launches of layouts.cu that check themselves."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from record_conversions import Gpu

ABSENT = 0xFFFF
"""What a recording of 16 bits holds where nothing came: no kernel writes it."""


class Prober(Gpu):
    """Launches with any block, shared memory and argument list, each over two poisons."""

    def twice(self, entry: str, results: tuple[int, Any], *arguments: Any, **launch: Any) -> NDArray[Any]:
        """The output of (count, dtype), the last argument of the entry, after the same launch over two poisons."""
        count, dtype = results
        runs: list[NDArray[Any]] = []
        for poison in (0xA5, 0x5A):
            output = np.full(count * np.dtype(dtype).itemsize, poison, np.uint8)
            memory = self.driver.to_device(output)
            self.launch(entry, *arguments, np.uint64(int(memory)), **launch)
            self.driver.memcpy_dtoh(output, memory)
            memory.free()
            runs.append(output.view(dtype))
        if not np.array_equal(runs[0], runs[1]):
            raise SystemExit(f"{entry}: two runs differ at {np.flatnonzero(runs[0] != runs[1])[:8]}")
        return runs[0]

    def launch(self, entry: str, *arguments: Any, blocks: int = 1, threads: int = 32, shared: int = 0) -> None:
        function = self.module.get_function(entry)
        if shared > 48 << 10:
            function.set_attribute(self.driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
        function(*arguments, grid=(blocks, 1, 1), block=(threads, 1, 1), shared=shared)
        self.driver.Context.synchronize()
