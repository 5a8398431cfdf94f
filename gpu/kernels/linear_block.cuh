// What linear.cu and linear_fp8_weight.cu share: a block multiplies up to 16 rows of X with a tile of rows of W.
//
// The picture: WARPS_K teams of WARPS_N warps. A team owns one range of the reduction and a ring of K_PIPE_MAX stages
// in shared memory that no other team touches, so the main loop has no barrier of the block; the warps of a team share
// its tile out by columns.
//
//     stage | X tile: rows x REDUCTION_TILE | W tile: OUTPUT_TILE x REDUCTION_TILE |      both K contiguous
//     team  | zero row | stage 0 | stage 1 | ... |
//     block | team 0 | team 1 | ... | partials [team][row][OUTPUT_TILE + 8] float |
//
// A tile row is 64, 128 or 256 bytes; its chunks of 16 bytes are swizzled with the row, so that eight rows at one place
// of K lie in eight different chunk columns of the banks: no ldmatrix, load or 16-byte copy here has a bank conflict.
// Rows of X that the batch lacks are read from the zero row where BATCH_SIZE is a constant, else copied as zeros.
//
// Arithmetic, bit for bit, for each output (b, o), with K = REDUCTION and S splits (WARPS_K, times gridDim.y where the
// reduction is split over blocks; split s is team s % WARPS_K of block s / WARPS_K):
//   tiles = ceil(K / REDUCTION_TILE), each = ceil(tiles / S). Split s owns those tiles from s * each to
//   (s + 1) * each - 1 that exist; an empty split is +0.
//   p_s = +0, then over the split's k ascending in steps of 16: p_s = mma.m16n8k16(X[b, k..k+15], W[o, k..k+15], p_s);
//   beyond K both operands are +0.
//   P_s = p_s, or RNE_bf16(p_s) where partials are bf16.
//   sum = P_0, then fl32(sum + P_s) for s = 1 .. S-1 in this order, round to nearest even.
//   y = RNE_bf16(sum). With a residual Y = RNE_bf16(y + r), a second rounding; without one Y = y.
// The sum begins with P_0 and not with 0, so one split needs no rule of its own. A sum that is negative and at most
// 2^-134 rounds to -0, which stands unless a residual is added. Nothing is flushed to zero; a NaN is written as 0x7fff.

#pragma once

#include <cuda/std/cstdint>
#include <cuda/std/type_traits>
#include <cuda_bf16.h>

#if __CUDA_FTZ  // NVRTC says so; nvcc has no such macro
#error "compiled with -ftz=true or --use_fast_math: subnormals would be flushed"
#endif

namespace linear {

using cuda::std::uint16_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;

// Enumerators, because a constexpr variable may leave a .global of its own in the PTX.
enum : uint32_t { kWarp = 32, kMmaRows = 16, kMmaStep = 16, kChunk = 16, kBanks = 128 };

// ---------------------------------------------------------------------------------------------------------------------
// Instructions

inline __device__ uint64_t global_address(const void* pointer) { return __cvta_generic_to_global(pointer); }

// Copies `valid` of kBytes bytes and fills the rest with zeros.
template <uint32_t kBytes>
__device__ void copy_async(uint32_t to, uint64_t from, uint32_t valid) {
    if constexpr (kBytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from),
                     "n"(static_cast<int>(kBytes)), "r"(valid)
                     : "memory");
    }
}
inline __device__ void copy_async(uint32_t to, uint64_t from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
inline __device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <uint32_t kPending>
__device__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(static_cast<int>(kPending)) : "memory");
}

inline __device__ void start_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
inline __device__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

inline __device__ void load_matrices(uint32_t (&d)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
}

