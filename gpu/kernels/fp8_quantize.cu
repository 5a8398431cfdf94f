// Per-tensor FP8 quantisation in two launches, and its inverse.
//
//   fp8_amax_<in>            amax_bits = bits of max |x| in float32, NaN ignored
//   fp8_quantize_<in>_<fmt>  scale = fl(MAX / max(amax, eps)), q = satfinite(fl(x * scale)), scale_out = fl(1 / scale)
//   fp8_dequantize_<fmt>_<out>                                  y = round(fl(q * scale))
//
// in, out: bf16 | f16 | f32.  fmt: e4m3 (MAX 448) | e5m2 (MAX 57344).
// Every operation is an intrinsic that rounds to nearest even, so neither -fmad nor -prec-div moves a bit. -ftz=true, a
// part of --use_fast_math, would: it makes even those intrinsics flush subnormals.
//
// Launch: one-dimensional, the block a multiple of 32 up to 1024, any grid of at least one block, any n (0 included).
// Every pointer needs the alignment of its element and no more. The caller writes 0 to amax_bits before fp8_amax.
//
// The picture: x is cut into a head of less than one vector, vectors of 16 aligned bytes, and a tail.
//
//     x  | head |  vector 0  |  vector 1  | ... | tail |       a tile is blockDim.x * unroll vectors
//     q  | head |  codes 0   |  codes 1   | ... | tail |       codes start wherever the head leaves them
//
// The wide side (x, or y of the dequantiser) decides the head; the codes are then moved in the widest pieces that
// their own address allows, which is the same for all vectors of a launch.

#include <cuda/std/cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#if __CUDA_FTZ  // NVRTC says so; nvcc has no such macro
#error "compiled with -ftz=true or --use_fast_math: subnormals would be flushed"
#endif

namespace fp8 {

using cuda::std::int64_t;
using cuda::std::uint16_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;
using cuda::std::uintptr_t;

// Enumerators, because a constexpr variable may leave a .global of its own in the PTX.
enum : int { kMaxBlock = 1024, kWarp = 32 };

// Vectors a thread moves at a time, so many loads in flight: the fastest of 1, 2, 4 and 8 on an H200, as is one block a
// tile. Below sm_89 the cast is some forty integer instructions and no matter of memory; unrolling would make it long.
#if __CUDA_ARCH__ >= 890
enum : int { kQuantizeUnroll = 4, kDequantizeUnroll = 2 };
#else
enum : int { kQuantizeUnroll = 1, kDequantizeUnroll = 1 };
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Wide elements: sixteen bytes as floats and back. Widening is exact; narrowing rounds to nearest even.

// Wide<T> of an element T offers
//   kPerVector                             elements in 16 bytes
//   to_float(x), from_float(x)             one element
//   unpack(word, x), pack(x)               the elements of a 32-bit word, the first in its low bits
//   Peak, no_peak(), peak(so_far, word)    the largest magnitudes so far, one for each element of a word
//   peak_value(peak)                       the largest of them as a float
// The maximum of a number and a NaN is the number (fmaxf and __hmax2 alike), and no_peak is 0: NaN never is the peak.
template <class T>
struct Wide;

template <>
struct Wide<float> {
    enum : int { kPerVector = 4 };
    using Peak = float;

    static __device__ float to_float(float x) { return x; }
    static __device__ float from_float(float x) { return x; }
    static __device__ float no_peak() { return 0.0f; }

    static __device__ float peak(float peak, uint32_t word) { return fmaxf(peak, fabsf(__uint_as_float(word))); }
    static __device__ float peak_value(float peak) { return peak; }

    static __device__ void unpack(uint32_t word, float* x) { x[0] = __uint_as_float(word); }
    static __device__ uint32_t pack(const float* x) { return __float_as_uint(x[0]); }
};

// What words of two 16-bit elements have in common.
template <class T, class Pair>
struct WidePair {
    enum : int { kPerVector = 8 };
    using Peak = Pair;

    static __device__ float to_float(T x) { return static_cast<float>(x); }
    static __device__ T from_float(float x) { return T(x); }

