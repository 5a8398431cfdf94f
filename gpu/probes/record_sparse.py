"""Runs every form of the probe of sparse products on a GPU and writes what came back; tells hypotheses apart without one.

    PYTHONPATH=. python3 gpu/probes/record_sparse.py --out conformance/vectors/h200
    PYTHONPATH=. python3 gpu/probes/record_sparse.py --compare conformance/vectors/h200

The first needs PyCUDA, a GPU of compute capability 9.0, ptxas and nvcc, and says of each form how many words differ from the
model. Every kernel runs twice over memory poisoned differently; two runs that differ are an error. The second writes sparse.md
beside the recording: of each form the words of D that differ from each hypothesis of refsim.silicon.sparse_probe, class by
class. What it shows goes into `changes` and `evidence` of SPARSE_FORMS (refsim/numerics/sparse.py), and, where 8-bit metadata
lies otherwise, into `_positions` of refsim/layouts/families/sparse.py.
"""

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from record_conversions import ASSEMBLE, Gpu, assembled, facts, store

from refsim.numerics import UnverifiedProfileWarning
from refsim.silicon.sparse_probe import HYPOTHESES, Problem, SparseInstruction, differing, forms, problems, ptx
from refsim.silicon.vectors import arrays_file, unpacked

POISONS = (0xA5A5A5A5, 0x5A5A5A5A)


def results_of(gpu: Gpu, number: int, form: SparseInstruction, problem: Problem) -> NDArray[np.unsignedinteger]:
    """D of all problems of a form, by two runs that must agree."""
    words, images = form.inputs(problem)
    sources = [gpu.driver.to_device(np.ascontiguousarray(each)) for each in (words, images)]
    runs = []
    for poison in POISONS:
        output = np.full((len(words), form.counts[2]), poison, np.uint32)
        memory = gpu.driver.to_device(output)
        function = gpu.module.get_function(f"form_{number}")
        arguments = [np.uint64(int(each)) for each in (*sources, memory)]
        function(*arguments, grid=(len(problem.a), 1, 1), block=(form.threads, 1, 1))
        gpu.driver.Context.synchronize()
        gpu.driver.memcpy_dtoh(output, memory)
        runs.append(output)
    if not np.array_equal(runs[0], runs[1]):
        raise SystemExit(f"{form.name}: two runs differ")
    return form.results(runs[0])


def record(out: Path, folder: Path) -> None:
    """D of every form, stored before anything is said of it."""
    cubin = assembled("sparse", ptx(), folder)
    gpu, rows = Gpu(cubin.read_bytes()), forms()
    asked = [problems(form) for form in rows]
    began = time.perf_counter()
    arrays = {
        form.name: results_of(gpu, number, form, problem)
        for number, (form, problem) in enumerate(zip(rows, asked, strict=True))
    }
    print(f"sparse: {time.perf_counter() - began:.1f} s on the device")
    recorded = {name: {"arrays": {"results": name}} for name in arrays}
    store(
        out, "sparse", arrays, {**facts(gpu, cubin, ASSEMBLE, {"sparse.ptx": ptx().encode()}), "recordings": recorded}
    )
    gpu.context.pop()
    for form, problem in zip(rows, asked, strict=True):
        wrong = int((HYPOTHESES["as the model infers"](form, problem) != arrays[form.name]).sum())
        print(f"{form.name}: {wrong} of {arrays[form.name].size} words differ from the model")


def compare(folder: Path) -> None:
    """The table of hypotheses, from a recording."""
    lines = ["# Sparse products on a GPU", "", "Words of D that differ from each hypothesis, by class of operands.", ""]
    with np.load(unpacked(arrays_file(folder, "sparse")), allow_pickle=False) as arrays:
        for form in forms():
            found = differing(form, problems(form), arrays[form.name])
            names = list(next(iter(found.values())))
            lines += [f"## {form.name}", "", f"| hypothesis | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
            lines += [f"| {name} | {' | '.join(map(str, wrong.values()))} |" for name, wrong in found.items()]
            lines.append("")
            agreeing = [name for name, wrong in found.items() if not any(wrong.values())]
            print(f"{form.name}: {', '.join(agreeing) or 'no hypothesis agrees'}")
    (folder / "sparse.md").write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="record sparse products on a GPU, or compare a recording with hypotheses"
    )
    parser.add_argument("--out", type=Path, help="folder for the vectors")
    parser.add_argument("--compare", type=Path, metavar="FOLDER", help="folder with sparse.npz")
    options = parser.parse_args()
    if (options.out is None) == (options.compare is None):
        parser.error("give --out or --compare")
    warnings.simplefilter("ignore", UnverifiedProfileWarning)
    if options.compare is not None:
        compare(options.compare)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        record(options.out, Path(folder))


if __name__ == "__main__":
    main()
