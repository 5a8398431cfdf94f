// The main loop of a team: a tile of its range of K is asked for kStages - 1 iterations before it is multiplied with.

#pragma once

#include "mma.cuh"

namespace linear {

// Where a thread stands, and the range of K that its team owns: `tiles` tiles from element `begin` on.
template <class Plan_>
struct WorkRange {
    using Shape = typename Plan_::Shape;
    using Tile = typename Plan_::Tiling;
    uint32_t lane, team, member;  // member: the warp's number in its team
    uint32_t output;              // the block's first column
    uint32_t splits, split, begin, tiles;
    uint32_t k_iters;  // more than `tiles` where the barrier of the team is that of the block, so that all arrive alike

    __device__ explicit WorkRange(const Shape& shape) {
        const uint32_t warp = threadIdx.x / kWarp;
        lane = threadIdx.x % kWarp;
        team = warp / Tile::WARPS_N;
        member = warp % Tile::WARPS_N;
        output = blockIdx.x * Tile::OUTPUT_TILE;
        splits = Tile::WARPS_K * (Tile::BLOCKS ? gridDim.y : 1);
        split = Tile::BLOCKS ? blockIdx.y * Tile::WARPS_K + team : team;
        const uint32_t all = (shape.reduction() + Tile::REDUCTION_TILE - 1) / Tile::REDUCTION_TILE;
        const uint32_t each = (all + splits - 1) / splits;
        const uint32_t first = min(split * each, all);
        begin = first * Tile::REDUCTION_TILE;
        const bool even =
            Shape::kConstant && !Tile::BLOCKS && Shape::kReduction % (Tile::REDUCTION_TILE * Tile::WARPS_K) == 0;
        tiles = even ? each : min(each, all - first);
        k_iters = Tile::WARPS_N == 1 ? tiles : each;
    }
};

// A team of one warp needs no barrier of the block.
template <class Plan_>
__device__ void team_barrier() {
    if constexpr (Plan_::Tiling::WARPS_N == 1)
        __syncwarp();
    else
        __syncthreads();
}

// What a team copies: tile `tile` of its range into stage `slot` of its ring.
template <class Plan_>
struct Ring {
    using Shape = typename Plan_::Shape;
    using Tile = typename Plan_::Tiling;
    Rows x, w;
    uint32_t stages, thread, begin, tiles;

    __device__ void ask_for_weights(uint32_t tile, uint32_t slot) const {
        if (tile >= tiles) return;
        constexpr uint32_t kChunks = Plan_::kWRow / kChunk, kElement = Plan_::Weights::kBytes;
        copy_tile<Tile::OUTPUT_TILE, kChunks, kElement, Tile::kTeamThreads, Shape::kConstant, Plan_::kWhole>(
            stages + slot * Plan_::kStage + Plan_::kXTile, from(w, tile, kElement), thread);
    }
    __device__ void ask_for_inputs(uint32_t tile, uint32_t slot) const {
        if (tile >= tiles) return;
        constexpr uint32_t kChunks = Plan_::kXRow / kChunk, kElement = sizeof(typename Shape::T);
        copy_tile<Shape::kRows, kChunks, kElement, Tile::kTeamThreads, Shape::kConstant, Plan_::kWhole>(
            stages + slot * Plan_::kStage, from(x, tile, kElement), thread);
    }
    __device__ Rows from(const Rows& all, uint32_t tile, uint32_t element) const {
        const uint32_t bytes = (begin + tile * Tile::REDUCTION_TILE) * element;
        return {all.address + bytes, all.pitch, all.rows, all.bytes - bytes, all.width};
    }
};

// The first tiles with OVERLAP: weights while kernels before this one may still run, inputs once they are done. The
// groups are committed with the inputs, one a tile, as the main loop counts them.
template <class Plan_>
__device__ void ask_ahead(const Ring<Plan_>& ring) {
    start_next_kernel();
#pragma unroll
    for (uint32_t tile = 0; tile < Plan_::kStages - 1; ++tile) ring.ask_for_weights(tile, tile);
    wait_for_kernel_before();
#pragma unroll
    for (uint32_t tile = 0; tile < Plan_::kStages - 1; ++tile) {
        ring.ask_for_inputs(tile, tile);
        commit_copies();
    }
}

// An iteration asks for tile `k_iter` and multiplies with the one that was asked for kAhead iterations before. A group
// is committed where there is no tile too, so that the count of groups stays the number of the tile.
template <class Plan_, class Reader>
__device__ void multiply_range(Sums<Plan_>& sum, const Ring<Plan_>& ring, const InputReader<Plan_>& inputs,
                               Reader& reader, uint32_t k_iters, uint32_t reduction) {
    using Tile = typename Plan_::Tiling;
    constexpr uint32_t kAhead = Plan_::kStages - 1;
    uint32_t slot = 0, next_slot = Tile::OVERLAP ? kAhead : 0;
#pragma unroll 1
    for (uint32_t k_iter = Tile::OVERLAP ? kAhead : 0; k_iter < k_iters + kAhead; ++k_iter) {
        const uint32_t tile = k_iter - kAhead, k = ring.begin + tile * Tile::REDUCTION_TILE;
        const bool filled = Tile::OVERLAP || k_iter >= kAhead;
        if (filled) {
            wait_for_copies<kAhead - 1>();
            team_barrier<Plan_>();  // the tile is there for all, and all are done with the one before it
            reader.begin_tile(k);
        }
        ring.ask_for_weights(k_iter, next_slot);
        ring.ask_for_inputs(k_iter, next_slot);
        commit_copies();
        next_slot = next_slot == kAhead ? 0 : next_slot + 1;
        if (filled && (Tile::WARPS_N == 1 || tile < ring.tiles)) {
            multiply_stage<Plan_>(sum, inputs, reader, ring.stages + slot * Plan_::kStage, reduction - k);
            slot = slot == kAhead ? 0 : slot + 1;
        }
    }
}

}  // namespace linear
