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
// Launch: grid (ceil(output / OUTPUT_TILE), splits over blocks or 1), block 32 * WARPS_N * WARPS_K, and the dynamic
// shared memory of linear::Plan. The entries of one shape need X and W at multiples of 16 bytes and R and Y of 4, and
// may overlap the kernel before (linear::Tiling); the others take any pointer to an element. `partials` and `arrivals`:
// linear::Scratch.

#include "linear_block.cuh"

namespace linear {

// W in bf16: B fragments come by ldmatrix, two of 8 columns at a time.
template <class T>
struct PlainWeights {
    enum : uint32_t { kBytes = sizeof(T) };
    const T* w;

    template <class Shape>
    __device__ Rows rows(const Shape& shape, uint32_t first) const {
        const uint64_t pitch = uint64_t{shape.reduction()} * sizeof(T);
        const uint64_t address = global_address(w);
        const uint32_t width = access_width(address, pitch);
        return {address + first * pitch, pitch, shape.output() - first, shape.reduction() * uint32_t{sizeof(T)}, width};
    }

    // Lane l names column l % 8 of the eight l / 16, and the half l / 8 % 2 of the step.
    template <class Shape, class Tiling>
    struct Reader {
        uint32_t lane_offset;

        __device__ Reader(const PlainWeights&, const Shape&, uint32_t lane, uint32_t, uint32_t member)
            : lane_offset(chunk_offset<kChunks>(member * Tiling::kColumns + lane % 8 + lane / 16 * 8, lane / 8 % 2)) {}
        __device__ void fetch(uint32_t) {}
        __device__ void turn(uint32_t) {}
        __device__ void load(uint32_t (&b)[4], uint32_t tile, uint32_t step, uint32_t columns, uint32_t) const {
            load_matrices(b, tile + columns * (kChunks * kChunk) + (lane_offset ^ (step * 2 * kChunk)));
        }
        enum : uint32_t { kChunks = Tiling::REDUCTION_TILE * sizeof(T) / kChunk };
    };
};

#define LINEAR(name, K_PIPE_MAX, ...)                                                                                  \
    extern "C" __global__ void __launch_bounds__(Tiling<__VA_ARGS__>::kThreads)                                        \
        linear_##name(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* r, __nv_bfloat16* y,        \
                      uint32_t batch, uint32_t output, uint32_t reduction, uint32_t o_stride) {                        \
        using Any = Shape<__nv_bfloat16, 0, 0, 0, 0>;                                                                  \
        multiply_block<Any, PlainWeights<__nv_bfloat16>, Tiling<__VA_ARGS__>, K_PIPE_MAX>(                             \
            x, {w}, {r, y, {batch, output, reduction, o_stride}}, {});                                                 \
    }

#define LINEAR_BLOCKS(name, K_PIPE_MAX, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(Tiling<__VA_ARGS__, true>::kThreads)                                  \
        linear_##name(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* r, __nv_bfloat16* y,        \
                      uint32_t batch, uint32_t output, uint32_t reduction, uint32_t o_stride, float* partials,         \
                      uint32_t* arrivals) {                                                                            \
        using Any = Shape<__nv_bfloat16, 0, 0, 0, 0>;                                                                  \
        multiply_block<Any, PlainWeights<__nv_bfloat16>, Tiling<__VA_ARGS__, true>, K_PIPE_MAX>(                       \
            x, {w}, {r, y, {batch, output, reduction, o_stride}}, {partials, arrivals});                               \
    }

#define LINEAR_SHAPE(BATCH, OUTPUT, REDUCTION, K_PIPE_MAX, ...)                                                        \
    extern "C" __global__ void __launch_bounds__(Tiling<__VA_ARGS__, false, true>::kThreads)                           \
        linear_##BATCH##x##OUTPUT##x##REDUCTION(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* r,\
                                                __nv_bfloat16* y) {                                                    \
        using One = Shape<__nv_bfloat16, BATCH, OUTPUT, REDUCTION, OUTPUT>;                                            \
        using Tile = Tiling<__VA_ARGS__, false, true>;                                                                 \
        multiply_block<One, PlainWeights<__nv_bfloat16>, Tile, K_PIPE_MAX>(x, {w}, {r, y, {}}, {});                    \
    }

//     name                  stages  OUTPUT_TILE  REDUCTION_TILE  WARPS_N  WARPS_K  Partial
LINEAR(n64_s1,                    3,          64,            128,       4,       1, float)
LINEAR(n32_s2_bf16,               3,          32,             64,       2,       2, __nv_bfloat16)
LINEAR(n16_s4_bf16,               3,          16,             64,       1,       4, __nv_bfloat16)
LINEAR(n32_s8,                    3,          32,             64,       1,       8, float)
LINEAR_BLOCKS(n64_blocks,         3,          64,             64,       4,       1, float)
LINEAR_BLOCKS(n32_s2_blocks_bf16, 3,          32,             64,       1,       2, __nv_bfloat16)
LINEAR_SHAPE(1, 4096, 4096,       5,          32,             64,       1,       8, float)
LINEAR_SHAPE(4, 4096, 4096,       5,          32,             64,       1,       8, float)
LINEAR_SHAPE(16, 4096, 4096,      4,          32,             64,       1,       8, float)

}  // namespace linear
