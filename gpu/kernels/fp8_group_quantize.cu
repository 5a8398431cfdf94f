// FP8 quantisation by groups in one launch: x is read once, codes (E4M3) and a scale for each group are written.
//
//   fp8_group_quantize_<in>[_divide]   groups of 1 x 128: activations
//   fp8_block_quantize_<in>[_divide]   groups of 128 x 128: weights
//
//   amax = max |x|, at least eps; a NaN is the largest        s = fl(amax / 448), or that rounded up to a power of two
//   q = satfinite(fl(x * fl(1 / s))), _divide: satfinite(fl(x / s))
//
// in: bf16 | f16 | f32. Every operation is an intrinsic that rounds to nearest even, so neither -fmad nor -prec-div moves a
// bit; -ftz=true would.
//
// x is m rows of k elements, x_pitch elements apart, q the same with q_pitch; k below 2^31. Groups at the edge are smaller.
// scale_kind: 0 float32, 1 float32 power of two, 2 its E8M0 code. Scales are K-major, [rows][ceil(k / 128)], or with
// mn_major != 0, for groups of 1 x 128, as TMA reads them, rows padded to a multiple of 4 (pads are written as zeros):
//
//     float32  [ceil(k / 128)][padded rows]         E8M0  [ceil(k / 512)][padded rows] words of 4 codes, the first in the low byte
//
// Launch: one-dimensional, any grid of at least one block. Groups of 1 x 128: a block of a multiple of 32 up to 1024;
// of 128 x 128: kGroup * kGroup / elements of a thread, 512 threads, for f32 1024.
// Pointers need the alignment of their elements (E8M0 words 4 bytes); 16-byte accesses are used where all rows allow them.
//
// The picture: a row's 128 elements are 16 vectors of 16 bytes (f32: 32), one a lane, so that a part of a warp holds a group.
// A lane has four vectors in flight: those of four neighbouring groups, whose E8M0 codes are one word.
//
//     group 1x128    row r | group 4w  | group 4w + 1 | group 4w + 2 | group 4w + 3 |      lanes of row r, vector u of group 4w + u
//     block 128x128  rows r, r + 32, r + 64, r + 96 of one group                           vector u of row r + 32 u

#include <cuda/std/cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#if __CUDA_FTZ  // NVRTC says so; nvcc has no such macro
#error "compiled with -ftz=true or --use_fast_math: subnormals would be flushed"
#endif

namespace fp8_groups {

using cuda::std::int64_t;
using cuda::std::uint16_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;
using cuda::std::uintptr_t;

// Enumerators, because a constexpr variable may leave a .global of its own in the PTX.
enum : int { kMaxBlock = 1024, kWarp = 32, kGroup = 128, kVectors = 4 };
enum : uint32_t { kScaleFloat = 0, kScalePower = 1, kScaleCode = 2, kLargestCode = 254 };

// ---------------------------------------------------------------------------------------------------------------------
// Wide elements. Widening is exact.

// Wide<T> of an element T offers
//   kPerVector           elements in 16 bytes
//   bits(x)              the pattern of one element
//   peak_bits(vector)    the largest magnitude of a vector as a float32 pattern; a NaN is beyond infinity
//   unpack(word, x)      the elements of a 32-bit word, the first in its low bits
template <class T>
struct Wide;

template <>
struct Wide<float> {
    enum : int { kPerVector = 4 };

    static __device__ uint32_t bits(float x) { return __float_as_uint(x); }
    static __device__ uint32_t peak_bits(uint4 v) {
        const uint32_t low = max(v.x & 0x7fffffffu, v.y & 0x7fffffffu);
        const uint32_t high = max(v.z & 0x7fffffffu, v.w & 0x7fffffffu);
        return max(low, high);
    }
    static __device__ void unpack(uint32_t word, float* x) { x[0] = __uint_as_float(word); }
};

// Pairs of halves: __hmax2_nan of magnitudes is a NaN where either is one.
template <class Pair>
__device__ uint32_t pair_peak(uint4 v) {
    const uint32_t kept = 0x7fff7fffu, a = v.x & kept, b = v.y & kept, c = v.z & kept, d = v.w & kept;
    const Pair low = __hmax2_nan(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b));
    const Pair high = __hmax2_nan(reinterpret_cast<const Pair&>(c), reinterpret_cast<const Pair&>(d));
    const Pair peak = __hmax2_nan(low, high);
    return reinterpret_cast<const uint32_t&>(peak);
}

template <>
struct Wide<__nv_bfloat16> {
    enum : int { kPerVector = 8 };

