"""Launch geometry of the kernels: threads for so many elements. Any grid is correct, these are the fast ones."""

VECTOR_BYTES = 16

# gpu/kernels/fp8_quantize.cu. One block a tile: on an H200 the scheduler beat a resident grid by 1 to 5 %.
FP8_BLOCK = 256
FP8_QUANTIZE_UNROLL = 4
FP8_DEQUANTIZE_UNROLL = 2


def fp8_quantize_grid(n: int, wide_bytes: int, block: int = FP8_BLOCK) -> int:
    """Blocks of fp8_amax and fp8_quantize for `n` elements of `wide_bytes` (2 or 4): 1,000,003 bf16 make 123.

    At least one, because n = 0 still writes the scale.
    """
    return _tiles(n, wide_bytes, block * FP8_QUANTIZE_UNROLL)


def fp8_dequantize_grid(n: int, wide_bytes: int, block: int = FP8_BLOCK) -> int:
    """Blocks of fp8_dequantize for `n` elements of `wide_bytes`: 1,000,003 bf16 make 245."""
    return _tiles(n, wide_bytes, block * FP8_DEQUANTIZE_UNROLL)


def _tiles(n: int, wide_bytes: int, vectors: int) -> int:
    return max(1, -(-n // (vectors * (VECTOR_BYTES // wide_bytes))))
