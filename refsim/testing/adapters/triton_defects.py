"""Known defects of Triton versions: a finding that matches one belongs to the compiler, not to the kernel.

An entry says up to which version the defect exists, and which change fixed it. Functions of Gluon place fences and
shared-memory stores themselves, so such findings are theirs.
"""

import re

from refsim.ptx.findings.table import CompilerDefect
from refsim.sources import LLVM, PTX, TRITON

_ASYNC_READS = r"wgmma\.mma_async|tcgen05\.(mma|cp)"
COPIES_UNFENCED = CompilerDefect(
    "copies-unfenced",
    (3, 7, 1),
    "missing-proxy-fence",
    _ASYNC_READS,
    r"wrote there by cp\.async\.c[ag]",
    "Triton before 3.7.1 leaves out the proxy fence between cp.async and the products that read what it brought: not a mistake "
    "of this kernel",
    TRITON["pull requests 9610 and 10537"],
)
LANES_DISAGREE = CompilerDefect(
    "lanes-disagree",
    None,
    "race",
    r"st\.shared",
    r"by the same instruction",
    "Triton, up to 3.9, lets all lanes of a warp store the result of a reduction to one place, also where their bits differ as a "
    "product is fused into the first sum: not a mistake of this kernel, but on hardware any of them may win. "
    "enable_fp_fusion=False makes them agree",
    TRITON["issues 7264 and 11614"],
    is_open=True,
)
TRITON_DEFECTS = (
    COPIES_UNFENCED,
    LANES_DISAGREE,
    CompilerDefect(
        "map-copied-unsynchronised",
        (3, 9),
        "race",
        r"tensormap\.cp_fenceproxy",
        r"by tensormap\.replace\S* .*wrote",
        "Triton before 3.9 leaves out bar.warp.sync between the thread that makes a tensor map and the warp that copies it: not "
        "a mistake of this kernel",
        TRITON["pull request 11480"],
    ),
    CompilerDefect(
        "barriers-not-ended",
        (3, 8),
        "barrier-misuse",
        r"mbarrier\.init",
        "an object that is live",
        "Triton before 3.8 never ends the barriers of specialised warps, and makes others in their place: not a mistake of this "
        "kernel",
        TRITON["pull request 9592"],
    ),
    CompilerDefect(
        "commit-by-shared-address",
        (3, 7),
        "barrier-misuse",
        r"tcgen05\.commit",
        "an mbarrier object in global memory",
        "Triton before 3.7 gives tcgen05.commit a shared address where a generic one is meant: not a mistake of this kernel",
        TRITON["TCGen5CommitOp, as its PTX has it"],
    ),
    CompilerDefect(
        "weak-load-before-cas",
        (3, 8),
        "race",
        r"atom\S*\.cas",
        r"by ld\.global\.b\d+ at .*reads",
        "the LLVM of Triton before 3.8 begins the loop that makes an atomic of compare-and-swap with a weak load: not a "
        "mistake of this kernel",
        LLVM["pull request 188361"],
    ),
    CompilerDefect(
        "registers-copied-behind-the-fence",
        None,
        "unfenced-register",
        r"wgmma\.mma_async",
        r"which mov\.b\d+ at .*(wrote|read), and no wgmma\.fence",
        "the LLVM of Triton, up to 3.9, copies registers of a wgmma after its fence, for which ptxas injects another (C7519): "
        "not a mistake of this kernel",
        PTX["wgmma.fence"],
    ),
)
_OF_FUNCTIONS = (COPIES_UNFENCED, LANES_DISAGREE)
"""Defects that functions of Gluon can only have themselves."""


def known_defects(version: str, *, is_gluon: bool = False) -> tuple[CompilerDefect, ...]:
    """Return the defects of a Triton version: known_defects("3.6.0") has seven entries, known_defects("3.9.0") two."""
    number = tuple(map(int, re.findall(r"\d+", version)[:3]))
    return tuple(row for row in TRITON_DEFECTS if row.is_of(number) and not (is_gluon and row in _OF_FUNCTIONS))
