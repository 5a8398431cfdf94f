// What one block computes and where it keeps it, and the order in which the blocks take their tiles.

#pragma once

#include <stdint.h>

namespace gemm {

constexpr uint32_t kBlockK = 128;  // of one scale, and the bytes of a swizzled row
constexpr uint32_t kWave = 64;     // rows of one wgmma

__host__ __device__ constexpr uint32_t common(uint32_t a, uint32_t b) { return b == 0 ? a : common(b, a % b); }
__host__ __device__ constexpr uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
__host__ __device__ constexpr uint32_t up_to(uint32_t value, uint32_t step) { return (value + step - 1) / step * step; }

// A cluster is DOWN x ACROSS blocks: those below one another share the rows of B, those side by side the rows of A.
// STAGED columns of a warp's part of Y lie in shared memory at once.
template <uint32_t GROUPS, uint32_t BLOCK_M, uint32_t BLOCK_N, uint32_t STAGES, uint32_t DOWN, uint32_t ACROSS, uint32_t STAGED>
struct Tile {
    static constexpr uint32_t M = BLOCK_M, N = BLOCK_N, kStages = STAGES, kGroups = GROUPS, kStaged = STAGED;
    static constexpr uint32_t kDown = DOWN, kAcross = ACROSS, kBlocks = DOWN * ACROSS;
    static constexpr uint32_t kSliceA = BLOCK_M / ACROSS, kSliceB = BLOCK_N / DOWN;  // rows that one block copies
    static constexpr uint32_t kThreads = 128 * (GROUPS + 1), kMathWarps = 4 * GROUPS;
    static constexpr uint32_t kReleases = kMathWarps * (DOWN + ACROSS - 1);  // arrivals that empty a stage
    static constexpr uint32_t kWaves = BLOCK_M / GROUPS / kWave;

    // Two products in flight, so that one is promoted while the next is computed, where their registers suffice.
    static constexpr bool kDouble = kWaves == 1 && BLOCK_N <= 128;

    // Columns of Y in one swizzled piece of shared memory, and how many 128-blocks of scales a tile may touch.
    static constexpr uint32_t kPiece = least(64, common(64, BLOCK_N));
    static constexpr uint32_t kStep = common(BLOCK_N, 128);
    static constexpr uint32_t kScales = (128 - kStep + BLOCK_N + 127) / 128;

    static constexpr uint32_t kBytesA = BLOCK_M * kBlockK, kBytesB = BLOCK_N * kBlockK, kBytesScales = BLOCK_M * 4;
    static constexpr uint32_t kBytesStage = kBytesA + kBytesB + kBytesScales;
    static constexpr uint32_t kBytesStaging = kMathWarps * 16 * STAGED * 2;
    static constexpr uint32_t kA = 0, kB = kA + STAGES * kBytesA, kD = kB + STAGES * kBytesB,
                              kSFA = up_to(kD + kBytesStaging, 128), kFull = kSFA + STAGES * up_to(kBytesScales, 128),
                              kEmpty = kFull + 8 * STAGES, kEnd = kEmpty + 8 * STAGES;
    static constexpr uint32_t kDynamic = kEnd + 1024;  // the base is rounded up to a swizzled piece

    static_assert(BLOCK_M == GROUPS * kWaves * kWave && BLOCK_N % 16 == 0 && BLOCK_N % STAGED == 0);
    static_assert(STAGED % kPiece == 0 && kScales <= 3 && kSliceA % 8 == 0 && kSliceB % 8 == 0);
};

// M, N and K of Y [M, N] = A [M, K] B [N, K]; how many rows of tiles are taken together, so that their A stays in L2.
struct Problem {
    uint32_t m, n, k, together;
};

struct Place {
    uint32_t m, n;
};

// Where a block sits in its cluster.
template <class Tile>
struct Seat {
    uint32_t m, n;
    __device__ explicit Seat(uint32_t rank) : m(rank % Tile::kDown), n(rank / Tile::kDown) {}
    __device__ uint32_t rank(uint32_t m, uint32_t n) const { return m + n * Tile::kDown; }
    // The blocks that have this one's rows of A, and those that have its rows of B.
    __device__ uint16_t mask_a() const {
        uint32_t mask = 0;
#pragma unroll
        for (uint32_t i = 0; i < Tile::kAcross; ++i) mask |= 1u << i * Tile::kDown;
        return mask << m;
    }
    __device__ uint16_t mask_b() const { return ((1u << Tile::kDown) - 1) << n * Tile::kDown; }
};

// The tiles of one block: clusters take units of DOWN x ACROSS tiles in turn.
template <class Tile>
struct Tiles {
    uint32_t down, across, together, next, step;
    Seat<Tile> seat;

    __device__ Tiles(const Problem& problem, const Seat<Tile>& seat)
        : down((problem.m + Tile::M * Tile::kDown - 1) / (Tile::M * Tile::kDown)),
          across((problem.n + Tile::N * Tile::kAcross - 1) / (Tile::N * Tile::kAcross)),
          together(problem.together),
          next(blockIdx.x / Tile::kBlocks),
          step(gridDim.x / Tile::kBlocks),
          seat(seat) {}

    // The next tile; one beyond the edge is computed on zeros and clipped.
    __device__ bool take(Place& place) {
        if (next >= down * across) return false;
        const uint32_t whole = together * across, first = next / whole * together, rows = min(together, down - first);
        const uint32_t at = next % whole;
        place.m = ((first + at % rows) * Tile::kDown + seat.m) * Tile::M;
        place.n = (at / rows * Tile::kAcross + seat.n) * Tile::N;
        next += step;
        return true;
    }
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
