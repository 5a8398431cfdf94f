// From the accumulators of every split to Y: partial sums are kept where all can read them, added in the order of the
// splits, rounded to bf16, and the residual is added in a second rounding.

#pragma once

#include <cuda_bf16.h>

#include "mma.cuh"

namespace linear {

// Two elements, the first in the low half.
inline __device__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
}
inline __device__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
inline __device__ float high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

template <class Partial>
__device__ float rounded(float sum) {
    if constexpr (sizeof(Partial) == sizeof(float))
        return sum;
    else
        return __bfloat162float(__float2bfloat16_rn(sum));
}

// Y and R: pairs of columns, moved together where both exist and their address allows.
template <class Shape_>
struct Outputs {
    const typename Shape_::T* r;  // nullptr: no residual
    typename Shape_::T* y;
    Shape_ shape;

    __device__ bool whole(const void* base, uint32_t column) const {
        const uint32_t places = static_cast<uint32_t>(global_address(base)) | (2 * shape.stride());
        return Shape_::kConstant || (column + 1 < shape.output() && places % 4 == 0);
    }
    __device__ uint32_t residual(uint32_t row, uint32_t column) const {
        if (r == nullptr || row >= shape.batch() || column >= shape.output()) return 0;
        const auto* from = reinterpret_cast<const uint16_t*>(r) + uint64_t{row} * shape.stride() + column;
        if (whole(r, column)) return *reinterpret_cast<const uint32_t*>(from);
        return from[0] | (column + 1 < shape.output() ? uint32_t{from[1]} << 16 : 0);
    }
    __device__ void write(uint32_t row, uint32_t column, float low, float high, uint32_t residual) const {
        if (row >= shape.batch() || column >= shape.output()) return;
        uint32_t pair = pack(low, high);
        if (r != nullptr)
            pair = pack(__fadd_rn(low_half(pair), low_half(residual)), __fadd_rn(high_half(pair), high_half(residual)));
        auto* to = reinterpret_cast<uint16_t*>(y) + uint64_t{row} * shape.stride() + column;
        if (whole(y, column)) {
            *reinterpret_cast<uint32_t*>(to) = pair;
        } else {
            to[0] = static_cast<uint16_t>(pair);
            if (column + 1 < shape.output()) to[1] = static_cast<uint16_t>(pair >> 16);
        }
    }
};

// The i-th pair of columns of a thread. Where a row of 16 columns is half the banks wide, rows 0 and 2 of every four
// lie in different halves and are read side by side, and so are rows 1 and 3.
template <class Plan_>
struct Pair {
    uint32_t row, column;

    __device__ explicit Pair(uint32_t i) {
        constexpr uint32_t kAcross = Plan_::Tiling::OUTPUT_TILE / 2;
        const uint32_t number = threadIdx.x + i * Plan_::Tiling::kThreads, at = number / kAcross;
        row = kAcross == 8 ? (at & ~3u) | (at & 1) << 1 | (at >> 1 & 1) : at;
        column = number % kAcross * 2;
    }
};

// A constant shape asks for its residual before the main loop, the others where it is added.
template <class Plan_>
using Residual = uint32_t[Plan_::kPairsEach];

template <class Plan_>
__device__ void ask_for_residual(Residual<Plan_>& residual, const Outputs<typename Plan_::Shape>& outputs,
                                 uint32_t output) {
#pragma unroll
    for (uint32_t i = 0; i < Plan_::kPairsEach; ++i) {
        const Pair<Plan_> pair(i);
        residual[i] = outputs.residual(pair.row, output + pair.column);
    }
}

// A warp's sums into `partials` of its split, [row][column].
template <class Plan_>
__device__ void keep_partials(float* partials, uint32_t rows, const Sums<Plan_>& sum, uint32_t lane, uint32_t member) {
    using Tile = typename Plan_::Tiling;
    using Partial = typename Tile::Partial;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t row = lane / 4 + 8 * half;
        if (row >= rows) continue;
        float* to = partials + row * Plan_::kPitch + member * Tile::kColumns + lane % 4 * 2;
#pragma unroll
        for (uint32_t column = 0; column < Tile::kColumns; column += 8) {
            const float(&four)[4] = sum[column / 8];
            *reinterpret_cast<float2*>(to + column) =
                make_float2(rounded<Partial>(four[2 * half]), rounded<Partial>(four[2 * half + 1]));
        }
    }
}

// Adds the splits in their order and writes Y, whose first column here is `output`.
template <class Plan_>
__device__ void add_splits(const float* partials, uint32_t splits, const Outputs<typename Plan_::Shape>& outputs,
                           const Residual<Plan_>& residual, uint32_t output) {
    using Shape = typename Plan_::Shape;
    using Tile = typename Plan_::Tiling;
#pragma unroll (Shape::kConstant ? Plan_::kPairsEach : 1)
    for (uint32_t i = 0; i < Plan_::kPairsEach; ++i) {
        const Pair<Plan_> pair(i);
        if (pair.row >= outputs.shape.batch()) continue;
        const float* from = partials + pair.row * Plan_::kPitch + pair.column;
        float2 sum = *reinterpret_cast<const float2*>(from);
#pragma unroll (Tile::BLOCKS ? 1 : Tile::WARPS_K)
        for (uint32_t split = 1; split < splits; ++split) {
            const float2 next = *reinterpret_cast<const float2*>(from + split * Plan_::kSplit);
            sum.x = __fadd_rn(sum.x, next.x);
            sum.y = __fadd_rn(sum.y, next.y);
        }
        const uint32_t column = output + pair.column;
        const uint32_t addend = Shape::kConstant ? residual[i] : outputs.residual(pair.row, column);
        outputs.write(pair.row, column, sum.x, sum.y, addend);
    }
}

// Where the splits of all blocks of a column meet, for BLOCKS. partials: float [gridDim.x][splits][16][OUTPUT_TILE].
// arrivals: [gridDim.x], 0 before and after.
struct Scratch {
    float* partials;
    uint32_t* arrivals;

    // Whether this block is the last of its column to come here; atomicInc puts the counter back to 0.
    __device__ bool last_to_arrive() const {
        const uint32_t last = gridDim.y - 1;
        __threadfence();
        __syncthreads();
        const bool here = __syncthreads_or(threadIdx.x == 0 && atomicInc(arrivals + blockIdx.x, last) == last);
        __threadfence();
        return here;
    }
};

}  // namespace linear
