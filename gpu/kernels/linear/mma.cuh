// A stage of shared memory into the accumulators of a warp.

#pragma once

#include "tile.cuh"

namespace linear {

// The accumulators of a warp: of every eight columns a thread holds two neighbours in a row, and the same in row + 8.
template <class Plan_>
using Sums = float[Plan_::Tiling::kColumns / 8][4];

// A fragments of X by ldmatrix: lane l names row l % 16 and the half l / 16 of the step. Rows that no tile holds, which
// only a constant batch has, are the zero row of the team.
template <class Plan_>
struct InputReader {
    uint32_t zero, offset;
    bool beyond;

    __device__ InputReader(uint32_t zero, uint32_t lane)
        : zero(zero), beyond(lane % kMmaRows >= Plan_::Shape::kRows) {
        offset = chunk_offset<Plan_::kXRow / kChunk>(lane % kMmaRows, lane / kMmaRows);
        if (Plan_::kZero != 0 && beyond) offset %= Plan_::kXRow;
    }
    __device__ void load(uint32_t (&a)[4], uint32_t tile, uint32_t step) const {
        load_matrices(a, (Plan_::kZero != 0 && beyond ? zero : tile) + (offset ^ (step * 2 * kChunk)));
    }
};

// No barrier is needed after it: a team's first reads lie behind the barrier of its first tile.
template <class Plan_>
__device__ void clear_zero_row(uint32_t zero, uint32_t thread) {
    if constexpr (Plan_::kZero != 0) {
#pragma unroll
        for (uint32_t at = 4 * thread; at < Plan_::kZero; at += 4 * Plan_::Tiling::kTeamThreads)
            store_word(zero + at, 0);
    }
}

// Steps of 16 elements of K in ascending order, as long as any of the `left` elements are in one.
template <class Plan_, class Reader>
__device__ void multiply_stage(Sums<Plan_>& sum, const InputReader<Plan_>& inputs, const Reader& reader, uint32_t stage,
                               uint32_t left) {
    using Tile = typename Plan_::Tiling;
#pragma unroll
    for (uint32_t step = 0; step < Tile::REDUCTION_TILE / kMmaStep; ++step) {
        if (!Plan_::kWhole && step * kMmaStep >= left) break;
        uint32_t a[4];
        inputs.load(a, stage, step);
#pragma unroll
        for (uint32_t columns = 0; columns < Tile::kColumns; columns += 16) {
            uint32_t b[4];
            reader.load(b, stage + Plan_::kXTile, step, columns, left - step * kMmaStep);
            multiply_accumulate(sum[columns / 8], a, b[0], b[1]);
            multiply_accumulate(sum[columns / 8 + 1], a, b[2], b[3]);
        }
    }
}

}  // namespace linear
