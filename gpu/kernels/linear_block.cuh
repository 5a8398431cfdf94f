// What linear.cu and linear_fp8_weight.cu share: a block multiplies up to 16 rows of X with a tile of rows of W.
//
// Read on in the order of a block: linear/pipeline.cuh (the main loop), mma.cuh (one stage), tile.cuh (one copy),
// epilogue.cuh (from sums to Y); ptx.cuh has the instructions.
//
// The picture: WARPS_K teams of WARPS_N warps. A team owns one range of the reduction and a ring of kStages stages
// in shared memory that no other team touches, so with teams of one warp the main loop has no barrier of the block; the
// warps of a larger team share its tile out by columns.
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
//
// A Weights type says how W lies in memory and becomes B fragments. It offers
//   kBytes                                     bytes of an element of W as it lies in memory
//   rows(shape, output)                        the block's rows of W as linear::Rows, from row `output` on
//   Reader<Plan>(weights, shape, range)        what a lane keeps, `range` being its linear::WorkRange
//   reader.fetch(k)                            called once, before the first copy: asks for what the tile at k needs
//   reader.begin_tile(k)                       called when a tile has come; beyond K where other teams have more tiles
//   reader.load(b, tile, step, columns, left)  step `step` of columns .. columns + 15: b[0], b[1] hold the lower eight,
//                                              b[2], b[3] the upper, with +0 for elements of K from `left` on

#pragma once

#include <cuda/std/cstdint>
#include <cuda/std/type_traits>
#include <cuda_bf16.h>

#include "linear/epilogue.cuh"
#include "linear/pipeline.cuh"

#if __CUDA_FTZ  // NVRTC says so; nvcc has no such macro
#error "compiled with -ftz=true or --use_fast_math: subnormals would be flushed"
#endif

// A template parameter ends in an underscore: Plan_ is some linear::Plan<...>.
namespace linear {

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

// What the constants alone decide: how shared memory is shared out, in bytes where nothing else is said.
template <class Shape_, class Weights_, class Tiling_, int STAGES>
struct Plan {
    static_assert(STAGES >= 2, "one stage is read while another fills");
    using Shape = Shape_;
    using Weights = Weights_;
    using Tiling = Tiling_;
    enum : uint32_t {
        kStages = STAGES,
        kXRow = Tiling::REDUCTION_TILE * sizeof(typename Shape::T),
        kWRow = Tiling::REDUCTION_TILE * Weights::kBytes,
        kXTile = Shape::kRows * kXRow,
        kStage = kXTile + Tiling::OUTPUT_TILE * kWRow,
        kZero = Shape::kRows == kMmaRows ? 0 : kXRow,
        kTeam = kZero + kStages * kStage,
        // Partial sums: floats from row to row and from split to split. In shared memory a row is 8 or 24 more than a
        // multiple of the 32 banks: eight floats each of four rows, which half a warp writes, lie in different ones.
        kPitch = Tiling::OUTPUT_TILE + (Tiling::BLOCKS ? 0 : 8),
        kSplit = Shape::kRows * kPitch,
        kPartials = Tiling::BLOCKS ? 0 : Tiling::WARPS_K * kSplit * sizeof(float),
        kShared = Tiling::WARPS_K * kTeam + kPartials,  // what a launch asks for
        kPairs = (Shape::kRows + 3) / 4 * 4 * Tiling::OUTPUT_TILE / 2,
        kPairsEach = (kPairs + Tiling::kThreads - 1) / Tiling::kThreads,  // pairs of columns a thread writes
    };
    // No tile is cut off by an edge of X or W.
    enum : bool {
        kWhole = Shape::kConstant && Shape::kOutput % Tiling::OUTPUT_TILE == 0 &&
                 Shape::kReduction % Tiling::REDUCTION_TILE == 0
    };
};

// X [batch, reduction], contiguous, with the block's columns of W; blockDim.x is Tiling::kThreads, and Plan::kShared
// bytes of dynamic shared memory are there.
template <class Plan_>
__device__ void multiply_block(const typename Plan_::Shape::T* x, const typename Plan_::Weights& weights,
                               const Outputs<typename Plan_::Shape>& outputs, Scratch scratch) {
    using Shape = typename Plan_::Shape;
    using Tile = typename Plan_::Tiling;
    extern __shared__ __align__(kBanks) uint8_t arena[];
    const Shape& shape = outputs.shape;
    const WorkRange<Plan_> range(shape);
    const uint32_t zero = static_cast<uint32_t>(__cvta_generic_to_shared(arena)) + range.team * Plan_::kTeam;
    const uint32_t thread = threadIdx.x % Tile::kTeamThreads;

    // Ask for everything that the team begins with.
    typename Plan_::Weights::template Reader<Plan_> reader(weights, shape, range);
    reader.fetch(range.begin);
    const uint32_t bytes = shape.reduction() * sizeof(typename Shape::T);
    const Rows rows{global_address(x), bytes, shape.batch(), bytes, access_width(global_address(x), bytes)};
    const Ring<Plan_> ring{
        rows, weights.rows(shape, range.output), zero + Plan_::kZero, thread, range.begin, range.tiles};
    if constexpr (Tile::OVERLAP) ask_ahead(ring);
    clear_zero_row<Plan_>(zero, thread);
    Residual<Plan_> residual = {};
    if constexpr (Shape::kConstant) ask_for_residual<Plan_>(residual, outputs, range.output);

    // Multiply its range of K.
    Sums<Plan_> sum = {};
    const InputReader<Plan_> inputs(zero, range.lane);
    multiply_range<Plan_>(sum, ring, inputs, reader, range.k_iters, shape.reduction());

    // Add the splits: in this block, or in the last block of the column.
    float* partials = Tile::BLOCKS ? scratch.partials + uint64_t{blockIdx.x} * range.splits * Plan_::kSplit
                                   : reinterpret_cast<float*>(arena + Tile::WARPS_K * Plan_::kTeam);
    keep_partials<Plan_>(partials + range.split * Plan_::kSplit, shape.batch(), sum, range.lane, range.member);
    if constexpr (Tile::BLOCKS) {
        if (!scratch.last_to_arrive()) return;
    } else {
        __syncthreads();
    }
    const uint32_t splits = Tile::BLOCKS ? range.splits : Tile::WARPS_K;
    add_splits<Plan_>(partials, splits, outputs, residual, range.output);
}

}  // namespace linear
