// Block scaling in one launch: x is read once, codes and the scales of blocks are written, the scales as tensor cores read them.
// Targets: sm_90a
//
//   mxfp8_quantize_<in>, mxfp8_e5m2_quantize_<in>, mxfp4_quantize_<in>     32 elements and an E8M0 scale
//   nvfp4_quantize_<in>                                                   16 elements of E2M1 and a UE4M3 scale; a factor S
//
//   code of the scale: of max |x| of the block, by the recipe            q = satfinite(fl(x * factor of the code))
//
// in: bf16 | f16 | f32. Every operation is an intrinsic that rounds to nearest even, so neither -fmad nor -prec-div moves a
// bit; -ftz=true would.
//
// x is m rows of k elements, x_pitch elements apart; q has q_pitch bytes a row, two E2M1 a byte, the first in the low half.
// k is any: a block that k cuts is quantised as if zeros filled it, and the high half of the last byte of an odd k is what a
// zero becomes. m * k is below 2^40. *tensor_scale is S = 2688 / amax of the tensor, as Transformer Engine keeps it.
// recipe of MX: 0 floor, 1 even, 2 ceil, 3 rceil, 4 te, 5 triton, 6 aiter, 7 deepgemm; of NVFP4: 0 te, 1 te_cpp, 2 te_cpp_2d.
//
// Scale (row, block) lies where tcgen05 and cuBLASLt read it, with rows padded to 128 and blocks to 4; all pads are zeros:
//
//     byte = (row / 128 * ceil(blocks / 4) + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4
//
// Launch: one-dimensional, any grid of at least one block of a multiple of 32 threads up to 1024; warps are independent.
// Pointers need the alignment of their elements, scales 4 bytes; 16-byte accesses are used where all rows allow them.
//
// The picture: 512 bytes of scales are 128 rows by 4 blocks. A lane has four vectors of 16 bytes in flight, of rows r, r + 32,
// r + 64, r + 96: their scales are 16 neighbouring bytes. The lanes of a block find its largest by shuffles, lane i computes
// the scale of vector i for all, and one lane has the four codes of a row as a word.
//
//     bf16, 32: 4 lanes a block, 16 a row, 2 rows a warp, 16 warps a tile         bf16, 16: 2, 8, 4 rows, 8 warps
//     f32,  32: 8 lanes a block, 32 a row, 1 row a warp, 32 warps a tile          f32,  16: 4, 16, 2 rows, 16 warps

#include "quantize/vectors.cuh"

namespace block_scales {

using namespace vectors;

// Enumerators, because a constexpr variable may leave a .global of its own in the PTX.
enum : int { kTileRows = 128, kTileBlocks = 4, kTileBytes = 512 };
enum : int { kRowsApart = kTileRows / kVectors };
enum : uint32_t { kFloor, kEven, kCeil, kRceil, kTe, kTriton, kAiter, kDeepgemm };
enum : uint32_t { kKernel, kReference, kReference2d };  // NVFP4: te, te_cpp, te_cpp_2d
enum : uint32_t { kNanScale = 255, kLargestScale = 254, kInfinity = 0x7f800000u, kFraction = 0x007fffffu };
enum : uint32_t { kTwoToMinus127 = 0x00400000u, kOne = 0x3f800000u, kLargestFloat = 0x7f7fffffu };

// The largest of a vector among its numbers: a rare way, taken where a NaN would hide them.
template <class T>
__device__ uint32_t peak_of_numbers(uint4 v) {
    float x[Wide<T>::kPerVector];
    unpack_vector<T>(v, x);
    uint32_t peak = 0;
#pragma unroll
    for (int i = 0; i < Wide<T>::kPerVector; ++i) {
        const uint32_t magnitude = __float_as_uint(x[i]) & 0x7fffffffu;
        if (magnitude <= kInfinity) peak = max(peak, magnitude);
    }
    return peak;
}

// ---------------------------------------------------------------------------------------------------------------------
// Narrow elements: kBits, kMantissa, floor(log2 MAX), 1 / MAX, and the codes of four neighbours, the first in the low bits.

template <__nv_fp8_interpretation_t kKind>
__device__ uint32_t fp8_of_four(const float* x) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, kKind);
    const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE, kKind);
    return low | high << 16;
}

