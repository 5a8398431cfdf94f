"""Runs every form of the wmma probe on a GPU and writes what came back, with all that decided it.

    PYTHONPATH=. python3 gpu/probes/record_wmma.py --out conformance/vectors/h200

Needs PyCUDA, a GPU of compute capability 9.0 and ptxas. Every kernel runs twice over memory poisoned differently; bytes
that differ are the poison, which the simulator has to leave alone as well.
"""

from pathlib import Path

import numpy as np
from record_conversions import ASSEMBLE, Gpu, assembled, facts, record_one, store

from refsim.silicon.wmma_probe import STRETCH, WARPS, forms, ptx

POISONS = (0xA5, 0x5A)


def record(out: Path, folder: Path) -> None:
    """The bytes of `out` of all forms after a run over the first poison, and which of them were written."""
    cubin = assembled("wmma", ptx(), folder)
    gpu, rows = Gpu(cubin.read_bytes()), forms()
    results = np.zeros((len(rows), WARPS * STRETCH), np.uint8)
    for number, form in enumerate(rows):
        source = gpu.driver.to_device(form.inputs())
        runs = []
        for poison in POISONS:
            output = np.full(WARPS * STRETCH, poison, np.uint8)
            memory = gpu.driver.to_device(output)
            function = gpu.module.get_function(f"form_{number}")
            function(np.uint64(int(source)), np.uint64(int(memory)), grid=(1, 1, 1), block=(32 * WARPS, 1, 1))
            gpu.driver.Context.synchronize()
            gpu.driver.memcpy_dtoh(output, memory)
            runs.append(output)
        untouched = (runs[0] == POISONS[0]) & (runs[1] == POISONS[1])
        if not (untouched | (runs[0] == runs[1])).all():
            raise SystemExit(f"{form.name}: two runs differ")
        results[number] = np.where(untouched, POISONS[0], runs[0])
    recording = {"arrays": {"results": "results"}, "forms": [form.name for form in rows]}
    source_text = {"wmma.ptx": ptx().encode()}
    content = {**facts(gpu, cubin, ASSEMBLE, source_text), "recordings": {"wmma": recording}}
    store(out, "wmma", {"results": results}, content)
    gpu.context.pop()


if __name__ == "__main__":
    record_one("wmma", record)
