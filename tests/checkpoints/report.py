"""The table of layouts of checkpoints: `python -m tests.checkpoints.report > conformance/reports/checkpoints.md`."""

from collections import Counter

import numpy as np

from refsim.checkpoints.layouts import CHECKPOINT_LAYOUTS, CheckpointLayout
from tests.checkpoints.handmade import MAKERS

HEAD = """# Layouts of checkpoints

`refsim dequantize`, `show`, `diff`, `files` and `scales check` tell these layouts by names, types and shapes of tensors.
The table is made of `refsim.checkpoints.layouts` (`python -m tests.checkpoints.report`). `pytest tests/checkpoints` builds
files of each layout by hand, from what the libraries document and without code of refsim, and compares every value: 0
differ. GGUF blocks are compared with the package `gguf` 0.19.0 where it is installed. "written" names the block format and
recipe, or the rows and columns that share a scale, of `refsim quantize NAME FILE`; each has a test from values to the file
and back. K is the dimension of neighbors.

| layout | values | told by | files by hand | written | source |
|---|---|---|---:|---|---|
"""

TAIL = """
## What is left out

These are formats of torchao 36027d8, compressed-tensors ac8e2ba, Model Optimizer a2fbac7, FlashInfer fb28d72,
Transformer Engine d0067d0, Four Over Six dadfad6 and gguf 0.19.0 (August 2026) that refsim does not read.

| format | library | reason |
|---|---|---|
| Int4TilePackedTo4dTensor, Int4PlainInt32Tensor, Int4PreshuffledTensor | torchao | tiles of one kernel or device |
| sparse-bitmask, sparse-24-bitmask, marlin-24 | compressed-tensors | legacy formats, which the library marks as such |
| IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S | GGUF | each needs a table of up to 2,048 grid points |
| Q8_1, Q8_K | GGUF | formats of activations, which files do not hold |
| MXFP3, NVFP3, NVINT4, IF4, IF6 | Four Over Six | no public checkpoint was found |
| EXL2, EXL3, HQQ, AQLM, HiFloat8, MXINT8 | others | not examined |
| auto-round | AutoRound | its tensors are those of GPTQ or AWQ; `--layout` says which zero points they have |

Of 4over6, the errors of `err_use_fast_math`, the row amax of FlashInfer's scales for each token, and FlashInfer's kernels
with divisions (`FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH=1`) have no recipe.
"""


def told_by(row: CheckpointLayout) -> str:
    """Return the ends and types of the codes and of the parts that must be there."""
    if row.name == "refsim":
        return "metadata `refsim.blocks.KEY`"
    needed = [row.codes, *(part for part in row.parts.values() if part.needed)]
    ends = (f"`{' or '.join(part.ends) or 'any name'}` {' or '.join(part.dtypes)}" for part in needed)
    text = ", ".join(ends).replace("``", "any name").replace("` or `", "any name")
    return f"{text}; metadata {' or '.join(row.types)}" if row.types else text


def page() -> str:
    """Return the report."""
    built = Counter(make(np.random.default_rng(0)).layout for make in MAKERS)
    rows = []
    for row in CHECKPOINT_LAYOUTS:
        made = row.made.replace("0x0", "the tensor").replace("1x0", "a row") or (
            "block formats" if row.name == "refsim" else ""
        )
        by_hand = built[row.name] or ("own" if row.name == "refsim" else "gguf")
        rows.append(
            f"| {row.name} | {row.summary} | {told_by(row)} | {by_hand} | {made or 'read only'} | {row.source} |"
        )
    return HEAD + "\n".join(rows) + "\n" + TAIL


if __name__ == "__main__":
    print(page(), end="")