struct E4m3 {
    enum : int { kBits = 8, kMantissa = 3, kPower = 8 };
    static __device__ float largest() { return 448.0f; }
    static __device__ float reciprocal() { return 1.0f / 448.0f; }
    static __device__ uint32_t of_four(const float* x) { return fp8_of_four<__NV_E4M3>(x); }
};

struct E5m2 {
    enum : int { kBits = 8, kMantissa = 2, kPower = 15 };
    static __device__ float largest() { return 57344.0f; }
    static __device__ float reciprocal() { return 1.0f / 57344.0f; }
    static __device__ uint32_t of_four(const float* x) { return fp8_of_four<__NV_E5M2>(x); }
};

// E2M1 by one sum: beside 2^22 a float32 has steps of a half, as E2M1 has below 2, beside 2^23 of 1, beside 2^24 of 2; the low
// bits of the sum are the code. A NaN is +6: the minimum drops it, and a product that is NaN has no sign.
struct E2m1 {
    enum : int { kBits = 4, kMantissa = 1, kPower = 2 };
    static __device__ float largest() { return 6.0f; }
    static __device__ float reciprocal() { return 1.0f / 6.0f; }
    static __device__ uint32_t before(uint32_t codes, float x) {
        const float magnitude = fminf(fabsf(x), 6.0f);
        const float steps = magnitude < 2.0f ? 4194304.0f : magnitude < 4.0f ? 8388608.0f + 2.0f : 16777216.0f + 8.0f;
        const uint32_t sum = __float_as_uint(__fadd_rn(magnitude, steps));
        return __funnelshift_l(sum << 28 | (__float_as_uint(x) & 0x80000000u), codes, 4);
    }
    static __device__ uint32_t of_four(const float* x) {
        return before(before(before(before(0, x[3]), x[2]), x[1]), x[0]);
    }
};

template <class T, class Element>
__device__ Codes<Wide<T>::kPerVector * Element::kBits / 8> encode_vector(uint4 vector, float factor) {
    constexpr int kPerVector = Wide<T>::kPerVector;
    float x[kPerVector];
    unpack_vector<T>(vector, x);
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) x[i] = __fmul_rn(x[i], factor);
    Codes<kPerVector * Element::kBits / 8> codes = {};
#pragma unroll
    for (int i = 0; i < kPerVector; i += 4)
        codes.word[i * Element::kBits / 32] |= Element::of_four(x + i) << (i * Element::kBits % 32);
    return codes;
}

// ---------------------------------------------------------------------------------------------------------------------
// Scales of blocks.

struct Scale {
    uint32_t code;
    float factor;  // what the elements are multiplied by
};

// The code of E8M0: amax / MAX or amax / 2^floor(log2 MAX), as a power of two.
template <class Element_>
struct Mx {
    using Element = Element_;
    enum : int { kWidth = 32 };
    uint32_t recipe;

    __device__ bool ignores_nan() const { return recipe == kTe; }

    __device__ uint32_t code_of(uint32_t peak) const {
        const bool by_power = recipe <= kCeil, up = recipe >= kCeil, lifts = recipe >= kTriton;
        const bool unknown = peak > kInfinity;
        uint32_t bits = unknown ? 0u : peak;
        if (recipe == kDeepgemm) bits = max(bits, __float_as_uint(1e-4f));
        if (recipe == kEven) bits = min(bits + (1u << (22 - Element::kMantissa)), +kInfinity) & ~kFraction;
        const bool infinite = bits == kInfinity;
        if (recipe == kRceil || recipe == kTe)
            bits = __float_as_uint(__fmul_rn(__uint_as_float(bits), Element::reciprocal()));
        else if (!by_power)
            bits = __float_as_uint(__fdiv_rn(__uint_as_float(bits), Element::largest()));
        const bool raised = up && (bits & kFraction) != 0 && (lifts || bits > kTwoToMinus127);
        const int32_t power = static_cast<int32_t>(bits >> 23) + (raised ? 1 : 0) - (by_power ? Element::kPower : 0);
        const int32_t code = min(max(power, recipe == kDeepgemm ? 1 : 0), static_cast<int32_t>(kLargestScale));
        const bool never_nan = recipe == kRceil || recipe == kTe || recipe == kDeepgemm;
        if (infinite) return never_nan ? kLargestScale : kNanScale;
        if (unknown) return recipe == kTriton ? 0u : recipe == kDeepgemm ? kLargestScale : kNanScale;
        return static_cast<uint32_t>(code);
    }

