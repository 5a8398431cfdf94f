"""The instruction set: one file per family, one clause per instruction form."""

from functools import cache
from importlib import import_module

INSTRUCTION_FAMILIES = (
    "integer",
    "logic",
    "predicate",
    "real",
    "half",
    "convert",
    "move",
    "memory",
    "atomic",
    "control",
    "warp",
    "barrier",
    "proxy_fence",
    "matrix",
    "sparse",
    "block_scale",
    "wmma",
    "async_copy",
    "cluster",
    "warpgroup",
    "async_store",
    "runtime",
    "heap",
    "mbarrier",
    "wgmma",
    "tensor_memory",
    "tensor_core",
    "bulk_copy",
    "tensor_copy",
    "tensor_map",
)


@cache
def load_families() -> None:
    """Import every family, so that its clauses are registered; done once, when the first opcode is looked up."""
    for family in INSTRUCTION_FAMILIES:
        import_module(f"{__name__}.{family}")