    static __device__ Peak peak(Peak peak, uint32_t word) {
        return __hmax2(peak, __habs2(reinterpret_cast<const Peak&>(word)));
    }
    static __device__ float peak_value(Peak peak) {
        return fmaxf(__low2float(peak), __high2float(peak));
    }
};

template <>
struct Wide<__nv_bfloat16> : WidePair<__nv_bfloat16, __nv_bfloat162> {
    static __device__ Peak no_peak() { return __halves2bfloat162(__ushort_as_bfloat16(0), __ushort_as_bfloat16(0)); }
    static __device__ void unpack(uint32_t word, float* x) {
        x[0] = __uint_as_float(word << 16);
        x[1] = __uint_as_float(word & 0xffff0000u);
    }
    static __device__ uint32_t pack(const float* x) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[0], x[1]);
        return reinterpret_cast<const uint32_t&>(pair);
    }
};

template <>
struct Wide<__half> : WidePair<__half, __half2> {
    static __device__ Peak no_peak() { return __halves2half2(__ushort_as_half(0), __ushort_as_half(0)); }
    static __device__ void unpack(uint32_t word, float* x) {
        const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
        x[0] = pair.x;
        x[1] = pair.y;
    }
    static __device__ uint32_t pack(const float* x) {
        const __half2 pair = __floats2half2_rn(x[0], x[1]);
        return reinterpret_cast<const uint32_t&>(pair);
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// FP8 codes. The first element of a pair is the low byte: the instruction wants it as its second operand.

template <__nv_fp8_interpretation_t kFormat>
__device__ constexpr float largest() {
    return kFormat == __NV_E4M3 ? 448.0f : 57344.0f;
}

template <__nv_fp8_interpretation_t kFormat>
__device__ uint32_t encode_pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, kFormat);
}

// Exact: every code of either format, subnormals included, is a half.
template <__nv_fp8_interpretation_t kFormat>
__device__ float2 decode_pair(uint32_t codes) {
    return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), kFormat)));
}

// The codes of one vector, as the words that a 4- or 8-byte access moves.
template <int kCodes>
struct Codes {
    uint32_t word[kCodes / 4];
};

// The widest access, in bytes, that the address of the first vector's codes allows. Later vectors are kCodes apart.
template <int kCodes>
__device__ int access_width(const uint8_t* codes) {
    const uint32_t low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(codes)) | kCodes;
    return static_cast<int>(low & (0u - low));
}

inline __device__ void store_whole(uint8_t* to, const Codes<8>& codes) {
    __stcs(reinterpret_cast<uint2*>(to), make_uint2(codes.word[0], codes.word[1]));
}
inline __device__ void store_whole(uint8_t* to, const Codes<4>& codes) {
    __stcs(reinterpret_cast<uint32_t*>(to), codes.word[0]);
}

inline __device__ void load_whole(const uint8_t* from, Codes<8>& codes) {
    const uint2 both = __ldcs(reinterpret_cast<const uint2*>(from));
    codes.word[0] = both.x;
    codes.word[1] = both.y;
}
inline __device__ void load_whole(const uint8_t* from, Codes<4>& codes) {
    codes.word[0] = __ldcs(reinterpret_cast<const uint32_t*>(from));
}

template <int kCodes>
__device__ void store_codes(uint8_t* to, const Codes<kCodes>& codes, int width) {
    if (width == kCodes) {
        store_whole(to, codes);
    } else if (width == 4) {
#pragma unroll
        for (int i = 0; i < kCodes / 4; ++i) __stcs(reinterpret_cast<uint32_t*>(to) + i, codes.word[i]);
    } else if (width == 2) {
#pragma unroll
        for (int i = 0; i < kCodes / 2; ++i)
            __stcs(reinterpret_cast<uint16_t*>(to) + i, static_cast<uint16_t>(codes.word[i / 2] >> (16 * (i % 2))));
    } else {
#pragma unroll
        for (int i = 0; i < kCodes; ++i)
            __stcs(to + i, static_cast<uint8_t>(codes.word[i / 4] >> (8 * (i % 4))));
    }
}

