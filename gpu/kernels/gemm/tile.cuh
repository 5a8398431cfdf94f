// What one block computes and where it keeps it.

#pragma once

#include <stdint.h>

namespace gemm {

constexpr uint32_t kBlockK = 128;  // of one scale, and the bytes of a swizzled row
constexpr uint32_t kWave = 64;     // rows of one wgmma

__host__ __device__ constexpr uint32_t common(uint32_t a, uint32_t b) { return b == 0 ? a : common(b, a % b); }
__host__ __device__ constexpr uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
__host__ __device__ constexpr uint32_t up_to(uint32_t value, uint32_t step) { return (value + step - 1) / step * step; }

// A cluster is DOWN x ACROSS blocks: those below one another share the rows of B, those side by side the rows of A.
// STAGED columns of a warp's part of Y lie in shared memory at once; if they are more than BLOCK_N, then of several
// times 64 rows.
// SWAPPED: Y^T = B A^T, for few rows of A. All that is called A here is the operand in 64 rows of wgmma, then the weights.
template <uint32_t GROUPS, uint32_t BLOCK_M, uint32_t BLOCK_N, uint32_t STAGES, uint32_t DOWN, uint32_t ACROSS, uint32_t STAGED,
          bool SWAPPED = false>
struct Tile {
    static constexpr bool kSwapped = SWAPPED;
    static constexpr uint32_t M = BLOCK_M, N = BLOCK_N, kStages = STAGES, kGroups = GROUPS, kStaged = STAGED;
    static constexpr uint32_t kDown = DOWN, kAcross = ACROSS, kBlocks = DOWN * ACROSS;
    static constexpr uint32_t kThreads = 128 * (GROUPS + 1), kMathWarps = 4 * GROUPS;
    static constexpr uint32_t kWaves = BLOCK_M / GROUPS / kWave;

    // Two products in flight, so that one is promoted while the next is computed, where their registers suffice.
    static constexpr bool kDouble = kWaves == 1 && BLOCK_N <= 128;

    // All of a warpgroup's part of Y lies in shared memory at once.
    static constexpr bool kStagesAll = !SWAPPED && STAGED == BLOCK_N * kWaves;
    // The first row of the tile that a warpgroup multiplies in a wave.
    __device__ static constexpr uint32_t row(uint32_t group, uint32_t wave) { return (group * kWaves + wave) * kWave; }

    // Columns of Y in one swizzled piece of shared memory, and how many 128-blocks of scales a tile may touch.
    static constexpr uint32_t kPiece = SWAPPED ? 16 : least(64, common(64, BLOCK_N));
    static constexpr uint32_t kStep = common(BLOCK_N, 128);
    static constexpr uint32_t kScales = SWAPPED ? 1 : (128 - kStep + BLOCK_N + 127) / 128;

    // A warp stores its part of Y in boxes of so many rows, each of kPiece columns.
    static constexpr uint32_t kBoxRows = SWAPPED ? least(16, BLOCK_N) : 16;
    static constexpr uint32_t kBoxes = SWAPPED ? BLOCK_N / kBoxRows : kWaves;

    static constexpr uint32_t kBytesA = BLOCK_M * kBlockK, kBytesB = BLOCK_N * kBlockK;
    static constexpr uint32_t kBytesScales = (SWAPPED ? BLOCK_N : BLOCK_M) * 4;  // of A of the GEMM
    static constexpr uint32_t kBytesStage = kBytesA + kBytesB + kBytesScales;
    static constexpr uint32_t kBytesStaging = kMathWarps * 16 * STAGED * 2;
    static constexpr uint32_t kA = 0, kB = kA + STAGES * kBytesA, kD = kB + STAGES * kBytesB,
                              kSFA = up_to(kD + kBytesStaging, 128), kFull = kSFA + STAGES * up_to(kBytesScales, 128),
                              kEmpty = kFull + 8 * STAGES, kEnd = kEmpty + 8 * STAGES;
    static constexpr uint32_t kDynamic = kEnd + 1024;  // the base is rounded up to a swizzled piece

    static_assert(BLOCK_M == GROUPS * kWaves * kWave && BLOCK_N % kBoxRows == 0 && (kStagesAll || BLOCK_N % STAGED == 0));
    static_assert(SWAPPED ? kDouble && 128 % BLOCK_M == 0 && BLOCK_N == STAGED && kBlocks == 1 : STAGED % kPiece == 0);
    static_assert(kScales <= 3 && BLOCK_M <= 256 && BLOCK_N <= 256);
};

// The stage of shared memory that is next, and how often all have been used.
template <uint32_t STAGES>
struct Ring {
    uint32_t stage = 0, parity = 0;
    __device__ void step() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

}  // namespace gemm