inline __device__ void multiply_accumulate(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

inline __device__ void store_word(uint32_t to, uint32_t word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

// ---------------------------------------------------------------------------------------------------------------------
// Extents and tiles

// An extent of 0 is given at run time. T is the element of X, R and Y.
template <class T_, int BATCH_SIZE, int OUTPUT_SIZE, int REDUCTION_SIZE, int O_STRIDE>
struct Shape {
    static_assert(BATCH_SIZE <= int{kMmaRows}, "one MMA holds 16 rows");
    static_assert((BATCH_SIZE != 0) == (OUTPUT_SIZE != 0) && (BATCH_SIZE != 0) == (REDUCTION_SIZE != 0) &&
                      (BATCH_SIZE != 0) == (O_STRIDE != 0),
                  "all extents are constants, or none");
    static_assert(REDUCTION_SIZE % 8 == 0, "constant rows are copied in chunks of 16 bytes");
    static_assert(cuda::std::is_same<T_, __nv_bfloat16>::value, "the MMA and the roundings are those of bf16");
    using T = T_;
    enum : bool { kConstant = BATCH_SIZE != 0 };
    enum : uint32_t { kOutput = OUTPUT_SIZE, kReduction = REDUCTION_SIZE, kRows = kConstant ? BATCH_SIZE : kMmaRows };

    uint32_t given_batch, given_output, given_reduction, given_stride;

    __device__ uint32_t batch() const { return kConstant ? BATCH_SIZE : given_batch; }
    __device__ uint32_t output() const { return kConstant ? OUTPUT_SIZE : given_output; }
    __device__ uint32_t reduction() const { return kConstant ? REDUCTION_SIZE : given_reduction; }
    __device__ uint32_t stride() const { return kConstant ? O_STRIDE : given_stride; }
};

// Partial is what a split's sum is rounded to: float keeps it. BLOCKS: gridDim.y splits the reduction as well. OVERLAP:
// where the launch allows it (programmatic stream serialisation, from sm_90 on), weights and scales are asked for while
// kernels before this one still run, so none of these may write them; X, R and Y wait.
template <int OUTPUT_TILE_, int REDUCTION_TILE_, int WARPS_N_, int WARPS_K_, class Partial_ = float,
          bool BLOCKS_ = false, bool OVERLAP_ = false>
struct Tiling {
    static_assert(OUTPUT_TILE_ % (16 * WARPS_N_) == 0, "a warp multiplies with columns in sixteens");
    static_assert(REDUCTION_TILE_ == 64 || REDUCTION_TILE_ == 128, "a tile row fills the banks once or twice");
    using Partial = Partial_;
    enum : bool { BLOCKS = BLOCKS_, OVERLAP = OVERLAP_ };
    enum : uint32_t {
        OUTPUT_TILE = OUTPUT_TILE_, REDUCTION_TILE = REDUCTION_TILE_, WARPS_N = WARPS_N_, WARPS_K = WARPS_K_,
        kThreads = kWarp * WARPS_N_ * WARPS_K_, kTeamThreads = kWarp * WARPS_N_, kColumns = OUTPUT_TILE_ / WARPS_N_
    };
};

// Bytes of shared memory, and what the constants alone decide.
template <class Shape, class Weights, class Tiling, int K_PIPE_MAX>
struct Plan {
    static_assert(K_PIPE_MAX >= 2, "one stage is read while another fills");
    enum : uint32_t {
        kXRow = Tiling::REDUCTION_TILE * sizeof(typename Shape::T),
        kWRow = Tiling::REDUCTION_TILE * Weights::kBytes,
        kXTile = Shape::kRows * kXRow,
        kStage = kXTile + Tiling::OUTPUT_TILE * kWRow,
        kZero = Shape::kRows == kMmaRows ? 0 : kXRow,
        kTeam = kZero + K_PIPE_MAX * kStage,
        kPitch = Tiling::OUTPUT_TILE + 8,
        kPartials = Tiling::BLOCKS ? 0 : Tiling::WARPS_K * Shape::kRows * kPitch * sizeof(float),
        kPairs = (Shape::kRows + 3) / 4 * 4 * Tiling::OUTPUT_TILE / 2,
        kPairsEach = (kPairs + Tiling::kThreads - 1) / Tiling::kThreads,  // pairs of columns a thread writes
    };
    // No tile is cut off by an edge of X or W.
    enum : bool {
        kWhole = Shape::kConstant && Shape::kOutput % Tiling::OUTPUT_TILE == 0 &&
                 Shape::kReduction % Tiling::REDUCTION_TILE == 0
    };
};

// ---------------------------------------------------------------------------------------------------------------------
// Tiles in shared memory: rows of kChunks chunks of 16 bytes.

// What is added to a row's chunk numbers, by exclusive or.
template <uint32_t kChunks>
__device__ uint32_t swizzle_key(uint32_t row) {
    return kChunks >= 8 ? row % 8 : row / (8 / kChunks) % kChunks;
}

// Byte offset of a chunk in its tile. Of `chunk ^ n` it is this offset ^ (16 * n).
template <uint32_t kChunks>
__device__ uint32_t chunk_offset(uint32_t row, uint32_t chunk) {
    return row * (kChunks * kChunk) + (chunk ^ swizzle_key<kChunks>(row)) * kChunk;
}

// Rows of an operand in global memory, from the tile's first element on.
struct Rows {
    uint64_t address;
    uint64_t pitch;  // bytes from row to row
    uint32_t rows;   // that exist
    uint32_t bytes;  // of each that exist
    uint32_t width;  // the largest power of two up to 16 that divides the address of every row
};

inline __device__ uint32_t access_width(uint64_t address, uint64_t pitch) {
    const uint32_t low = static_cast<uint32_t>(address | pitch) | kChunk;
    return low & (0u - low);
}

// Four bytes from elements that no copy can move: `valid` of them, the rest zero.
template <uint32_t kElement>
__device__ uint32_t load_word(uint64_t from, uint32_t valid) {
    uint32_t word = 0;
#pragma unroll
    for (uint32_t at = 0; at < 4; at += kElement) {
        if (at >= valid) break;
        if constexpr (kElement == 2)
            word |= uint32_t{*reinterpret_cast<const uint16_t*>(from + at)} << (8 * at);
        else
            word |= uint32_t{*reinterpret_cast<const uint8_t*>(from + at)} << (8 * at);
    }
    return word;
}

// One thread's share of a tile. kAligned: the width is 16. kWhole: the tile is all inside.
template <uint32_t kRows, uint32_t kChunks, uint32_t kElement, uint32_t kThreads, bool kAligned, bool kWhole>
__device__ void copy_tile(uint32_t to, const Rows& from, uint32_t thread) {
    constexpr uint32_t kTotal = kRows * kChunks, kPass = kThreads / kChunks;  // rows that the threads copy at a time
    static_assert(kThreads % kChunks == 0, "a thread copies one chunk column");
    const auto inside = [&](uint32_t row, uint32_t at, uint32_t wanted) {
        return row < from.rows && at < from.bytes ? min(from.bytes - at, wanted) : 0;
    };
    if (kAligned || from.width == kChunk) {
        const uint32_t first = thread / kChunks, at = thread % kChunks * kChunk;
        const uint32_t place = chunk_offset<kChunks>(first, thread % kChunks);
        const uint64_t source = from.address + first * from.pitch + at;
#pragma unroll
        for (uint32_t row = 0; row < kRows; row += kPass) {
            if (row + kPass > kRows && row + first >= kRows) break;
            // The key of row + first is that of row by exclusive or with that of first: no bit of one is in the other.
            const uint32_t target = to + row * (kChunks * kChunk) + (place ^ (swizzle_key<kChunks>(row) * kChunk));
            if constexpr (kWhole) {
                copy_async(target, source + row * from.pitch);
            } else {
                const uint32_t valid = inside(row + first, at, kChunk);
                copy_async<kChunk>(target, valid ? source + row * from.pitch : from.address, valid);
            }
        }
    } else {
#pragma unroll 1
        for (uint32_t index = thread; index < kTotal * 4; index += kThreads) {
            const uint32_t row = index / (kChunks * 4), at = index % (kChunks * 4) * 4, valid = inside(row, at, 4);
            const uint32_t place = to + chunk_offset<kChunks>(row, at / kChunk) + at % kChunk;
            const uint64_t source = from.address + row * from.pitch + at;
            if (from.width >= 4)
                copy_async<4>(place, valid ? source : from.address, valid);
            else
                store_word(place, load_word<kElement>(source, valid));
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// One block

// A team of one warp needs no barrier of the block; with larger teams all take the same number of turns.
template <class Tiling>
__device__ void team_barrier() {
    if constexpr (Tiling::WARPS_N == 1)
        __syncwarp();
    else
        __syncthreads();
}

// Where a thread stands, and the range of K that its team owns.
template <class Shape, class Tiling>
struct Place {
    uint32_t lane, team, member, output, splits, split, begin, tiles, turns;

    __device__ explicit Place(const Shape& shape) {
        const uint32_t warp = threadIdx.x / kWarp;
        lane = threadIdx.x % kWarp;
        team = warp / Tiling::WARPS_N;
        member = warp % Tiling::WARPS_N;
        output = blockIdx.x * Tiling::OUTPUT_TILE;
        splits = Tiling::WARPS_K * (Tiling::BLOCKS ? gridDim.y : 1);
        split = Tiling::BLOCKS ? blockIdx.y * Tiling::WARPS_K + team : team;
        const uint32_t all = (shape.reduction() + Tiling::REDUCTION_TILE - 1) / Tiling::REDUCTION_TILE;
        const uint32_t each = (all + splits - 1) / splits;
        const uint32_t first = min(split * each, all);
        begin = first * Tiling::REDUCTION_TILE;
        const bool even = Shape::kConstant && !Tiling::BLOCKS &&
                          Shape::kReduction % (Tiling::REDUCTION_TILE * Tiling::WARPS_K) == 0;
        tiles = even ? each : min(each, all - first);
        turns = Tiling::WARPS_N == 1 ? tiles : each;
    }
};

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
template <class Shape>
struct Outputs {
    const typename Shape::T* r;  // nullptr: no residual
    typename Shape::T* y;
    Shape shape;

    __device__ bool whole(const void* base, uint32_t column) const {
        const uint32_t places = static_cast<uint32_t>(global_address(base)) | (2 * shape.stride());
        return Shape::kConstant || (column + 1 < shape.output() && places % 4 == 0);
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

// The accumulators of a warp: of every eight columns a thread holds two neighbours in a row, and the same in row + 8.
template <class Tiling>
using Sums = float[Tiling::kColumns / 8][4];

template <class Tiling>
__device__ void keep_partials(float* partials, uint32_t pitch, uint32_t rows, const Sums<Tiling>& sum, uint32_t lane,
                              uint32_t member) {
    using Partial = typename Tiling::Partial;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t row = lane / 4 + 8 * half;
        if (row >= rows) continue;
        float* to = partials + row * pitch + member * Tiling::kColumns + lane % 4 * 2;
#pragma unroll
        for (uint32_t column = 0; column < Tiling::kColumns; column += 8) {
            const float(&four)[4] = sum[column / 8];
            *reinterpret_cast<float2*>(to + column) =
                make_float2(rounded<Partial>(four[2 * half]), rounded<Partial>(four[2 * half + 1]));
        }
    }
}

// The i-th pair of columns of a thread. Where a row of 16 columns is half the banks wide, rows 0 and 2 of every four
// lie in different halves and are read side by side, and so are rows 1 and 3.
template <class Tiling>
struct Pair {
    uint32_t row, column;

    __device__ explicit Pair(uint32_t i) {
        constexpr uint32_t kAcross = Tiling::OUTPUT_TILE / 2;
        const uint32_t number = threadIdx.x + i * Tiling::kThreads, at = number / kAcross;
        row = kAcross == 8 ? (at & ~3u) | (at & 1) << 1 | (at >> 1 & 1) : at;
        column = number % kAcross * 2;
    }
};

// Adds the splits in their order and writes Y.
// `residual` is what it asked for beforehand, where the shape is constant.
template <class Plan, class Tiling, class Shape>
__device__ void add_splits(const float* partials, uint32_t pitch, uint32_t split_pitch, uint32_t splits,
                           const Outputs<Shape>& outputs, const uint32_t (&residual)[Plan::kPairsEach],
                           uint32_t output) {
#pragma unroll (Shape::kConstant ? Plan::kPairsEach : 1)
    for (uint32_t i = 0; i < Plan::kPairsEach; ++i) {
        const Pair<Tiling> pair(i);
        if (pair.row >= outputs.shape.batch()) continue;
        const float* from = partials + pair.row * pitch + pair.column;
        float2 sum = *reinterpret_cast<const float2*>(from);
#pragma unroll (Tiling::BLOCKS ? 1 : Tiling::WARPS_K)
        for (uint32_t split = 1; split < splits; ++split) {
            const float2 next = *reinterpret_cast<const float2*>(from + split * split_pitch);
            sum.x = __fadd_rn(sum.x, next.x);
            sum.y = __fadd_rn(sum.y, next.y);
        }
        const uint32_t column = output + pair.column;
        const uint32_t addend = Shape::kConstant ? residual[i] : outputs.residual(pair.row, column);
        outputs.write(pair.row, column, sum.x, sum.y, addend);
    }
}

template <class Plan, class Tiling, class Shape>
__device__ void ask_for_residual(uint32_t (&residual)[Plan::kPairsEach], const Outputs<Shape>& outputs,
                                 uint32_t output) {
#pragma unroll
    for (uint32_t i = 0; i < Plan::kPairsEach; ++i) {
        const Pair<Tiling> pair(i);
        residual[i] = outputs.residual(pair.row, output + pair.column);
    }
}

// What a team copies: tile `tile` of its range into stage `slot` of its ring.
template <class Plan, class Shape, class Weights, class Tiling>
struct Ring {
    Rows x, w;
    uint32_t stages, thread, begin, tiles;

    __device__ void ask_for_weights(uint32_t tile, uint32_t slot) const {
        if (tile >= tiles) return;
        constexpr uint32_t kChunks = Plan::kWRow / kChunk;
        copy_tile<Tiling::OUTPUT_TILE, kChunks, Weights::kBytes, Tiling::kTeamThreads, Shape::kConstant, Plan::kWhole>(
            stages + slot * Plan::kStage + Plan::kXTile, from(w, tile, Weights::kBytes), thread);
    }
    __device__ void ask_for_inputs(uint32_t tile, uint32_t slot) const {
        if (tile >= tiles) return;
        constexpr uint32_t kChunks = Plan::kXRow / kChunk, kElement = sizeof(typename Shape::T);
        copy_tile<Shape::kRows, kChunks, kElement, Tiling::kTeamThreads, Shape::kConstant, Plan::kWhole>(
            stages + slot * Plan::kStage, from(x, tile, kElement), thread);
    }
    __device__ Rows from(const Rows& all, uint32_t tile, uint32_t element) const {
        const uint32_t bytes = (begin + tile * Tiling::REDUCTION_TILE) * element;
        return {all.address + bytes, all.pitch, all.rows, all.bytes - bytes, all.width};
    }
};

// X by ldmatrix: lane l names row l % 16 and the half l / 16 of the step. Rows that no tile holds are the zero row.
template <class Plan, class Shape>
struct InputReader {
    uint32_t zero, offset;
    bool beyond;

    __device__ InputReader(uint32_t zero, uint32_t lane) : zero(zero), beyond(lane % kMmaRows >= Shape::kRows) {
        offset = chunk_offset<Plan::kXRow / kChunk>(lane % kMmaRows, lane / kMmaRows);
        if (Plan::kZero != 0 && beyond) offset %= Plan::kXRow;
    }
    __device__ void load(uint32_t (&a)[4], uint32_t tile, uint32_t step) const {
        load_matrices(a, (Plan::kZero != 0 && beyond ? zero : tile) + (offset ^ (step * 2 * kChunk)));
    }
};

// A stage into the accumulators, where `left` elements of K are left.
template <class Plan, class Tiling, class Inputs, class Reader>
__device__ void multiply_stage(Sums<Tiling>& sum, const Inputs& inputs, const Reader& reader, uint32_t stage,
                               uint32_t left) {
#pragma unroll
    for (uint32_t step = 0; step < Tiling::REDUCTION_TILE / kMmaStep; ++step) {
        if (!Plan::kWhole && step * kMmaStep >= left) break;
        uint32_t a[4];
        inputs.load(a, stage, step);
#pragma unroll
        for (uint32_t columns = 0; columns < Tiling::kColumns; columns += 16) {
            uint32_t b[4];
            reader.load(b, stage + Plan::kXTile, step, columns, left - step * kMmaStep);
            multiply_accumulate(sum[columns / 8], a, b[0], b[1]);
            multiply_accumulate(sum[columns / 8 + 1], a, b[2], b[3]);
        }
    }
}

// A turn asks for one tile and multiplies with the one that was asked for K_PIPE_MAX - 1 turns before. A group is
// committed where there is no tile too, so that the count of groups stays the number of the tile. With OVERLAP the
// first tiles have been asked for.
template <class Plan, class Tiling, int K_PIPE_MAX, class Ring, class Inputs, class Reader>
__device__ void multiply_range(Sums<Tiling>& sum, const Ring& ring, const Inputs& inputs, Reader& reader,
                               uint32_t turns, uint32_t reduction) {
    constexpr uint32_t kAhead = K_PIPE_MAX - 1;
    uint32_t slot = 0, next_slot = Tiling::OVERLAP ? kAhead : 0;
#pragma unroll 1
    for (uint32_t turn = Tiling::OVERLAP ? kAhead : 0; turn < turns + kAhead; ++turn) {
        const uint32_t tile = turn - kAhead, k = ring.begin + tile * Tiling::REDUCTION_TILE;
        const bool filled = Tiling::OVERLAP || turn >= kAhead;
        if (filled) {
            wait_for_copies<kAhead - 1>();
            team_barrier<Tiling>();  // the tile is there for all, and all are done with the one before it
            reader.turn(k);
        }
        ring.ask_for_weights(turn, next_slot);
        ring.ask_for_inputs(turn, next_slot);
        commit_copies();
        next_slot = next_slot == kAhead ? 0 : next_slot + 1;
        if (filled && (Tiling::WARPS_N == 1 || tile < ring.tiles)) {
            multiply_stage<Plan, Tiling>(sum, inputs, reader, ring.stages + slot * Plan::kStage, reduction - k);
            slot = slot == kAhead ? 0 : slot + 1;
        }
    }
}

// For BLOCKS. partials: float [gridDim.x][splits][16][OUTPUT_TILE]. arrivals: [gridDim.x], 0 before and after.
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

template <class Shape, class Weights, class Tiling, int K_PIPE_MAX>
__device__ void multiply_block(const typename Shape::T* x, const Weights& weights, const Outputs<Shape>& outputs,
                               Scratch scratch) {
    using Plan = linear::Plan<Shape, Weights, Tiling, K_PIPE_MAX>;
    extern __shared__ __align__(kBanks) uint8_t arena[];
    const Shape& shape = outputs.shape;
    const Place<Shape, Tiling> place(shape);
    const uint32_t zero = static_cast<uint32_t>(__cvta_generic_to_shared(arena)) + place.team * Plan::kTeam;
    const uint32_t thread = threadIdx.x % Tiling::kTeamThreads;

    typename Weights::template Reader<Shape, Tiling> reader(weights, shape, place.lane, place.output, place.member);
    reader.fetch(place.begin);
    const uint32_t bytes = shape.reduction() * sizeof(typename Shape::T);
    const Rows rows{global_address(x), bytes, shape.batch(), bytes, access_width(global_address(x), bytes)};
    const Ring<Plan, Shape, Weights, Tiling> ring{
        rows, weights.rows(shape, place.output), zero + Plan::kZero, thread, place.begin, place.tiles};
    if constexpr (Tiling::OVERLAP) {
        start_next_kernel();
#pragma unroll
        for (uint32_t tile = 0; tile < K_PIPE_MAX - 1; ++tile) ring.ask_for_weights(tile, tile);
        wait_for_kernel_before();
#pragma unroll
        for (uint32_t tile = 0; tile < K_PIPE_MAX - 1; ++tile) {
            ring.ask_for_inputs(tile, tile);
            commit_copies();
        }
    }
    if constexpr (Plan::kZero != 0) {
#pragma unroll
        for (uint32_t at = 4 * thread; at < Plan::kZero; at += 4 * Tiling::kTeamThreads) store_word(zero + at, 0);
    }
    uint32_t residual[Plan::kPairsEach] = {};
    if constexpr (Shape::kConstant) ask_for_residual<Plan, Tiling>(residual, outputs, place.output);

    Sums<Tiling> sum = {};
    multiply_range<Plan, Tiling, K_PIPE_MAX>(sum, ring, InputReader<Plan, Shape>(zero, place.lane), reader, place.turns,
                                             shape.reduction());

    constexpr uint32_t kPitch = Tiling::BLOCKS ? Tiling::OUTPUT_TILE : Plan::kPitch;
    constexpr uint32_t kSplit = Shape::kRows * kPitch;
    float* partials = Tiling::BLOCKS ? scratch.partials + uint64_t{blockIdx.x} * place.splits * kSplit
                                     : reinterpret_cast<float*>(arena + Tiling::WARPS_K * Plan::kTeam);
    keep_partials<Tiling>(partials + place.split * kSplit, kPitch, shape.batch(), sum, place.lane, place.member);
    if constexpr (Tiling::BLOCKS) {
        if (!scratch.last_to_arrive()) return;
    } else {
        __syncthreads();
    }
    const uint32_t splits = Tiling::BLOCKS ? place.splits : Tiling::WARPS_K;
    add_splits<Plan, Tiling>(partials, kPitch, kSplit, splits, outputs, residual, place.output);
}

}  // namespace linear
