// Y = X W' + R with W in E4M3 codes: W'[o, k] = RNE_bf16(decode(W[o, k]) * S[o / WB_N, k / WB_K]), one rounding, then
// the bf16 product of linear_block.cuh, where every bit of Y is defined.
//
//   linear_fp8_weight_<tile>[_multiply|_trick]    any extents and groups (WB_K a multiple of 16; it may exceed K)
//   linear_fp8_weight_<tile>_blocks               the same with the reduction split over gridDim.y blocks too
//   linear_fp8_weight_<b>x<o>x<k>                 one shape, row stride o, groups of 128 x 128
//
// Decoding is exact, NaN included: by the instruction of sm_89, below it and in `_multiply` by integer operations and a
// product with 2^120. `_trick` is the shorter bit trick that gives 238 of 256 codes and turns zero, subnormals and NaN
// into finite numbers from 2^-7 on.
//
// S is bf16 [ceil(OUTPUT / WB_N), ceil(REDUCTION / WB_K)], contiguous. W is shuffled beforehand so that a lane finds
// its codes of two B fragments in eight bytes. It is padded to P [16 ceil(OUTPUT / 16), 16 ceil(REDUCTION / 16)], and
// in every tile of 16 x 16 from (n, k) on, with g in 0..7, a in 0..3, j in 0..7:
//     P[n + 2g + a/2, k + 8(a%2) + j] = W[n + g + 8(j/4), k + 2a + j%2 + 8(j/2 % 2)]
// The padding may hold any code: beyond K the weight is 0, beyond OUTPUT nothing is written.
//
// Launch and alignment: as linear.cu says, for P too.

#include "linear_block.cuh"

#include <cuda_fp16.h>

namespace linear {

enum Decode : int { kExact, kMultiply, kTrick };

// Two bf16 products, each rounded once; the minus zero keeps the sign of a zero product.
inline __device__ uint32_t multiply_pair(uint32_t a, uint32_t b) {
    uint32_t product;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
#endif
    return product;
}

// Codes 0 and 1 of a word, or 2 and 3, each as sign and magnitude << 4 in a half word: as bf16, the value times 2^-120.
template <bool kUpper>
__device__ uint32_t spread_pair(uint32_t codes) {
    uint32_t spread;  // each code with eight copies of its sign above, which __byte_perm cannot ask for
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(spread) : "r"(codes), "n"(kUpper ? 0xb3a2 : 0x9180));
    return (spread << 4) & 0x87f087f0u;
}

// A magnitude of 0x7f is NaN, and has to become one before the product.
template <bool kUpper>
__device__ uint32_t decode_by_multiply(uint32_t codes) {
    const uint32_t bits = spread_pair<kUpper>(codes), nan = (bits + 0x00100010u) & 0x08000800u;
    return multiply_pair(bits | (nan * 15), 0x7b807b80u);  // 2^120
}

// The exponent rebiased by addition, which is wrong for codes without an implied one and for NaN.
template <bool kUpper>
__device__ uint32_t decode_by_trick(uint32_t codes) {
    return spread_pair<kUpper>(codes) + 0x3c003c00u;
}

// Exact as half, as float and as bf16.
inline __device__ uint32_t half_to_bfloat(uint32_t pair) {
    const float2 wide = __half22float2(reinterpret_cast<const __half2&>(pair));
    return pack(wide.x, wide.y);
}

// Four codes as two pairs of bf16.
template <Decode kDecode>
__device__ void decode_word(uint32_t codes, uint32_t& lower, uint32_t& upper) {
    if constexpr (kDecode == kTrick) {
        lower = decode_by_trick<false>(codes);
        upper = decode_by_trick<true>(codes);
        return;
    }
#if __CUDA_ARCH__ >= 890
    if constexpr (kDecode == kExact) {
        asm("{\n"
            " .reg .b16 low, high;\n"
            " mov.b32 {low, high}, %2;\n"
            " cvt.rn.f16x2.e4m3x2 %0, low;\n"
            " cvt.rn.f16x2.e4m3x2 %1, high;\n"
            "}"
            : "=r"(lower), "=r"(upper)
            : "r"(codes));
        lower = half_to_bfloat(lower);
        upper = half_to_bfloat(upper);
        return;
    }
#endif
    lower = decode_by_multiply<false>(codes);
    upper = decode_by_multiply<true>(codes);
}

inline __device__ void load_codes(uint32_t (&d)[2], uint32_t address) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(d[0]), "=r"(d[1]) : "r"(address) : "memory");
}

inline __device__ uint32_t twice(uint32_t half) { return half | (half << 16); }

// Keeps of a pair the elements below `left`.
inline __device__ uint32_t first_elements(uint32_t pair, uint32_t first, uint32_t left) {
    return first >= left ? 0 : first + 1 >= left ? pair & 0xffffu : pair;
}