    // 2^(127 - code), but for the codes that a recipe has otherwise.
    __device__ Scale scale_of(uint32_t peak) const {
        const uint32_t code = code_of(peak);
        uint32_t factor = (kLargestScale - code) << 23;
        if (code == kLargestScale) factor = kTwoToMinus127;
        if (code == kNanScale) factor = recipe == kTriton ? 0u : 0x7fffffffu;
        if (code == 0 && recipe == kTe) factor = kOne;
        if (code == 0 && recipe == kTriton) factor = 0;
        return {code, __uint_as_float(factor)};
    }
};

// A NaN stays one.
inline __device__ float at_most_largest(float x) { return x > __uint_as_float(kLargestFloat) ? __uint_as_float(kLargestFloat) : x; }

struct Nvfp4 {
    using Element = E2m1;
    enum : int { kWidth = 16 };
    uint32_t recipe;
    float tensor, inverse, sixth;  // S, fl(1 / S), fl(S * fl(1 / 6))

    __device__ Nvfp4(uint32_t recipe, float tensor)
        : recipe(recipe), tensor(tensor), inverse(__frcp_rn(tensor)), sixth(__fmul_rn(tensor, 1.0f / 6.0f)) {}

    __device__ bool ignores_nan() const { return true; }

    __device__ Scale scale_of(uint32_t peak_bits) const {
        const float peak = __uint_as_float(peak_bits);
        const float wanted = recipe == kReference2d ? __fmul_rn(__fdiv_rn(peak, 6.0f), tensor)
                                                    : at_most_largest(__fmul_rn(peak, sixth));
        const uint32_t code = __nv_cvt_float_to_fp8(wanted, __NV_SATFINITE, __NV_E4M3);
        const float scale = __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3)));
        float factor = recipe == kReference2d ? __fdiv_rn(tensor, scale)
                                              : at_most_largest(__frcp_rn(__fmul_rn(scale, inverse)));
        if (code == 0 && recipe != kKernel) factor = 0.0f;
        return {code, factor};
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// The pass.

