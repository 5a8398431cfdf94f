"""Triton's block-scaled product on a GPU of compute capability 9.0, beside the oracle.

    PYTHONPATH=. python conformance/triton_on_device.py compile FILE     where Triton is; no GPU
    PYTHONPATH=. python conformance/triton_on_device.py run FILE         where the GPU is; no Triton

The same PTX and the same problems as `tests/ptx/test_triton_block_scaled.py`, and larger ones. A driver older than Triton's
assembler refuses the PTX for its version alone: the line is written anew, the rest is what Triton made.
"""

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np

from refsim import device, oracles, pack
from refsim.compare import bits
from refsim.formats import format_named
from refsim.kernel_code import KernelCode
from refsim.testing.adapters import TritonKernel
from refsim.testing.kernel_files import load_kernel_file

TESTS = Path(__file__).parent.parent / "tests/ptx"
scaled = load_kernel_file(TESTS / "test_triton_block_scaled.py")
TARGET = "sm_90a"
TILES = {(64, 32, 128): (), (128, 128, 128): (), (32, 32, 64): scaled.ON_WARPS}
SHAPES = ((100, 40, 224), (300, 200, 1056), (65, 129, 96), (7, 6, 32), (512, 512, 4096))
ISA = ".version 9.0"


def compiled() -> list[dict]:
    product = load_kernel_file(TESTS / "triton_block_scaled.py").product
    return [
        {"kind": kind, "tile": tile, "kernel": asdict(scaled.compiled(product, row, TARGET, tile, 4))}
        for kind, row in scaled.KINDS.items()
        for tile in TILES
    ]


def differing(made: TritonKernel, kind, tile, shape, *, specials: bool) -> int:
    """Words of D that are not the oracle's."""
    m, n, k = shape
    a, sa, b, sb = scaled.drawn(kind, shape, specials=specials)
    formats = {"a_format": kind.a, "b_format": kind.b, "scale_format": scaled.SCALES[kind.block][0]}
    want = oracles.block_scaled_matmul(a, b, sa, sb, **formats, target=TARGET, **dict(TILES[tile]))
    held = [pack(x, f) if format_named(f).bits == 4 else x for x, f in ((a, kind.a), (b, kind.b))]
    code = KernelCode(ptx=re.sub(r"(?m)^\.version .*$", ISA, made.ptx))
    with device.open("cuda", TARGET).launcher(code) as gpu:
        given = zip((held[0], sa, held[1], sb), ("a", "sa", "b", "sb"), strict=True)
        buffers = [gpu.upload(x, name=name) for x, name in given]
        out = gpu.output(m * n, np.float32, name="c")
        made.launch(gpu, (-(-m // tile[0]), -(-n // tile[1])), *buffers, out, m, n, k)
        return bits(gpu.read(out).reshape(m, n), want, "f32").count


def run(rows: list[dict]) -> None:
    launches = words = wrong = 0
    for row in rows:
        given = {name: tuple(map(tuple, x)) if name == "scratch" else x for name, x in row["kernel"].items()}
        made = TritonKernel(**{name: tuple(x) if isinstance(x, list) else x for name, x in given.items()})
        kind, tile = scaled.KINDS[row["kind"]], tuple(row["tile"])
        for shape in SHAPES:
            for specials in (False, True)[: 1 + (shape[2] > 64)]:
                found = differing(made, kind, tile, shape, specials=specials)
                if found:
                    print(f"{row['kind']} {tile} {shape} specials={specials}: {found} words differ")
                launches, words, wrong = launches + 1, words + shape[0] * shape[1], wrong + found
    print(f"Triton {rows[0]['kernel']['version']}, {TARGET}: {launches} launches, {words:,} words, {wrong} differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["compile", "run"])
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    if options.step == "compile":
        options.file.write_text(json.dumps(compiled()))
    else:
        run(json.loads(options.file.read_text()))


if __name__ == "__main__":
    main()