    static __device__ uint32_t bits(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
    static __device__ uint32_t peak_bits(uint4 v) {
        const uint32_t pair = pair_peak<__nv_bfloat162>(v);
        return max(pair << 16, pair & 0xffff0000u);
    }
    static __device__ void unpack(uint32_t word, float* x) {
        x[0] = __uint_as_float(word << 16);
        x[1] = __uint_as_float(word & 0xffff0000u);
    }
};

template <>
struct Wide<__half> {
    enum : int { kPerVector = 8 };

    static __device__ uint32_t bits(__half x) { return __half_as_ushort(x); }
    static __device__ uint32_t peak_bits(uint4 v) {
        const uint32_t pair = pair_peak<__half2>(v);
        const float2 both = __half22float2(reinterpret_cast<const __half2&>(pair));
        return max(__float_as_uint(both.x), __float_as_uint(both.y));
    }
    static __device__ void unpack(uint32_t word, float* x) {
        const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
        x[0] = pair.x;
        x[1] = pair.y;
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// Vectors of 16 bytes: whole, or element by element where a row ends or is not aligned.

template <class T>
__device__ uint4 load_part(const T* row, uint32_t column, uint32_t k) {
    constexpr int kPerVector = Wide<T>::kPerVector, kPerWord = kPerVector / 4;
    uint32_t word[4] = {};
#pragma unroll
    for (int i = 0; i < kPerVector; ++i)
        if (column + i < k) word[i / kPerWord] |= Wide<T>::bits(row[column + i]) << (32 / kPerWord * (i % kPerWord));
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// The codes of one vector. The first element of a pair is the low byte.
template <int kCodes>
struct Codes {
    uint32_t word[kCodes / 4];
};

inline __device__ void store_whole(uint8_t* to, const Codes<8>& codes) {
    *reinterpret_cast<uint2*>(to) = make_uint2(codes.word[0], codes.word[1]);
}
inline __device__ void store_whole(uint8_t* to, const Codes<4>& codes) {
    *reinterpret_cast<uint32_t*>(to) = codes.word[0];
}

template <int kCodes>
__device__ void store_part(uint8_t* row, uint32_t column, uint32_t k, const Codes<kCodes>& codes) {
#pragma unroll
    for (int i = 0; i < kCodes; ++i)
        if (column + i < k) row[column + i] = static_cast<uint8_t>(codes.word[i / 4] >> (8 * (i % 4)));
}

// ---------------------------------------------------------------------------------------------------------------------
// A group's scale, and its elements.

struct Scale {
    float factor;   // what the codes are multiplied by
    uint32_t bits;  // as it is stored: a float32 pattern, or a code
};

inline __device__ Scale scale_of(uint32_t peak_bits, float eps, uint32_t kind) {
    const float peak = __uint_as_float(max(peak_bits, __float_as_uint(eps)));  // non-negative floats order as their bits
    const uint32_t quotient = __float_as_uint(__fdiv_rn(peak, 448.0f));
    if (kind == kScaleFloat) return {__uint_as_float(quotient), quotient};
    const uint32_t above = (quotient >> 23) + ((quotient & 0x007fffffu) != 0 ? 1u : 0u);
    const uint32_t code = min(max(above, 1u), static_cast<uint32_t>(kLargestCode));
    return {__uint_as_float(code << 23), kind == kScalePower ? code << 23 : code};
}

// What the elements are multiplied by, or divided by.
template <bool kDivides>
__device__ float scaler_of(float factor) {
    return kDivides ? factor : __frcp_rn(factor);
}

template <bool kDivides>
__device__ float scaled(float x, float scaler) {
    return kDivides ? __fdiv_rn(x, scaler) : __fmul_rn(x, scaler);
}

template <class T, bool kDivides>
__device__ Codes<Wide<T>::kPerVector> encode_vector(uint4 vector, float scaler) {
    constexpr int kPerVector = Wide<T>::kPerVector, kPerWord = kPerVector / 4;
    float x[kPerVector];
    Wide<T>::unpack(vector.x, x);
    Wide<T>::unpack(vector.y, x + kPerWord);
    Wide<T>::unpack(vector.z, x + 2 * kPerWord);
    Wide<T>::unpack(vector.w, x + 3 * kPerWord);
    Codes<kPerVector> codes;
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) x[i] = scaled<kDivides>(x[i], scaler);
#pragma unroll
    for (int i = 0; i < kPerVector; i += 4) {
        const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[i], x[i + 1]), __NV_SATFINITE, __NV_E4M3);
        const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[i + 2], x[i + 3]), __NV_SATFINITE, __NV_E4M3);
        codes.word[i / 4] = low | high << 16;
    }
    return codes;
}

