"""The instruction set: one file per family, one implementation per instruction form."""

from functools import cache
from importlib import import_module

from refsim.ptx.text.words import words_in

INSTRUCTION_FAMILIES = words_in("""
    integer video logic predicate real half convert move memory atomic control warp barrier proxy_fence matrix
    sparse block_scale wmma async_copy cluster warpgroup async_store runtime heap mbarrier wgmma tensor_memory
    tensor_core bulk_copy tensor_copy tensor_map launch_control
""")


@cache
def load_families() -> None:
    """Import every family, which registers its instructions. The first opcode that is looked up does this once."""
    for family in INSTRUCTION_FAMILIES:
        import_module(f"{__name__}.{family}")
