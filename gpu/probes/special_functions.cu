// The special functions of PTX (.approx and div.full), one instruction per kernel, over their whole input spaces.
//
// For a form F of one 32-bit operand:
//   digest_F   block c takes the 65,536 patterns whose upper half is c and writes one digest,
//              sum of weight(i) * result(i) mod 2^64, as refsim.silicon.vectors.digest defines it
//   words_F    the results of consecutive patterns
//   sample_F   the results of SAMPLES patterns of every chunk, the k-th of chunk c being c << 16 | splitmix64(c * SAMPLES + k)
// For a form of one f64 the pattern is the upper half of the operand; the lower half is 0 (`low0`) or a hash of the upper.
// For div a block takes 65,536 pairs of one pair of exponents, `pair` says which.
//
// Compile: nvcc -cubin -std=c++17 -gencode arch=compute_90a,code=sm_90a

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 CHUNK = 65536;
constexpr u32 SAMPLES = 4;
constexpr u32 PARTNER_F16 = 0x5A35u;

__device__ u64 splitmix64(u64 index) {
    u64 z = (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
__device__ u64 weight(u32 i) { return splitmix64(i) | 1; }
__device__ u64 term(u32 i, u32 result) { return weight(i) * result; }
__device__ u64 term(u32 i, u64 result) { return weight(i) * u32(result) + weight(CHUNK + i) * (result >> 32); }

template <class Function>
__device__ void digest_chunk(u64* digests, Function function) {
    u64 sum = 0;
    for (u32 i = threadIdx.x; i < CHUNK; i += blockDim.x) sum += term(i, function(i));
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    __shared__ u64 partial[32];
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        u64 total = 0;
        for (u32 warp = 0; warp < blockDim.x / 32; ++warp) total += partial[warp];
        digests[blockIdx.x] = total;
    }
}

__device__ u32 sampled(u32 place) { return place / SAMPLES << 16 | u32(splitmix64(place) & 0xFFFF); }

#define KERNELS(form, type)                                                                                     \
    extern "C" __global__ void digest_##form(u64* digests, u32 first) {                                         \
        u32 chunk = first + blockIdx.x;                                                                         \
        digest_chunk(digests, [chunk](u32 i) { return form(chunk << 16 | i); });                                \
    }                                                                                                           \
    extern "C" __global__ void words_##form(type* results, u32 first) {                                         \
        u32 i = blockIdx.x * blockDim.x + threadIdx.x;                                                          \
        results[i] = form(first + i);                                                                           \
    }                                                                                                           \
    extern "C" __global__ void sample_##form(type* results, u32 first) {                                        \
        u32 i = blockIdx.x * blockDim.x + threadIdx.x;                                                          \
        results[i] = form(sampled(first + i));                                                                  \
    }

// ---- one float32 ------------------------------------------------------------------------------------------------
#define UNARY_F32(form, opcode)                                                                                 \
    __device__ u32 form(u32 pattern) {                                                                          \
        u32 d;                                                                                                  \
        asm("{.reg .f32 x, y;\n mov.b32 x, %1;\n " opcode " y, x;\n mov.b32 %0, y;}" : "=r"(d) : "r"(pattern)); \
        return d;                                                                                               \
    }                                                                                                           \
    KERNELS(form, u32)

UNARY_F32(rcp_approx_f32, "rcp.approx.f32")
UNARY_F32(rcp_approx_ftz_f32, "rcp.approx.ftz.f32")
UNARY_F32(rsqrt_approx_f32, "rsqrt.approx.f32")
UNARY_F32(rsqrt_approx_ftz_f32, "rsqrt.approx.ftz.f32")
UNARY_F32(sqrt_approx_f32, "sqrt.approx.f32")
UNARY_F32(sqrt_approx_ftz_f32, "sqrt.approx.ftz.f32")
UNARY_F32(lg2_approx_f32, "lg2.approx.f32")
UNARY_F32(lg2_approx_ftz_f32, "lg2.approx.ftz.f32")
UNARY_F32(ex2_approx_f32, "ex2.approx.f32")
UNARY_F32(ex2_approx_ftz_f32, "ex2.approx.ftz.f32")
UNARY_F32(sin_approx_f32, "sin.approx.f32")
UNARY_F32(sin_approx_ftz_f32, "sin.approx.ftz.f32")
UNARY_F32(cos_approx_f32, "cos.approx.f32")
UNARY_F32(cos_approx_ftz_f32, "cos.approx.ftz.f32")
UNARY_F32(tanh_approx_f32, "tanh.approx.f32")

// ---- the upper half of one float64 ------------------------------------------------------------------------------
#define UNARY_F64(form, opcode)                                                                                 \
    __device__ u64 form(u32 pattern) {                                                                          \
        u64 d;                                                                                                  \
        u64 operand = u64(pattern) << 32 | LOWER(pattern);                                                      \
        asm("{.reg .f64 x, y;\n mov.b64 x, %1;\n " opcode " y, x;\n mov.b64 %0, y;}" : "=l"(d) : "l"(operand)); \
        return d;                                                                                               \
    }                                                                                                           \
    KERNELS(form, u64)

