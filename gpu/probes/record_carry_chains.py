"""Runs every chain through the carry flag on a GPU and writes what came back, with all that decided it.

    PYTHONPATH=. python3 gpu/probes/record_carry_chains.py --out conformance/vectors/h200

Needs PyCUDA, a GPU of compute capability 9.0 and ptxas. Every kernel runs twice over differently poisoned
memory; a difference between the runs is an error, so is a word that nobody wrote.
"""

from pathlib import Path

import numpy as np
from record_conversions import ASSEMBLE, Gpu, assembled, facts, record_one, scalar_results, store

from refsim.silicon.carry_chains import OPERAND_KINDS, STORED_ROWS, forms, operands, ptx
from refsim.silicon.vectors import CHUNK, digest

CHUNKS = 2


def record(out: Path, folder: Path) -> None:
    """All chains: the first results of each and the digests of all, in the order of `forms()`."""
    cubin = assembled("carry_chains", ptx(), folder)
    gpu = Gpu(cubin.read_bytes())
    chunks = [operands(chunk) for chunk in range(CHUNKS)]
    uploads = [
        gpu.driver.to_device(np.concatenate([chunk[slot] for chunk in chunks])) for slot in range(len(OPERAND_KINDS))
    ]
    chains = forms()
    results = np.stack(
        [scalar_results(gpu, f"form_{number}", row, uploads, CHUNKS * CHUNK) for number, row in enumerate(chains)]
    )
    arrays = {
        "stored": results[:, :STORED_ROWS],
        "chunk_digests": digest(results.reshape(len(chains), CHUNKS, CHUNK)),
    }
    recording = {"arrays": {key: key for key in arrays}, "chains": [row.name for row in chains]}
    source = {"carry_chains.ptx": ptx().encode()}
    store(out, "carry_chains", arrays, {**facts(gpu, cubin, ASSEMBLE, source), "recordings": {"chains": recording}})
    gpu.context.pop()


if __name__ == "__main__":
    record_one("chains through the carry flag", record)
