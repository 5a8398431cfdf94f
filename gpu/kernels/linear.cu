// Y = X W + R in bf16: Y[b, o] = sum over k of X[b, k] W[o, k] + R[b, o], accumulated in float32 by the tensor cores.
//
//   linear_<tile>            any batch up to 16, any output, reduction and row stride of Y and R
//   linear_<tile>_blocks     the same with the reduction split over gridDim.y blocks too
//   linear_<b>x<o>x<k>       one shape, row stride o
//
// X [BATCH, REDUCTION] and W [OUTPUT, REDUCTION] are contiguous, Y and R have rows O_STRIDE elements apart; R = nullptr
// adds nothing. <tile> is n<OUTPUT_TILE>_s<splits>, and _bf16 where a split's sum is rounded to bf16 before the splits
// are added. What every bit of Y is: linear_block.cuh.
//
// Launch: grid (ceil(output / OUTPUT_TILE), splits over blocks or 1), block 32 * WARPS_N * WARPS_K, and as much dynamic
// shared memory as the table at the end says. The entries of one shape need X and W at multiples of 16 bytes, R and Y
// of 4, and may overlap the kernel before (linear::Tiling); the others take any pointer to an element. `partials` and
// `arrivals`: linear::Scratch.

#include "linear_block.cuh"

namespace linear {

// W in bf16: B fragments come by ldmatrix, two of 8 columns at a time.
template <class T>
struct PlainWeights {
    enum : uint32_t { kBytes = sizeof(T) };
    const T* w;

    template <class Shape_>
    __device__ Rows rows(const Shape_& shape, uint32_t output) const {
        const uint64_t pitch = uint64_t{shape.reduction()} * sizeof(T);
        const uint64_t address = global_address(w);
        const uint32_t width = access_width(address, pitch), bytes = shape.reduction() * uint32_t{sizeof(T)};
        return {address + output * pitch, pitch, shape.output() - output, bytes, width};
    }

    // Lane l names column l % 8 of the eight l / 16, and the half l / 8 % 2 of the step.
    template <class Plan_>
    struct Reader {
        enum : uint32_t { kChunks = Plan_::kWRow / kChunk };
        uint32_t lane_offset;

        __device__ Reader(const PlainWeights&, const typename Plan_::Shape&, const WorkRange<Plan_>& range) {
            const uint32_t lane = range.lane;
            const uint32_t column = range.member * Plan_::Tiling::kColumns + lane % 8 + lane / 16 * 8;
            lane_offset = chunk_offset<kChunks>(column, lane / 8 % 2);
        }
        __device__ void fetch(uint32_t) {}
        __device__ void begin_tile(uint32_t) {}
        __device__ void load(uint32_t (&b)[4], uint32_t tile, uint32_t step, uint32_t columns, uint32_t) const {
            load_matrices(b, tile + columns * (kChunks * kChunk) + (lane_offset ^ (step * 2 * kChunk)));
        }
    };
};

using Weights = PlainWeights<__nv_bfloat16>;
using AnyShape = Shape<__nv_bfloat16, 0, 0, 0, 0>;

#define LINEAR(name, BYTES, STAGES, ...)                                                                               \
    extern "C" __global__ void __launch_bounds__(Tiling<__VA_ARGS__>::kThreads)                                        \
        linear_##name(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* r, __nv_bfloat16* y,        \
                      uint32_t batch, uint32_t output, uint32_t reduction, uint32_t o_stride) {                        \
        using Entry = Plan<AnyShape, Weights, Tiling<__VA_ARGS__>, STAGES>;                                            \
        static_assert(Entry::kShared == BYTES, "a launch asks for the bytes of the table");                            \
        multiply_block<Entry>(x, {w}, {r, y, {batch, output, reduction, o_stride}}, {});                               \
    }

#define LINEAR_BLOCKS(name, BYTES, STAGES, ...)                                                                        \
    extern "C" __global__ void __launch_bounds__(Tiling<__VA_ARGS__, true>::kThreads)                                  \
        linear_##name(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* r, __nv_bfloat16* y,        \
                      uint32_t batch, uint32_t output, uint32_t reduction, uint32_t o_stride, float* partials,         \
                      uint32_t* arrivals) {                                                                            \
        using Entry = Plan<AnyShape, Weights, Tiling<__VA_ARGS__, true>, STAGES>;                                      \
        static_assert(Entry::kShared == BYTES, "a launch asks for the bytes of the table");                            \
        multiply_block<Entry>(x, {w}, {r, y, {batch, output, reduction, o_stride}}, {partials, arrivals});             \
    }

#define LINEAR_SHAPE(BATCH, OUTPUT, REDUCTION, BYTES, STAGES, ...)                                                     \
    extern "C" __global__ void __launch_bounds__(Tiling<__VA_ARGS__, false, true>::kThreads)                           \
        linear_##BATCH##x##OUTPUT##x##REDUCTION(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* r,\
                                                __nv_bfloat16* y) {                                                    \
        using OneShape = Shape<__nv_bfloat16, BATCH, OUTPUT, REDUCTION, OUTPUT>;                                       \
        using Entry = Plan<OneShape, Weights, Tiling<__VA_ARGS__, false, true>, STAGES>;                               \
        static_assert(Entry::kShared == BYTES, "a launch asks for the bytes of the table");                            \
        multiply_block<Entry>(x, {w}, {r, y, {}}, {});                                                                 \
    }

// linear_bindings.py reads these lines.
//     name                 shared bytes  stages  OUTPUT_TILE  REDUCTION_TILE  WARPS_N  WARPS_K  Partial
LINEAR(n64_s1,                     66048,      3,          64,            128,       4,       1, float)
LINEAR(n32_s2_bf16,                41984,      3,          32,             64,       2,       2, __nv_bfloat16)
LINEAR(n16_s4_bf16,                55296,      3,          16,             64,       1,       4, __nv_bfloat16)
LINEAR(n32_s8,                    167936,      3,          32,             64,       1,       8, float)
LINEAR_BLOCKS(n64_blocks,          30720,      3,          64,             64,       4,       1, float)
LINEAR_BLOCKS(n32_s2_blocks_bf16,  36864,      3,          32,             64,       1,       2, __nv_bfloat16)
LINEAR_SHAPE(1, 4096, 4096,       171264,      5,          32,             64,       1,       8, float)
LINEAR_SHAPE(4, 4096, 4096,       190464,      5,          32,             64,       1,       8, float)
LINEAR_SHAPE(16, 4096, 4096,      217088,      4,          32,             64,       1,       8, float)

}  // namespace linear