template <int kCodes>
__device__ Codes<kCodes> load_codes(const uint8_t* from, int width) {
    Codes<kCodes> codes = {};
    if (width == kCodes) {
        load_whole(from, codes);
    } else if (width == 4) {
#pragma unroll
        for (int i = 0; i < kCodes / 4; ++i) codes.word[i] = __ldcs(reinterpret_cast<const uint32_t*>(from) + i);
    } else if (width == 2) {
#pragma unroll
        for (int i = 0; i < kCodes / 2; ++i)
            codes.word[i / 2] |= static_cast<uint32_t>(__ldcs(reinterpret_cast<const uint16_t*>(from) + i))
                                 << (16 * (i % 2));
    } else {
#pragma unroll
        for (int i = 0; i < kCodes; ++i)
            codes.word[i / 4] |= static_cast<uint32_t>(__ldcs(from + i)) << (8 * (i % 4));
    }
    return codes;
}

// ---------------------------------------------------------------------------------------------------------------------
// How a launch shares the tensor out.

struct Shares {
    int64_t head;     // elements before the first aligned vector
    int64_t vectors;  // whole vectors of 16 bytes
    int64_t edges;    // elements outside the vectors: the head, then the tail
};

template <class T>
__device__ Shares share_out(const T* wide, uint64_t n) {
    constexpr int kPerVector = Wide<T>::kPerVector;
    const uint32_t to_boundary = (0u - static_cast<uint32_t>(reinterpret_cast<uintptr_t>(wide))) % 16u;
    const uint64_t wanted = to_boundary / sizeof(T);
    const uint64_t head = wanted < n ? wanted : n;
    const uint64_t vectors = (n - head) / kPerVector;
    return {static_cast<int64_t>(head), static_cast<int64_t>(vectors), static_cast<int64_t>(n - vectors * kPerVector)};
}

// The i-th element that belongs to no vector: the tail follows the head once the vectors are skipped.
inline __device__ int64_t edge_index(const Shares& shares, int64_t i, int per_vector) {
    return i < shares.head ? i : i + shares.vectors * per_vector;
}

inline __device__ int64_t thread_in_grid() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
inline __device__ int64_t threads_in_grid() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// ---------------------------------------------------------------------------------------------------------------------
// Stage 1: the largest magnitude. Non-negative floats order as their bits do, so one atomicMax a block ends it.

