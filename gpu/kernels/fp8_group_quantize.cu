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

#include "quantize/vectors.cuh"

namespace fp8_groups {

using namespace vectors;

// Enumerators, because a constexpr variable may leave a .global of its own in the PTX.
enum : int { kGroup = 128 };
enum : uint32_t { kScaleFloat = 0, kScalePower = 1, kScaleCode = 2, kLargestCode = 254 };

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
    constexpr int kPerVector = Wide<T>::kPerVector;
    float x[kPerVector];
    unpack_vector<T>(vector, x);
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
    const bool aligned = rows_are_aligned<kPerVector>(x, x_pitch, q, q_pitch);

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
                store_part<1>(codes_of_row, column + u * kGroup, row < m ? k : 0, codes);
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
    const bool aligned = rows_are_aligned<kPerVector>(x, x_pitch, q, q_pitch);

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
                store_part<1>(q + at * q_pitch, column, at < m ? k : 0, codes);
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
