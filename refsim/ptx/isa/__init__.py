"""The instruction set: one file per family, one implementation per instruction form."""

from functools import cache
from importlib import import_module

INSTRUCTION_FAMILIES = (
    "integer",
    "video",
    "logic",
    "real",
    "convert",
    "memory",
    "atomic",
    "control",
    "warp",
    "barrier",
    "matrix",
    "wmma",
    "runtime",
    "mbarrier",
    "wgmma",
    "tensor_core",
    "bulk_copy",
    "tensor_copy",
    "launch_control",
)


@cache
def load_families() -> None:
    """Import every family, which registers its instructions. The first opcode that is looked up does this once."""
    for family in INSTRUCTION_FAMILIES:
        import_module(f"{__name__}.{family}")
