// fp8_gemm_1d2d.cu for few rows: K in parts, and A and B swapped.
//
// With `splits` parts of K, each a range of blocks, F of every part is summed from +0, and Y = bf16((F0 + F1) + F2), rounded
// each time: the order of the parts, whichever block is the last. One part: the bits of fp8_gemm_1d2d.cu.
// A swapped entry computes Y^T = B A^T: it is given B and A, N and M for M and N, and changes no bit. Its tile is BLOCK_M rows
// of B by BLOCK_N of A, so that 8 rows of A need not be computed as 64.
//
//   a, b, sfa, sfb   as there, a and b exchanged for a swapped entry, whose boxes of sfa are BLOCK_N wide
//   d                by tensor map: a swapped entry's boxes have BLOCK_N rows, at most 16, and 16 columns
//   splits           where the sums of the parts meet
//
// Targets: sm_90a

#include "gemm/block.cuh"
#include "gemm/split.cuh"

namespace gemm {

#define FP8_GEMM(NAME, BYTES, GROUPS, ...)                                                                            \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) fp8_gemm_1d2d_splits_##NAME(                  \
        const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap sfa,\
        const __grid_constant__ TensorMap d, const float* __restrict__ sfb, const Problem problem,                    \
        const __grid_constant__ Splits splits) {                                                                      \
        using Entry = Tile<GROUPS, __VA_ARGS__>;                                                                      \
        static_assert(Entry::kDynamic == BYTES, "a launch asks for the bytes of the table");                          \
        multiply_blocks<Entry, TilesInParts<Entry>>(a, b, sfa, d, sfb, problem, splits);                              \
    }

// gemm_1d2d.py reads these lines.
//   name               shared bytes  GROUPS BLOCK_M  BLOCK_N STAGES DOWN  ACROSS STAGED  SWAPPED
FP8_GEMM(64x128,            191344,      1,      64,     128,      7,    1,      1,    128,       0)
FP8_GEMM(128x128_1x2,       200272,      2,     128,     128,      5,    1,      2,    128,       0)
FP8_GEMM(64x8_swapped,      226688,      1,      64,       8,     24,    1,      1,      8,       1)
FP8_GEMM(64x16_swapped,     231520,      1,      64,      16,     22,    1,      1,     16,       1)
FP8_GEMM(64x32_swapped,     228896,      1,      64,      32,     18,    1,      1,     32,       1)
FP8_GEMM(64x64_swapped,     225744,      1,      64,      64,     13,    1,      1,     64,       1)
FP8_GEMM(128x8_swapped,     231248,      2,     128,       8,     13,    1,      1,      8,       1)
FP8_GEMM(128x16_swapped,    228032,      2,     128,      16,     12,    1,      1,     16,       1)
FP8_GEMM(128x32_swapped,    215456,      2,     128,      32,     10,    1,      1,     32,       1)
FP8_GEMM(128x64_swapped,    216192,      2,     128,      64,      8,    1,      1,     64,       1)

}  // namespace gemm