// Groups of 0 are given at run time.
template <class T, int WB_K, int WB_N, Decode kDecode>
struct Fp8Weights {
    static_assert((WB_K != 0) == (WB_N != 0) && WB_K % int{kMmaStep} == 0, "a step of the MMA has one scale a column");
    enum : uint32_t { kBytes = 1 };
    const uint8_t* w;
    const T* scales;
    uint32_t given_wb_k, given_wb_n;

    template <class Shape_>
    __device__ Rows rows(const Shape_& shape, uint32_t output) const {
        const uint32_t pitch = (shape.reduction() + 15) / 16 * 16, all = (shape.output() + 15) / 16 * 16;
        const uint64_t address = global_address(w);
        return {address + uint64_t{output} * pitch, pitch, all - output, pitch, access_width(address, pitch)};
    }

    // The scales of a tile are in registers. Where all columns of a block share a group, lane l holds group l of the
    // whole row: asked for before the first tile, because a load waits for the copies that were asked for before it.
    template <class Plan_>
    struct Reader {
        using Shape = typename Plan_::Shape;
        using Tile = typename Plan_::Tiling;
        enum : bool { kOneGroup = WB_N != 0 && WB_N % Tile::OUTPUT_TILE == 0 && WB_K % Tile::REDUCTION_TILE == 0 };
        enum : uint32_t {
            kChunks = Plan_::kWRow / kChunk,
            kSteps = Tile::REDUCTION_TILE / kMmaStep,
            kColumns = Tile::kColumns / 8,  // of a lane: lane / 4 in every eight
        };
        static_assert(!kOneGroup || Shape::kReduction <= kWarp * WB_K, "a lane for every group");
        const uint16_t* scales_of[kOneGroup ? 1 : kColumns];  // a column: one a group of K
        uint32_t wb_k, reduction, lane, lane_offset;
        uint16_t group_of_lane, next[kSteps][kColumns];
        uint32_t scale[kOneGroup ? 1 : kSteps][kOneGroup ? 1 : kColumns];  // twice, for a pair

        __device__ Reader(const Fp8Weights& weights, const Shape& shape, const WorkRange<Plan_>& range)
            : wb_k(WB_K ? WB_K : weights.given_wb_k), reduction(shape.reduction()), lane(range.lane),
              lane_offset(chunk_offset<kChunks>(range.member * Tile::kColumns + range.lane / 2, 0) +
                          range.lane % 2 * 8) {
            const uint32_t wb_n = WB_N ? WB_N : weights.given_wb_n, pitch = (reduction + wb_k - 1) / wb_k;
            const auto* scales = reinterpret_cast<const uint16_t*>(weights.scales);
            if constexpr (kOneGroup) {
                group_of_lane = __ldg(scales + uint64_t{range.output / wb_n} * pitch + min(range.lane, pitch - 1));
            } else {
#pragma unroll
                for (uint32_t i = 0; i < kColumns; ++i) {
                    const uint32_t column = range.output + range.member * Tile::kColumns + range.lane / 4 + 8 * i;
                    scales_of[i] = scales + uint64_t{min(column, shape.output() - 1) / wb_n} * pitch;
                }
            }
        }
        // Asks for the scales of the tile at k; beyond K, for the last ones, which nobody uses.
        __device__ void fetch(uint32_t k) {
            if constexpr (!kOneGroup) {
#pragma unroll
                for (uint32_t step = 0; step < kSteps; ++step) {
                    const uint32_t place = min(k + step * kMmaStep, reduction - 1) / wb_k;
#pragma unroll
                    for (uint32_t i = 0; i < kColumns; ++i) next[step][i] = __ldg(scales_of[i] + place);
                }
            }
        }
        // Takes the scales of the tile at k, and asks for those of the tile after it.
        __device__ void begin_tile(uint32_t k) {
            if constexpr (kOneGroup) {
                scale[0][0] = twice(__shfl_sync(0xffffffffu, uint32_t{group_of_lane}, k / wb_k));
            } else {
#pragma unroll
                for (uint32_t step = 0; step < kSteps; ++step) {
#pragma unroll
                    for (uint32_t i = 0; i < kColumns; ++i) scale[step][i] = twice(next[step][i]);
                }
                fetch(k + Tile::REDUCTION_TILE);
            }
        }
        // Lane l holds columns l / 4 and l / 4 + 8 at k = 2a, 2a + 1, 2a + 8, 2a + 9 of the step, a = l % 4.
        __device__ void load(uint32_t (&b)[4], uint32_t tile, uint32_t step, uint32_t columns, uint32_t left) const {
            uint32_t codes[2];
            load_codes(codes, tile + columns * (kChunks * kChunk) + (lane_offset ^ (step * kChunk)));
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i) {
                const uint32_t of_column = scale[kOneGroup ? 0 : step][kOneGroup ? 0 : columns / 8 + i];
                decode_word<kDecode>(codes[i], b[2 * i], b[2 * i + 1]);
                b[2 * i] = multiply_pair(b[2 * i], of_column);
                b[2 * i + 1] = multiply_pair(b[2 * i + 1], of_column);
            }
            if constexpr (!Shape::kConstant || Shape::kReduction % kMmaStep != 0) {
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) b[i] = first_elements(b[i], lane % 4 * 2 + i % 2 * 8, left);
            }
        }
    };
};