template <class T, class Blocks>
__device__ void quantize(const T* __restrict__ x, uint64_t x_pitch, uint8_t* __restrict__ q, uint64_t q_pitch, uint32_t m,
                         uint32_t k, uint8_t* __restrict__ scales, const Blocks& blocks_by) {
    using Element = typename Blocks::Element;
    constexpr int kPerVector = Wide<T>::kPerVector, kLanes = Blocks::kWidth / kPerVector;  // lanes of a block
    constexpr int kRowLanes = kTileBlocks * kLanes, kRows = kWarp / kRowLanes, kParts = kRowsApart / kRows;
    constexpr int kMine = kLanes < kVectors ? kVectors / kLanes : 1;  // scales that a lane computes
    const uint32_t lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
    const uint32_t in_row = lane % kRowLanes, in_block = lane % kLanes, place = in_row / kLanes;
    const uint32_t blocks = ceil_div(k, Blocks::kWidth), spans = ceil_div(blocks, kTileBlocks);
    const uint32_t parts = ceil_div(m, kTileRows) * spans * kParts;
    const bool aligned = rows_are_aligned<kPerVector * Element::kBits / 8>(x, x_pitch, q, q_pitch);

    for (uint32_t part = blockIdx.x * warps + threadIdx.x / kWarp; part < parts; part += gridDim.x * warps) {
        const uint32_t tile = part / kParts, first_row = tile / spans * kTileRows, block = tile % spans * kTileBlocks + place;
        const uint32_t row_in_tile = part % kParts * kRows + lane / kRowLanes, row = first_row + row_in_tile;
        const uint32_t column = tile % spans * (kTileBlocks * Blocks::kWidth) + in_row * kPerVector;
        const bool whole =
            aligned && first_row + kTileRows <= m && (tile % spans + 1) * (kTileBlocks * Blocks::kWidth) <= k;

        uint4 loaded[kVectors];
        if (whole) {
#pragma unroll
            for (int u = 0; u < kVectors; ++u)
                loaded[u] = *reinterpret_cast<const uint4*>(x + (row + u * kRowsApart) * x_pitch + column);
        } else {
#pragma unroll
            for (int u = 0; u < kVectors; ++u) {
                const uint32_t at = row + u * kRowsApart;
                loaded[u] = load_part(x + at * x_pitch, column, at < m ? k : 0);
            }
        }

        // All lanes of a block know the peaks of its vectors; lane i computes the scale of vector i, for all.
        uint32_t peaks[kMine] = {};
#pragma unroll
        for (int u = 0; u < kVectors; ++u) {
            uint32_t peak = Wide<T>::peak_bits(loaded[u]);
            if (peak > kInfinity && blocks_by.ignores_nan()) peak = peak_of_numbers<T>(loaded[u]);
            peak = max_of_lanes<kLanes>(peak);
            if (in_block == u % kLanes) peaks[u / kLanes] = peak;
        }
        float factors[kMine];
        uint8_t* const tile_scales = scales + static_cast<uint64_t>(tile) * kTileBytes + row_in_tile * 16;
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
            const Scale scale = blocks_by.scale_of(peaks[i]);
            factors[i] = scale.factor;
            const uint32_t u = i * kLanes + in_block;
            const bool holds = block < blocks && row + u * kRowsApart < m;
            uint32_t word = holds ? scale.code << (8 * place) : 0;
            word |= __shfl_xor_sync(0xffffffffu, word, kLanes);
            word |= __shfl_xor_sync(0xffffffffu, word, 2 * kLanes);
            if (place == 0 && u < kVectors) *reinterpret_cast<uint32_t*>(tile_scales + u * 4) = word;
        }

#pragma unroll
        for (int u = 0; u < kVectors; ++u) {
            const uint32_t at = row + u * kRowsApart;
            const float factor = __shfl_sync(0xffffffffu, factors[u / kLanes], u % kLanes, kLanes);
            const auto codes = encode_vector<T, Element>(loaded[u], factor);
            if (whole)
                store_whole(q + at * q_pitch + column * Element::kBits / 8, codes);
            else
                store_part<8 / Element::kBits>(q + at * q_pitch, column, at < m ? k : 0, codes);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The entries. The namespace does not show in an extern "C" name.

#define MX(format, Element, wide, T)                                                                                   \
    extern "C" __global__ void __launch_bounds__(kMaxBlock)                                                            \
        format##_quantize_##wide(const T* x, uint64_t x_pitch, uint8_t* q, uint64_t q_pitch, uint32_t m, uint32_t k,   \
                                 uint8_t* scales, uint32_t recipe) {                                                   \
        quantize(x, x_pitch, q, q_pitch, m, k, scales, Mx<Element>{recipe});                                           \
    }

#define NVFP4(wide, T)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(kMaxBlock)                                                            \
        nvfp4_quantize_##wide(const T* x, uint64_t x_pitch, uint8_t* q, uint64_t q_pitch, uint32_t m, uint32_t k,      \
                              uint8_t* scales, uint32_t recipe, const float* tensor_scale) {                           \
        quantize(x, x_pitch, q, q_pitch, m, k, scales, Nvfp4(recipe, *tensor_scale));                                  \
    }

#define ENTRIES(wide, T)            \
    MX(mxfp8, E4m3, wide, T)        \
    MX(mxfp8_e5m2, E5m2, wide, T)   \
    MX(mxfp4, E2m1, wide, T)        \
    NVFP4(wide, T)

ENTRIES(bf16, __nv_bfloat16)
ENTRIES(f16, __half)
ENTRIES(f32, float)

}  // namespace block_scales
