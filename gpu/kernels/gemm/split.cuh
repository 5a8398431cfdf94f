// K in parts: each summed from +0 by its own block, and the sums added in their order by the block that comes last.

#pragma once

#include "epilogue.cuh"
#include "scheduler.cuh"

namespace gemm {

// partials: 16-byte vectors [tiles][parts][warps that multiply][vectors of a warp]. arrivals: [tiles][warps], 0 before and after.
struct Splits {
    float4* partials;
    uint32_t* arrivals;
    uint32_t parts, width;  // blocks of K in a part; no part is empty
};

struct PartOfPlace : Place {
    uint32_t tile, part, begin, blocks;
    __device__ uint32_t first() const { return begin; }
    __device__ uint64_t scales_of_b(const Problem&, bool) const { return begin; }
};

// The parts of a tile are taken one after the other, by several clusters.
template <class Tile>
struct SplitTiles : Tiles<Tile> {
    using At = PartOfPlace;
    uint32_t parts, width, all;

    __device__ SplitTiles(uint32_t base, const Problem& problem, const Seat<Tile>& seat, const Splits& splits)
        : Tiles<Tile>(base, problem, seat), parts(splits.parts), width(splits.width), all((problem.k + kBlockK - 1) / kBlockK) {}

    __device__ bool take(PartOfPlace& place) {
        if (this->next >= this->down * this->across * parts) return false;
        const uint32_t unit = this->next / parts;
        this->locate(place, unit);
        place.tile = unit * Tile::kBlocks + this->seat.rank(this->seat.m, this->seat.n);
        place.part = this->next % parts;
        place.begin = place.part * width;
        place.blocks = min(width, all - place.begin);
        this->next += this->step;
        return true;
    }
};

// Puts a warp's sums of one part beside those of the others; the last warp to do so has the sums of all, ((F0 + F1) + F2).
// Warps of the same place in different blocks hold the same outputs, so they meet without their blocks.
template <class Tile>
__device__ bool add_parts(float (&sum)[Tile::kWaves][Tile::N / 2], const Splits& splits, const PartOfPlace& place, uint32_t warp,
                          uint32_t lane) {
    constexpr uint32_t kVectors = Tile::N / 8 * 32, kPart = Tile::kMathWarps * Tile::kWaves * kVectors;
    float4* const first = splits.partials + uint64_t{place.tile} * splits.parts * kPart + warp * Tile::kWaves * kVectors + lane;
#pragma unroll
    for (uint32_t wave = 0; wave < Tile::kWaves; ++wave)
#pragma unroll
        for (uint32_t i = 0; i < Tile::N / 8; ++i) {
            const float* const four = sum[wave] + 4 * i;
            first[place.part * kPart + wave * kVectors + i * 32] = {four[0], four[1], four[2], four[3]};
        }
    __syncwarp();
    uint32_t before = 0;
    if (lane == 0) before = arrive_last(splits.arrivals + place.tile * Tile::kMathWarps + warp, splits.parts - 1);
    before = __shfl_sync(0xffffffff, before, 0);
    __syncwarp();
    if (before != splits.parts - 1) return false;
    for (uint32_t other = 0; other < splits.parts; ++other)
#pragma unroll
        for (uint32_t wave = 0; wave < Tile::kWaves; ++wave)
#pragma unroll
            for (uint32_t i = 0; i < Tile::N / 8; ++i) {
                const float4 four = first[other * kPart + wave * kVectors + i * 32];
                float* const into = sum[wave] + 4 * i;
                into[0] = other == 0 ? four.x : __fadd_rn(into[0], four.x);
                into[1] = other == 0 ? four.y : __fadd_rn(into[1], four.y);
                into[2] = other == 0 ? four.z : __fadd_rn(into[2], four.z);
                into[3] = other == 0 ? four.w : __fadd_rn(into[3], four.w);
            }
    return true;
}

template <class Tile>
struct TilesInParts {
    static constexpr bool kInParts = true, kHandsOver = false;
    template <bool>
    using Tiles = SplitTiles<Tile>;
    using Rows = AllRows<Tile, false>;  // each warp stores if it is the last of its parts
    __device__ static bool complete(float (&sum)[Tile::kWaves][Tile::N / 2], const PartOfPlace& place, uint32_t warp, uint32_t lane,
                                    const Splits& splits) {
        return splits.parts == 1 || add_parts<Tile>(sum, splits, place, warp, lane);
    }
};

}  // namespace gemm