using AnyShape = Shape<__nv_bfloat16, 0, 0, 0, 0>;
template <Decode kDecode>
using AnyGroup = Fp8Weights<__nv_bfloat16, 0, 0, kDecode>;

#define GIVEN                                                                                                          \
    const __nv_bfloat16 *x, const uint8_t *w, const __nv_bfloat16 *scales, const __nv_bfloat16 *r, __nv_bfloat16 *y,   \
        uint32_t batch, uint32_t output, uint32_t reduction, uint32_t o_stride, uint32_t wb_k, uint32_t wb_n

#define LINEAR(name, DECODE, BYTES, STAGES, ...)                                                                       \
    extern "C" __global__ void __launch_bounds__(Tiling<__VA_ARGS__>::kThreads) linear_fp8_weight_##name(GIVEN) {      \
        using Entry = Plan<AnyShape, AnyGroup<DECODE>, Tiling<__VA_ARGS__>, STAGES>;                                   \
        static_assert(Entry::kShared == BYTES, "a launch asks for the bytes of the table");                            \
        multiply_block<Entry>(x, {w, scales, wb_k, wb_n}, {r, y, {batch, output, reduction, o_stride}}, {});           \
    }

#define LINEAR_BLOCKS(name, DECODE, BYTES, STAGES, ...)                                                                \
    extern "C" __global__ void __launch_bounds__(Tiling<__VA_ARGS__, true>::kThreads)                                  \
        linear_fp8_weight_##name(GIVEN, float* partials, uint32_t* arrivals) {                                         \
        using Entry = Plan<AnyShape, AnyGroup<DECODE>, Tiling<__VA_ARGS__, true>, STAGES>;                             \
        static_assert(Entry::kShared == BYTES, "a launch asks for the bytes of the table");                            \
        multiply_block<Entry>(x, {w, scales, wb_k, wb_n}, {r, y, {batch, output, reduction, o_stride}},                \
                              {partials, arrivals});                                                                   \
    }

#define LINEAR_SHAPE(BATCH, OUTPUT, REDUCTION, WB_K, WB_N, DECODE, BYTES, STAGES, ...)                                 \
    extern "C" __global__ void __launch_bounds__(Tiling<__VA_ARGS__, false, true>::kThreads)                           \
        linear_fp8_weight_##BATCH##x##OUTPUT##x##REDUCTION(const __nv_bfloat16* x, const uint8_t* w,                   \
                                                           const __nv_bfloat16* scales, const __nv_bfloat16* r,        \
                                                           __nv_bfloat16* y) {                                         \
        using OneShape = Shape<__nv_bfloat16, BATCH, OUTPUT, REDUCTION, OUTPUT>;                                       \
        using OneGroup = Fp8Weights<__nv_bfloat16, WB_K, WB_N, DECODE>;                                                \
        using Entry = Plan<OneShape, OneGroup, Tiling<__VA_ARGS__, false, true>, STAGES>;                              \
        static_assert(Entry::kShared == BYTES, "a launch asks for the bytes of the table");                            \
        multiply_block<Entry>(x, {w, scales, WB_K, WB_N}, {r, y, {}}, {});                                             \
    }

// linear_bindings.py reads these lines.
//     name                              shared bytes  stages  OUTPUT_TILE  REDUCTION_TILE  WARPS_N  WARPS_K  Partial
LINEAR(n64_s1, kExact,                          41472,      3,          64,            128,       4,       1, float)
LINEAR(n32_s2_bf16, kExact,                     29696,      3,          32,             64,       2,       2, __nv_bfloat16)
LINEAR(n16_s4_bf16, kExact,                     43008,      3,          16,             64,       1,       4, __nv_bfloat16)
LINEAR(n16_s4_bf16_multiply, kMultiply,         43008,      3,          16,             64,       1,       4, __nv_bfloat16)
LINEAR(n16_s4_bf16_trick, kTrick,               43008,      3,          16,             64,       1,       4, __nv_bfloat16)
LINEAR(n32_s8, kExact,                         118784,      3,          32,             64,       1,       8, float)
LINEAR_BLOCKS(n64_blocks, kExact,               18432,      3,          64,             64,       4,       1, float)
LINEAR_BLOCKS(n32_s2_blocks_bf16, kExact,       24576,      3,          32,             64,       1,       2, __nv_bfloat16)
LINEAR_SHAPE(1, 4096, 4096, 128, 128, kExact,   79360,      2,          16,            128,       1,      16, float)
LINEAR_SHAPE(4, 4096, 4096, 128, 128, kExact,  108544,      2,          16,            128,       1,      16, float)
LINEAR_SHAPE(16, 4096, 4096, 128, 128, kExact, 151552,      2,          32,            128,       1,       8, float)

}  // namespace linear