// The largest of `kLanes` neighbouring lanes, known to all of them.
template <int kLanes>
__device__ uint32_t max_of_lanes(uint32_t value) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
        value = max(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

template <class T>
__device__ bool rows_are_aligned(const T* x, uint64_t x_pitch, const uint8_t* q, uint64_t q_pitch) {
    const uint64_t wide = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(x)) | x_pitch * sizeof(T);
    const uint64_t narrow = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(q)) | q_pitch;
    return wide % 16 == 0 && narrow % Wide<T>::kPerVector == 0;
}

inline __device__ uint32_t ceil_div(uint32_t a, uint32_t b) { return a / b + (a % b != 0 ? 1u : 0u); }

// ---------------------------------------------------------------------------------------------------------------------
// Groups of 1 x 128.

struct GroupScales {
    void* at;
    uint32_t kind, mn_major, rows, padded_rows, blocks;
};

// The scale of (row, block) by one lane: `block` is 4 * word + place. Pads of the MN-major forms are zeros.
inline __device__ void store_scale(const GroupScales& to, uint32_t row, uint32_t block, uint32_t bits) {
    const bool is_code = to.kind == kScaleCode;
    const bool holds = row < to.rows && block < to.blocks;
    if (to.mn_major != 0 ? row >= to.padded_rows || (!is_code && block >= to.blocks) : !holds) return;
    uint64_t index = static_cast<uint64_t>(row) * to.blocks + block;
    if (to.mn_major != 0)
        index = is_code ? (static_cast<uint64_t>(block / 4) * to.padded_rows + row) * 4 + block % 4
                        : static_cast<uint64_t>(block) * to.padded_rows + row;
    const uint32_t value = holds ? bits : 0;
    if (is_code)
        static_cast<uint8_t*>(to.at)[index] = static_cast<uint8_t>(value);
    else
        static_cast<uint32_t*>(to.at)[index] = value;
}