#define LOWER(pattern) 0
UNARY_F64(rcp_approx_ftz_f64_low0, "rcp.approx.ftz.f64")
UNARY_F64(rsqrt_approx_f64_low0, "rsqrt.approx.f64")
UNARY_F64(rsqrt_approx_ftz_f64_low0, "rsqrt.approx.ftz.f64")
#undef LOWER
#define LOWER(pattern) u32(splitmix64(pattern))
UNARY_F64(rcp_approx_ftz_f64, "rcp.approx.ftz.f64")
UNARY_F64(rsqrt_approx_f64, "rsqrt.approx.f64")
UNARY_F64(rsqrt_approx_ftz_f64, "rsqrt.approx.ftz.f64")

// ---- 16-bit operands: all results -------------------------------------------------------------------------------
#define UNARY_16(form, opcode)                                                                                  \
    extern "C" __global__ void table_##form(u32* results) {                                                     \
        u32 pattern = blockIdx.x * blockDim.x + threadIdx.x;                                                    \
        u16 d;                                                                                                  \
        asm(opcode " %0, %1;" : "=h"(d) : "h"(u16(pattern)));                                                   \
        results[pattern] = d;                                                                                   \
    }
#define UNARY_16X2(form, opcode)                                                                                \
    extern "C" __global__ void table_##form(u32* results) {                                                     \
        u32 pattern = blockIdx.x * blockDim.x + threadIdx.x;                                                    \
        u32 d;                                                                                                  \
        asm(opcode " %0, %1;" : "=r"(d) : "r"(pattern | (pattern ^ PARTNER_F16) << 16));                        \
        results[pattern] = d;                                                                                   \
    }

UNARY_16(ex2_approx_f16, "ex2.approx.f16")
UNARY_16(ex2_approx_ftz_bf16, "ex2.approx.ftz.bf16")
UNARY_16(tanh_approx_f16, "tanh.approx.f16")
UNARY_16(tanh_approx_bf16, "tanh.approx.bf16")
UNARY_16X2(ex2_approx_f16x2, "ex2.approx.f16x2")
UNARY_16X2(ex2_approx_ftz_bf16x2, "ex2.approx.ftz.bf16x2")
UNARY_16X2(tanh_approx_f16x2, "tanh.approx.f16x2")
UNARY_16X2(tanh_approx_bf16x2, "tanh.approx.bf16x2")

// ---- div: chunk = (exponent of a, exponent of b, two bits), 65,536 pairs each -------------------------------------
struct Pair { u32 a, b; };

// Mantissas and signs by a hash; one pair in eight has a special mantissa of a, one in eight one of b, one in sixteen a = b.
__device__ Pair pair(u32 chunk, u32 i) {
    u64 h = splitmix64(u64(chunk) << 16 | i);
    u32 a = h & 0x7FFFFF, b = h >> 23 & 0x7FFFFF, kind = h >> 48 & 15;
    u32 special = h >> 52 & 3;
    u32 value = special == 0 ? 0 : special == 1 ? 0x7FFFFF : special == 2 ? 1 : 0x400000;
    if (kind < 2) a = value;
    if (kind == 1 || kind == 2) b = value;
    if (kind == 3) b = a;
    a |= (chunk >> 10 & 0xFF) << 23 | u32(h >> 63) << 31;
    b |= (chunk >> 2 & 0xFF) << 23 | u32(h >> 62 & 1) << 31;
    return {a, b};
}

#define BINARY_F32(form, opcode)                                                                                \
    __device__ u32 form(Pair both) {                                                                            \
        u32 d;                                                                                                  \
        asm("{.reg .f32 x, y, z;\n mov.b32 x, %1;\n mov.b32 y, %2;\n " opcode " z, x, y;\n mov.b32 %0, z;}"     \
            : "=r"(d) : "r"(both.a), "r"(both.b));                                                              \
        return d;                                                                                               \
    }                                                                                                           \
    extern "C" __global__ void digest_##form(u64* digests, u32 first) {                                         \
        u32 chunk = first + blockIdx.x;                                                                         \
        digest_chunk(digests, [chunk](u32 i) { return form(pair(chunk, i)); });                                 \
    }                                                                                                           \
    extern "C" __global__ void sample_##form(u32* results, u32 first) {                                         \
        u32 i = first + blockIdx.x * blockDim.x + threadIdx.x;                                                  \
        results[i - first] = form(pair(i / 2, u32(splitmix64(i) & 0xFFFF)));                                    \
    }

BINARY_F32(div_approx_f32, "div.approx.f32")
BINARY_F32(div_approx_ftz_f32, "div.approx.ftz.f32")
BINARY_F32(div_full_f32, "div.full.f32")
BINARY_F32(div_full_ftz_f32, "div.full.ftz.f32")