// The maximum over the block, whole in thread 0.
inline __device__ uint32_t block_max(uint32_t value) {
    __shared__ uint32_t of_warp[kMaxBlock / kWarp];
    const uint32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2)
        value = max(value, __shfl_xor_sync(0xffffffffu, value, distance));
    if (lane == 0) of_warp[warp] = value;
    __syncthreads();
    if (warp != 0) return 0;
    value = lane < blockDim.x / kWarp ? of_warp[lane] : 0;
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2)
        value = max(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

template <class T>
__device__ typename Wide<T>::Peak vector_peak(typename Wide<T>::Peak peak, uint4 vector) {
    peak = Wide<T>::peak(peak, vector.x);
    peak = Wide<T>::peak(peak, vector.y);
    peak = Wide<T>::peak(peak, vector.z);
    return Wide<T>::peak(peak, vector.w);
}

// Tiles ascend, so the end of the tensor is what the L2 cache holds when the last block retires.
template <class T>
__device__ void amax(const T* __restrict__ x, uint64_t n, uint32_t* __restrict__ amax_bits) {
    const Shares shares = share_out(x, n);
    const uint4* vectors = reinterpret_cast<const uint4*>(x + shares.head);
    const int64_t tile = int64_t{blockDim.x} * kQuantizeUnroll;

    typename Wide<T>::Peak peak = Wide<T>::no_peak();
    for (int64_t begin = blockIdx.x * tile; begin < shares.vectors; begin += gridDim.x * tile) {
        if (kQuantizeUnroll > 1 && begin + tile <= shares.vectors) {
            uint4 loaded[kQuantizeUnroll];
#pragma unroll
            for (int u = 0; u < kQuantizeUnroll; ++u) loaded[u] = vectors[begin + threadIdx.x + u * blockDim.x];
#pragma unroll
            for (int u = 0; u < kQuantizeUnroll; ++u) peak = vector_peak<T>(peak, loaded[u]);
        } else {
            const int64_t end = min(begin + tile, shares.vectors);
#pragma unroll 1
            for (int64_t v = begin + threadIdx.x; v < end; v += blockDim.x) peak = vector_peak<T>(peak, vectors[v]);
        }
    }

    float largest = Wide<T>::peak_value(peak);
#pragma unroll 1
    for (int64_t i = thread_in_grid(); i < shares.edges; i += threads_in_grid())
        largest = fmaxf(largest, fabsf(Wide<T>::to_float(x[edge_index(shares, i, Wide<T>::kPerVector)])));

    const uint32_t bits = block_max(__float_as_uint(largest));
    if (threadIdx.x == 0) atomicMax(amax_bits, bits);
}

// ---------------------------------------------------------------------------------------------------------------------
// Stage 2: the cast.

template <class T, __nv_fp8_interpretation_t kFormat>
__device__ Codes<Wide<T>::kPerVector> encode_vector(uint4 vector, float scale) {
    constexpr int kPerVector = Wide<T>::kPerVector, kPerWord = kPerVector / 4;
    float x[kPerVector];
    Wide<T>::unpack(vector.x, x);
    Wide<T>::unpack(vector.y, x + kPerWord);
    Wide<T>::unpack(vector.z, x + 2 * kPerWord);
    Wide<T>::unpack(vector.w, x + 3 * kPerWord);
    Codes<kPerVector> codes;
#pragma unroll
    for (int i = 0; i < kPerVector; i += 4) {
        const uint32_t low = encode_pair<kFormat>(__fmul_rn(x[i], scale), __fmul_rn(x[i + 1], scale));
        const uint32_t high = encode_pair<kFormat>(__fmul_rn(x[i + 2], scale), __fmul_rn(x[i + 3], scale));
        codes.word[i / 4] = low | high << 16;
    }
    return codes;
}

// Tiles descend: the first ones are still in the L2 cache from stage 1, which read them last. The codes are stored with
// the streaming hint, so that they do not push out what is still to be read; a streaming load would cost 5 %.
template <class T, __nv_fp8_interpretation_t kFormat>
__device__ void quantize(const T* __restrict__ x, uint64_t n, const uint32_t* __restrict__ amax_bits,
                         uint8_t* __restrict__ q, float* __restrict__ scale_out, float eps) {
    constexpr int kPerVector = Wide<T>::kPerVector;
    const Shares shares = share_out(x, n);
    const uint4* vectors = reinterpret_cast<const uint4*>(x + shares.head);
    uint8_t* codes = q + shares.head;
    const int width = access_width<kPerVector>(codes);
    const int64_t tile = int64_t{blockDim.x} * kQuantizeUnroll;

    // An infinite amax gives scale 0: finite x become 0, infinities NaN (inf * 0), and scale_out is infinite.
    const float scale = __fdiv_rn(largest<kFormat>(), fmaxf(__uint_as_float(*amax_bits), eps));
    if (thread_in_grid() == 0) *scale_out = __frcp_rn(scale);

    for (int64_t end = shares.vectors - blockIdx.x * tile; end > 0; end -= gridDim.x * tile) {
        if (kQuantizeUnroll > 1 && end >= tile && width == kPerVector) {
            const int64_t first = end - tile + threadIdx.x;
            uint4 loaded[kQuantizeUnroll];
#pragma unroll
            for (int u = 0; u < kQuantizeUnroll; ++u) loaded[u] = vectors[first + u * blockDim.x];
#pragma unroll
            for (int u = 0; u < kQuantizeUnroll; ++u)
                store_whole(codes + (first + u * blockDim.x) * kPerVector,
                            encode_vector<T, kFormat>(loaded[u], scale));
        } else {
#pragma unroll 1
            for (int64_t v = max(end - tile, int64_t{0}) + threadIdx.x; v < end; v += blockDim.x)
                store_codes(codes + v * kPerVector, encode_vector<T, kFormat>(vectors[v], scale), width);
        }
    }

#pragma unroll 1
    for (int64_t i = thread_in_grid(); i < shares.edges; i += threads_in_grid()) {
        const int64_t at = edge_index(shares, i, kPerVector);
        q[at] = static_cast<uint8_t>(encode_pair<kFormat>(__fmul_rn(Wide<T>::to_float(x[at]), scale), 0.0f));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The inverse: one exact widening, one float32 product, one rounding.

template <class T, __nv_fp8_interpretation_t kFormat>
__device__ uint4 decode_vector(const Codes<Wide<T>::kPerVector>& codes, float scale) {
    constexpr int kPerVector = Wide<T>::kPerVector, kPerWord = kPerVector / 4;
    float y[kPerVector];
#pragma unroll
    for (int i = 0; i < kPerVector; i += 2) {
        const float2 pair = decode_pair<kFormat>(codes.word[i / 4] >> (8 * (i % 4)));
        y[i] = __fmul_rn(pair.x, scale);
        y[i + 1] = __fmul_rn(pair.y, scale);
    }
    return make_uint4(Wide<T>::pack(y), Wide<T>::pack(y + kPerWord), Wide<T>::pack(y + 2 * kPerWord),
                      Wide<T>::pack(y + 3 * kPerWord));
}

template <class T, __nv_fp8_interpretation_t kFormat>
__device__ void dequantize(const uint8_t* __restrict__ q, uint64_t n, const float* __restrict__ scale_in,
                           T* __restrict__ y) {
    constexpr int kPerVector = Wide<T>::kPerVector;
    const Shares shares = share_out(y, n);
    const uint8_t* codes = q + shares.head;
    uint4* vectors = reinterpret_cast<uint4*>(y + shares.head);
    const int width = access_width<kPerVector>(codes);
    const int64_t tile = int64_t{blockDim.x} * kDequantizeUnroll;
    const float scale = *scale_in;

    for (int64_t begin = blockIdx.x * tile; begin < shares.vectors; begin += gridDim.x * tile) {
        if (kDequantizeUnroll > 1 && begin + tile <= shares.vectors && width == kPerVector) {
            const int64_t first = begin + threadIdx.x;
            Codes<kPerVector> loaded[kDequantizeUnroll];
#pragma unroll
            for (int u = 0; u < kDequantizeUnroll; ++u)
                load_whole(codes + (first + u * blockDim.x) * kPerVector, loaded[u]);
#pragma unroll
            for (int u = 0; u < kDequantizeUnroll; ++u)
                __stcs(vectors + first + u * blockDim.x, decode_vector<T, kFormat>(loaded[u], scale));
        } else {
            const int64_t end = min(begin + tile, shares.vectors);
#pragma unroll 1
            for (int64_t v = begin + threadIdx.x; v < end; v += blockDim.x)
                __stcs(vectors + v,
                       decode_vector<T, kFormat>(load_codes<kPerVector>(codes + v * kPerVector, width), scale));
        }
    }

#pragma unroll 1
    for (int64_t i = thread_in_grid(); i < shares.edges; i += threads_in_grid()) {
        const int64_t at = edge_index(shares, i, kPerVector);
        y[at] = Wide<T>::from_float(__fmul_rn(decode_pair<kFormat>(q[at]).x, scale));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The entries. The namespace does not show in an extern "C" name.

#define AMAX(in, T)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(kMaxBlock)                                                           \
        fp8_amax_##in(const T* x, uint64_t n, uint32_t* amax_bits) {                                                  \
        amax<T>(x, n, amax_bits);                                                                                     \
    }

#define QUANTIZE(in, T, fmt, kFormat)                                                                                 \
    extern "C" __global__ void __launch_bounds__(kMaxBlock) fp8_quantize_##in##_##fmt(                                \
        const T* x, uint64_t n, const uint32_t* amax_bits, uint8_t* q, float* scale_out, float eps) {                 \
        quantize<T, kFormat>(x, n, amax_bits, q, scale_out, eps);                                                     \
    }

#define DEQUANTIZE(fmt, kFormat, out, T)                                                                              \
    extern "C" __global__ void __launch_bounds__(kMaxBlock)                                                           \
        fp8_dequantize_##fmt##_##out(const uint8_t* q, uint64_t n, const float* scale, T* y) {                        \
        dequantize<T, kFormat>(q, n, scale, y);                                                                       \
    }

#define ENTRIES(wide, T)                      \
    AMAX(wide, T)                             \
    QUANTIZE(wide, T, e4m3, __NV_E4M3)        \
    QUANTIZE(wide, T, e5m2, __NV_E5M2)        \
    DEQUANTIZE(e4m3, __NV_E4M3, wide, T)      \
    DEQUANTIZE(e5m2, __NV_E5M2, wide, T)

ENTRIES(bf16, __nv_bfloat16)
ENTRIES(f16, __half)
ENTRIES(f32, float)

}  // namespace fp8