template <class T, bool kDivides>
__device__ void quantize_groups(const T* __restrict__ x, uint64_t x_pitch, uint8_t* __restrict__ q, uint64_t q_pitch,
                                uint32_t m, uint32_t k, void* __restrict__ scales, uint32_t kind, uint32_t mn_major,
                                float eps) {
    constexpr int kPerVector = Wide<T>::kPerVector, kLanes = kGroup / kPerVector;
    const uint32_t lane = threadIdx.x % kLanes, row_in_tile = threadIdx.x / kLanes, tile_rows = blockDim.x / kLanes;
    const uint32_t blocks = ceil_div(k, kGroup), spans = ceil_div(blocks, kVectors);
    const uint32_t padded_rows = mn_major != 0 ? ceil_div(m, 4) * 4 : m;
    const uint32_t tiles = ceil_div(padded_rows, tile_rows) * spans;
    const GroupScales to = {scales, kind, mn_major, m, padded_rows, blocks};
    const bool aligned = rows_are_aligned(x, x_pitch, q, q_pitch);

    for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const uint32_t first_row = tile / spans * tile_rows, row = first_row + row_in_tile, span = tile % spans;
        const uint32_t column = span * (kVectors * kGroup) + lane * kPerVector;
        const bool whole = aligned && first_row + tile_rows <= m && (span + 1) * (kVectors * kGroup) <= k;
        const T* from = x + row * x_pitch;

        uint4 loaded[kVectors];
        if (whole) {
#pragma unroll
            for (int u = 0; u < kVectors; ++u)
                loaded[u] = *reinterpret_cast<const uint4*>(from + column + u * kGroup);
        } else {
#pragma unroll
            for (int u = 0; u < kVectors; ++u) loaded[u] = load_part(from, column + u * kGroup, row < m ? k : 0);
        }

        // All lanes of a row know the peaks of its four groups; lane u computes the scale of group u, for all.
        uint32_t mine = 0;
#pragma unroll
        for (int u = 0; u < kVectors; ++u) {
            const uint32_t peak = max_of_lanes<kLanes>(Wide<T>::peak_bits(loaded[u]));
            if (lane % kVectors == u) mine = peak;
        }
        const Scale scale = scale_of(mine, eps, kind);
        const float scaler = scaler_of<kDivides>(scale.factor);
        if (lane < kVectors) store_scale(to, row, span * kVectors + lane, scale.bits);

        uint8_t* codes_of_row = q + row * q_pitch;
#pragma unroll
        for (int u = 0; u < kVectors; ++u) {
            const Codes<kPerVector> codes =
                encode_vector<T, kDivides>(loaded[u], __shfl_sync(0xffffffffu, scaler, u, kLanes));
            if (whole)
                store_whole(codes_of_row + column + u * kGroup, codes);
            else
                store_part(codes_of_row, column + u * kGroup, row < m ? k : 0, codes);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Groups of 128 x 128: one block of threads each.

template <class T, bool kDivides>
__device__ void quantize_blocks(const T* __restrict__ x, uint64_t x_pitch, uint8_t* __restrict__ q, uint64_t q_pitch,
                                uint32_t m, uint32_t k, void* __restrict__ scales, uint32_t kind, float eps) {
    constexpr int kPerVector = Wide<T>::kPerVector, kLanes = kGroup / kPerVector;
    constexpr uint32_t kThreads = kGroup * kGroup / (kPerVector * kVectors), kRowsApart = kGroup / kVectors;
    __shared__ uint32_t of_warp[2][kThreads / kWarp];  // in turn, so that one barrier a tile is enough
    const uint32_t lane = threadIdx.x % kLanes, row_in_tile = threadIdx.x / kLanes;
    const uint32_t blocks = ceil_div(k, kGroup), tiles = ceil_div(m, kGroup) * blocks;
    const bool aligned = rows_are_aligned(x, x_pitch, q, q_pitch);

    uint32_t turn = 0;
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn ^= 1) {
        const uint32_t first_row = tile / blocks * kGroup, row = first_row + row_in_tile, block = tile % blocks;
        const uint32_t column = block * kGroup + lane * kPerVector;
        const bool whole = aligned && first_row + kGroup <= m && (block + 1) * kGroup <= k;

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

        uint32_t peak = 0;
#pragma unroll
        for (int u = 0; u < kVectors; ++u) peak = max(peak, Wide<T>::peak_bits(loaded[u]));
        peak = max_of_lanes<kWarp>(peak);
        if (threadIdx.x % kWarp == 0) of_warp[turn][threadIdx.x / kWarp] = peak;
        __syncthreads();
        peak = max_of_lanes<kThreads / kWarp>(of_warp[turn][threadIdx.x % (kThreads / kWarp)]);

        const Scale scale = scale_of(peak, eps, kind);
        const float scaler = scaler_of<kDivides>(scale.factor);
        if (threadIdx.x == 0) {
            if (kind == kScaleCode)
                static_cast<uint8_t*>(scales)[tile] = static_cast<uint8_t>(scale.bits);
            else
                static_cast<uint32_t*>(scales)[tile] = scale.bits;
        }

#pragma unroll
        for (int u = 0; u < kVectors; ++u) {
            const uint32_t at = row + u * kRowsApart;
            const Codes<kPerVector> codes = encode_vector<T, kDivides>(loaded[u], scaler);
            if (whole)
                store_whole(q + at * q_pitch + column, codes);
            else
                store_part(q + at * q_pitch, column, at < m ? k : 0, codes);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The entries. The namespace does not show in an extern "C" name.

#define GROUPS(name, T, kDivides)                                                                                     \
    extern "C" __global__ void __launch_bounds__(kMaxBlock) fp8_group_quantize_##name(                                \
        const T* x, uint64_t x_pitch, uint8_t* q, uint64_t q_pitch, uint32_t m, uint32_t k, void* scales,             \
        uint32_t scale_kind, uint32_t mn_major, float eps) {                                                          \
        quantize_groups<T, kDivides>(x, x_pitch, q, q_pitch, m, k, scales, scale_kind, mn_major, eps);                \
    }

#define BLOCKS(name, T, kDivides)                                                                                     \
    extern "C" __global__ void __launch_bounds__(kGroup* kGroup / (Wide<T>::kPerVector * kVectors))                   \
        fp8_block_quantize_##name(const T* x, uint64_t x_pitch, uint8_t* q, uint64_t q_pitch, uint32_t m, uint32_t k, \
                                  void* scales, uint32_t scale_kind, float eps) {                                     \
        quantize_blocks<T, kDivides>(x, x_pitch, q, q_pitch, m, k, scales, scale_kind, eps);                          \
    }

#define ENTRIES(wide, T)           \
    GROUPS(wide, T, false)         \
    GROUPS(wide##_divide, T, true) \
    BLOCKS(wide, T, false)         \
    BLOCKS(wide##_divide, T, true)

ENTRIES(bf16, __nv_bfloat16)
ENTRIES(f16, __half)
ENTRIES(f32, float)

}  // namespace fp8_groups
