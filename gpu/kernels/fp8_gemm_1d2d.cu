// Y = (A scaled 1x128) (B scaled 128x128)^T: E4M3 operands, float32 scales, bf16 result.
//
//   a    [M, K] codes, K-major, by tensor map: boxes of 128 columns, 128-byte swizzle
//   b    [N, K] codes, likewise
//   sfa  [ceil(K / 128), M] float32, by tensor map
//   sfb  [ceil(N / 128), ceil(K / 128)] float32
//   d    [M, N] bf16, by tensor map: boxes of 64 rows where Tile::kStagesAll, else of 16, and Tile::kPiece columns, swizzled
//
// For each 128 columns of K the tensor core gives P, four wgmma from +0; Y = bf16(F), F = fma(fl(sfa * sfb), P, F) in the
// order of K, from +0. One warpgroup copies by tensor maps, the others multiply.
//
// Targets: sm_90a

#include "gemm/block.cuh"

namespace gemm {

#define FP8_GEMM(NAME, BYTES, GROUPS, ...)                                                                             \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) fp8_gemm_1d2d_##NAME(                          \
        const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap sfa, \
        const __grid_constant__ TensorMap d, const float* __restrict__ sfb, const Problem problem) {                   \
        using Entry = Tile<GROUPS, __VA_ARGS__>;                                                                       \
        static_assert(Entry::kDynamic == BYTES, "a launch asks for the bytes of the table");                           \
        multiply_blocks<Entry, WholeTiles<Entry>>(a, b, sfa, d, sfb, problem);                                         \
    }

// gemm_1d2d.py reads these lines.
//   name         shared bytes  GROUPS  BLOCK_M  BLOCK_N  STAGES  DOWN  ACROSS  STAGED
FP8_GEMM(64x64,         209088,      1,      64,      64,     12,    1,      1,     64)
FP8_GEMM(64x112,        220560,      1,      64,     112,      9,    1,      1,    112)
FP8_GEMM(64x128,        191344,      1,      64,     128,      7,    1,      1,    128)
FP8_GEMM(128x128_1x2,   200272,      2,     128,     128,      5,    1,      2,    128)
FP8_GEMM(128x128_2x1,   200272,      2,     128,     128,      5,    2,      1,    128)
FP8_GEMM(128x176,       203840,      2,     128,     176,      4,    1,      1,    176)
FP8_GEMM(128x192,       216128,      2,     128,     192,      4,    1,      1,    192)
FP8_GEMM(256x128,       218176,      2,     256,     128,      4,    1,      1,     64)
FP8_GEMM(256x128_1x2,   217136,      2,     256,     128,      3,    1,      2,    256)

}  // namespace gemm
