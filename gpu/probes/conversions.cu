// Every conversion to and from a narrow format, one instruction per kernel, over its whole input space.
//
// A kernel named after its opcode (dots become underscores) runs that single instruction through inline PTX. Kernels
// named `header_*` call the conversions of cuda_fp8.h, cuda_fp6.h and cuda_fp4.h: NVIDIA's own software, compiled, except
// that FP8 with saturation is the instruction.
//
// Over float32 the input space has 2^32 patterns: block c takes the 65,536 patterns whose upper half is c and writes
// one digest, sum of weight(i) * result(i) mod 2^64; a 64-bit result counts as two words, the upper one under
// weight(65536 + i) (refsim/testing/vectors.py is the definition). The second operand of a pair is pattern ^ PARTNER,
// another permutation of all patterns. Over 16-bit inputs every result is kept.
//
// Compile: nvcc -cubin -std=c++17 -gencode arch=compute_90a,code=sm_90a

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 PARTNER = 0x2545F491u;       // of a float32 pattern
constexpr u32 PARTNER_F16 = 0x5A35u;       // of an f16 pattern, in the upper half of f16x2
constexpr u32 CHUNK = 65536;

// The weight of element i of a chunk: splitmix64 of i, made odd so that no single wrong result can hide.
__device__ u64 weight(u32 i) {
    u64 z = (u64(i) + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (z ^ (z >> 31)) | 1;
}

__device__ u64 term(u32 i, u16 result) { return weight(i) * result; }
__device__ u64 term(u32 i, u32 result) { return weight(i) * result; }
__device__ u64 term(u32 i, u64 result) { return weight(i) * u32(result) + weight(CHUNK + i) * (result >> 32); }

template <class Convert>
__device__ void digest_chunk(u64* digests, Convert convert) {
    u64 sum = 0;
    for (u32 i = threadIdx.x; i < CHUNK; i += blockDim.x) sum += term(i, convert(blockIdx.x << 16 | i));
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

#define DIGEST(entry, expression)                                                                  \
    extern "C" __global__ void entry(u64* digests) {                                               \
        digest_chunk(digests, [](u32 pattern) { return expression; });                             \
    }

// All 65,536 inputs, one result each.
#define TABLE(entry, expression)                                                                   \
    extern "C" __global__ void entry(u32* results) {                                               \
        u32 pattern = blockIdx.x * blockDim.x + threadIdx.x;                                       \
        results[pattern] = u32(expression);                                                        \
    }

// ---- the instructions: register constraint and opcode --------------------------------------------------------------
#define ONE(result, out, in, operand, opcode)                                                      \
    ([](u32 bits) { result d; asm(opcode " %0, %1;" : out(d) : in(operand(bits))); return d; })(pattern)
#define TWO(result, out, opcode)                                                                   \
    ([](u32 bits) { result d;                                                                      \
        asm(opcode " %0, %1, %2;" : out(d) : "f"(__uint_as_float(bits)), "f"(__uint_as_float(bits ^ PARTNER)));    \
        return d; })(pattern)

#define F32_TO_16(entry, opcode) DIGEST(entry, ONE(u16, "=h", "f", __uint_as_float, opcode))
#define F32_TO_32(entry, opcode) DIGEST(entry, ONE(u32, "=r", "f", __uint_as_float, opcode))
#define F32_TO_64(entry, opcode) DIGEST(entry, ONE(u64, "=l", "f", __uint_as_float, opcode))
#define F32_PAIR_TO_16(entry, opcode) DIGEST(entry, TWO(u16, "=h", opcode))
#define F32_PAIR_TO_32(entry, opcode) DIGEST(entry, TWO(u32, "=r", opcode))
#define INT_TO_32(entry, opcode) DIGEST(entry, ONE(u32, "=r", "r", u32, opcode))
#define INT_TO_16(entry, opcode) DIGEST(entry, ONE(u16, "=h", "r", u32, opcode))

#define F16_PAIR_TO_16(entry, opcode)                                                              \
    TABLE(entry, ([](u32 bits) { u16 d; asm(opcode " %0, %1;" : "=h"(d) : "r"(bits)); return d; }) \
                     (pattern | (pattern ^ PARTNER_F16) << 16))
#define FP8_PAIR_TO_32(entry, opcode)                                                              \
    TABLE(entry, ([](u16 bits) { u32 d; asm(opcode " %0, %1;" : "=r"(d) : "h"(bits)); return d; })(u16(pattern)))

// ---- the headers: name and call --------------------------------------------------------------------------------------
#define HEADER_DIGEST(entry, name, call) DIGEST(entry, u16(call))
#define HEADER_TABLE(entry, name, call) TABLE(entry, call)

__device__ __half_raw half_raw(u32 bits) { __half_raw raw; raw.x = u16(bits); return raw; }
__device__ __nv_bfloat16_raw bf16_raw(u32 bits) { __nv_bfloat16_raw raw; raw.x = u16(bits); return raw; }

// Two float32 to a pair of FP8 codes.
F32_PAIR_TO_16(cvt_rn_satfinite_e4m3x2_f32, "cvt.rn.satfinite.e4m3x2.f32")
F32_PAIR_TO_16(cvt_rn_satfinite_relu_e4m3x2_f32, "cvt.rn.satfinite.relu.e4m3x2.f32")
F32_PAIR_TO_16(cvt_rn_satfinite_e5m2x2_f32, "cvt.rn.satfinite.e5m2x2.f32")
F32_PAIR_TO_16(cvt_rn_satfinite_relu_e5m2x2_f32, "cvt.rn.satfinite.relu.e5m2x2.f32")

// float32 to a 16-bit float, alone and in pairs.
F32_TO_16(cvt_rn_f16_f32, "cvt.rn.f16.f32")
F32_TO_16(cvt_rn_satfinite_f16_f32, "cvt.rn.satfinite.f16.f32")
F32_TO_16(cvt_rn_relu_f16_f32, "cvt.rn.relu.f16.f32")
F32_TO_16(cvt_rn_relu_satfinite_f16_f32, "cvt.rn.relu.satfinite.f16.f32")
F32_TO_16(cvt_rz_f16_f32, "cvt.rz.f16.f32")
F32_TO_16(cvt_rz_satfinite_f16_f32, "cvt.rz.satfinite.f16.f32")
F32_TO_16(cvt_rz_relu_f16_f32, "cvt.rz.relu.f16.f32")
F32_TO_16(cvt_rz_relu_satfinite_f16_f32, "cvt.rz.relu.satfinite.f16.f32")
F32_TO_16(cvt_rn_bf16_f32, "cvt.rn.bf16.f32")
F32_TO_16(cvt_rn_satfinite_bf16_f32, "cvt.rn.satfinite.bf16.f32")
F32_TO_16(cvt_rn_relu_bf16_f32, "cvt.rn.relu.bf16.f32")
F32_TO_16(cvt_rn_relu_satfinite_bf16_f32, "cvt.rn.relu.satfinite.bf16.f32")
F32_TO_16(cvt_rz_bf16_f32, "cvt.rz.bf16.f32")
F32_TO_16(cvt_rz_satfinite_bf16_f32, "cvt.rz.satfinite.bf16.f32")
F32_TO_16(cvt_rz_relu_bf16_f32, "cvt.rz.relu.bf16.f32")
F32_TO_16(cvt_rz_relu_satfinite_bf16_f32, "cvt.rz.relu.satfinite.bf16.f32")
F32_TO_16(cvt_rm_f16_f32, "cvt.rm.f16.f32")
F32_TO_16(cvt_rp_f16_f32, "cvt.rp.f16.f32")
F32_TO_16(cvt_rn_ftz_f16_f32, "cvt.rn.ftz.f16.f32")
F32_TO_16(cvt_rn_sat_f16_f32, "cvt.rn.sat.f16.f32")
F32_TO_16(cvt_rn_ftz_sat_f16_f32, "cvt.rn.ftz.sat.f16.f32")
F32_PAIR_TO_32(cvt_rn_f16x2_f32, "cvt.rn.f16x2.f32")
F32_PAIR_TO_32(cvt_rn_satfinite_f16x2_f32, "cvt.rn.satfinite.f16x2.f32")
F32_PAIR_TO_32(cvt_rn_relu_f16x2_f32, "cvt.rn.relu.f16x2.f32")
F32_PAIR_TO_32(cvt_rn_relu_satfinite_f16x2_f32, "cvt.rn.relu.satfinite.f16x2.f32")
F32_PAIR_TO_32(cvt_rz_f16x2_f32, "cvt.rz.f16x2.f32")
F32_PAIR_TO_32(cvt_rz_relu_f16x2_f32, "cvt.rz.relu.f16x2.f32")
F32_PAIR_TO_32(cvt_rn_bf16x2_f32, "cvt.rn.bf16x2.f32")
F32_PAIR_TO_32(cvt_rn_satfinite_bf16x2_f32, "cvt.rn.satfinite.bf16x2.f32")
F32_PAIR_TO_32(cvt_rn_relu_bf16x2_f32, "cvt.rn.relu.bf16x2.f32")
F32_PAIR_TO_32(cvt_rn_relu_satfinite_bf16x2_f32, "cvt.rn.relu.satfinite.bf16x2.f32")
F32_PAIR_TO_32(cvt_rz_bf16x2_f32, "cvt.rz.bf16x2.f32")
F32_PAIR_TO_32(cvt_rz_relu_bf16x2_f32, "cvt.rz.relu.bf16x2.f32")

// float32 to TF32.
F32_TO_32(cvt_rna_tf32_f32, "cvt.rna.tf32.f32")
F32_TO_32(cvt_rna_satfinite_tf32_f32, "cvt.rna.satfinite.tf32.f32")
F32_TO_32(cvt_rn_tf32_f32, "cvt.rn.tf32.f32")
F32_TO_32(cvt_rn_relu_tf32_f32, "cvt.rn.relu.tf32.f32")
F32_TO_32(cvt_rz_tf32_f32, "cvt.rz.tf32.f32")
F32_TO_32(cvt_rz_relu_tf32_f32, "cvt.rz.relu.tf32.f32")

// float32 to an integral float32, and to integers.
F32_TO_32(cvt_rni_f32_f32, "cvt.rni.f32.f32")
F32_TO_32(cvt_rzi_f32_f32, "cvt.rzi.f32.f32")
F32_TO_32(cvt_rmi_f32_f32, "cvt.rmi.f32.f32")
F32_TO_32(cvt_rpi_f32_f32, "cvt.rpi.f32.f32")
F32_TO_32(cvt_rni_ftz_f32_f32, "cvt.rni.ftz.f32.f32")
F32_TO_32(cvt_rni_sat_f32_f32, "cvt.rni.sat.f32.f32")
F32_TO_32(cvt_ftz_f32_f32, "cvt.ftz.f32.f32")
F32_TO_32(cvt_sat_f32_f32, "cvt.sat.f32.f32")
F32_TO_32(cvt_rni_s32_f32, "cvt.rni.s32.f32")
F32_TO_32(cvt_rni_u32_f32, "cvt.rni.u32.f32")
F32_TO_16(cvt_rni_s16_f32, "cvt.rni.s16.f32")
F32_TO_16(cvt_rni_u16_f32, "cvt.rni.u16.f32")
F32_TO_64(cvt_rni_s64_f32, "cvt.rni.s64.f32")
F32_TO_64(cvt_rni_u64_f32, "cvt.rni.u64.f32")
F32_TO_32(cvt_rzi_s32_f32, "cvt.rzi.s32.f32")
F32_TO_32(cvt_rzi_u32_f32, "cvt.rzi.u32.f32")
F32_TO_16(cvt_rzi_s16_f32, "cvt.rzi.s16.f32")
F32_TO_16(cvt_rzi_u16_f32, "cvt.rzi.u16.f32")
F32_TO_64(cvt_rzi_s64_f32, "cvt.rzi.s64.f32")
F32_TO_64(cvt_rzi_u64_f32, "cvt.rzi.u64.f32")
F32_TO_32(cvt_rmi_s32_f32, "cvt.rmi.s32.f32")
F32_TO_32(cvt_rmi_u32_f32, "cvt.rmi.u32.f32")
F32_TO_16(cvt_rmi_s16_f32, "cvt.rmi.s16.f32")
F32_TO_16(cvt_rmi_u16_f32, "cvt.rmi.u16.f32")
F32_TO_64(cvt_rmi_s64_f32, "cvt.rmi.s64.f32")
F32_TO_64(cvt_rmi_u64_f32, "cvt.rmi.u64.f32")
F32_TO_32(cvt_rpi_s32_f32, "cvt.rpi.s32.f32")
F32_TO_32(cvt_rpi_u32_f32, "cvt.rpi.u32.f32")
F32_TO_16(cvt_rpi_s16_f32, "cvt.rpi.s16.f32")
F32_TO_16(cvt_rpi_u16_f32, "cvt.rpi.u16.f32")
F32_TO_64(cvt_rpi_s64_f32, "cvt.rpi.s64.f32")
F32_TO_64(cvt_rpi_u64_f32, "cvt.rpi.u64.f32")
F32_TO_32(cvt_rzi_s8_f32, "cvt.rzi.s8.f32")
F32_TO_32(cvt_rzi_u8_f32, "cvt.rzi.u8.f32")
F32_TO_32(cvt_rzi_ftz_s32_f32, "cvt.rzi.ftz.s32.f32")

// Every 32-bit integer to a float.
INT_TO_32(cvt_rn_f32_s32, "cvt.rn.f32.s32")
INT_TO_32(cvt_rn_f32_u32, "cvt.rn.f32.u32")
INT_TO_32(cvt_rz_f32_s32, "cvt.rz.f32.s32")
INT_TO_32(cvt_rz_f32_u32, "cvt.rz.f32.u32")
INT_TO_32(cvt_rm_f32_s32, "cvt.rm.f32.s32")
INT_TO_32(cvt_rm_f32_u32, "cvt.rm.f32.u32")
INT_TO_32(cvt_rp_f32_s32, "cvt.rp.f32.s32")
INT_TO_32(cvt_rp_f32_u32, "cvt.rp.f32.u32")
INT_TO_16(cvt_rn_f16_s32, "cvt.rn.f16.s32")
INT_TO_16(cvt_rn_bf16_s32, "cvt.rn.bf16.s32")
INT_TO_16(cvt_rn_f16_u32, "cvt.rn.f16.u32")
INT_TO_16(cvt_rn_bf16_u32, "cvt.rn.bf16.u32")

// Every f16, as the lower half of an f16x2, to a pair of FP8 codes; every pair of FP8 codes to f16x2.
F16_PAIR_TO_16(cvt_rn_satfinite_e4m3x2_f16x2, "cvt.rn.satfinite.e4m3x2.f16x2")
F16_PAIR_TO_16(cvt_rn_satfinite_relu_e4m3x2_f16x2, "cvt.rn.satfinite.relu.e4m3x2.f16x2")
F16_PAIR_TO_16(cvt_rn_satfinite_e5m2x2_f16x2, "cvt.rn.satfinite.e5m2x2.f16x2")
F16_PAIR_TO_16(cvt_rn_satfinite_relu_e5m2x2_f16x2, "cvt.rn.satfinite.relu.e5m2x2.f16x2")
FP8_PAIR_TO_32(cvt_rn_f16x2_e4m3x2, "cvt.rn.f16x2.e4m3x2")
FP8_PAIR_TO_32(cvt_rn_relu_f16x2_e4m3x2, "cvt.rn.relu.f16x2.e4m3x2")
FP8_PAIR_TO_32(cvt_rn_f16x2_e5m2x2, "cvt.rn.f16x2.e5m2x2")
FP8_PAIR_TO_32(cvt_rn_relu_f16x2_e5m2x2, "cvt.rn.relu.f16x2.e5m2x2")

// The conversions of NVIDIA's headers that are software on this chip.
HEADER_DIGEST(header_float_to_e4m3_satfinite, "cuda.satfinite.e4m3.f32", __nv_cvt_float_to_fp8(__uint_as_float(pattern), __NV_SATFINITE, __NV_E4M3))
HEADER_DIGEST(header_float_to_e4m3_nosat, "cuda.nosat.e4m3.f32", __nv_cvt_float_to_fp8(__uint_as_float(pattern), __NV_NOSAT, __NV_E4M3))
HEADER_DIGEST(header_float_to_e5m2_satfinite, "cuda.satfinite.e5m2.f32", __nv_cvt_float_to_fp8(__uint_as_float(pattern), __NV_SATFINITE, __NV_E5M2))
HEADER_DIGEST(header_float_to_e5m2_nosat, "cuda.nosat.e5m2.f32", __nv_cvt_float_to_fp8(__uint_as_float(pattern), __NV_NOSAT, __NV_E5M2))
HEADER_DIGEST(header_float_to_e2m3, "cuda.satfinite.e2m3.f32", __nv_cvt_float_to_fp6(__uint_as_float(pattern), __NV_E2M3, cudaRoundNearest))
HEADER_DIGEST(header_float_to_e3m2, "cuda.satfinite.e3m2.f32", __nv_cvt_float_to_fp6(__uint_as_float(pattern), __NV_E3M2, cudaRoundNearest))
HEADER_DIGEST(header_float_to_e2m1, "cuda.satfinite.e2m1.f32", __nv_cvt_float_to_fp4(__uint_as_float(pattern), __NV_E2M1, cudaRoundNearest))
HEADER_TABLE(header_half_to_e4m3_satfinite, "cuda.satfinite.e4m3.f16", __nv_cvt_halfraw_to_fp8(half_raw(pattern), __NV_SATFINITE, __NV_E4M3))
HEADER_TABLE(header_half_to_e4m3_nosat, "cuda.nosat.e4m3.f16", __nv_cvt_halfraw_to_fp8(half_raw(pattern), __NV_NOSAT, __NV_E4M3))
HEADER_TABLE(header_half_to_e5m2_satfinite, "cuda.satfinite.e5m2.f16", __nv_cvt_halfraw_to_fp8(half_raw(pattern), __NV_SATFINITE, __NV_E5M2))
HEADER_TABLE(header_half_to_e5m2_nosat, "cuda.nosat.e5m2.f16", __nv_cvt_halfraw_to_fp8(half_raw(pattern), __NV_NOSAT, __NV_E5M2))
HEADER_TABLE(header_half_to_e2m3, "cuda.satfinite.e2m3.f16", __nv_cvt_halfraw_to_fp6(half_raw(pattern), __NV_E2M3, cudaRoundNearest))
HEADER_TABLE(header_half_to_e3m2, "cuda.satfinite.e3m2.f16", __nv_cvt_halfraw_to_fp6(half_raw(pattern), __NV_E3M2, cudaRoundNearest))
HEADER_TABLE(header_half_to_e2m1, "cuda.satfinite.e2m1.f16", __nv_cvt_halfraw_to_fp4(half_raw(pattern), __NV_E2M1, cudaRoundNearest))
HEADER_TABLE(header_bf16_to_e4m3_satfinite, "cuda.satfinite.e4m3.bf16", __nv_cvt_bfloat16raw_to_fp8(bf16_raw(pattern), __NV_SATFINITE, __NV_E4M3))
HEADER_TABLE(header_bf16_to_e4m3_nosat, "cuda.nosat.e4m3.bf16", __nv_cvt_bfloat16raw_to_fp8(bf16_raw(pattern), __NV_NOSAT, __NV_E4M3))
HEADER_TABLE(header_bf16_to_e5m2_satfinite, "cuda.satfinite.e5m2.bf16", __nv_cvt_bfloat16raw_to_fp8(bf16_raw(pattern), __NV_SATFINITE, __NV_E5M2))
HEADER_TABLE(header_bf16_to_e5m2_nosat, "cuda.nosat.e5m2.bf16", __nv_cvt_bfloat16raw_to_fp8(bf16_raw(pattern), __NV_NOSAT, __NV_E5M2))
HEADER_TABLE(header_bf16_to_e2m3, "cuda.satfinite.e2m3.bf16", __nv_cvt_bfloat16raw_to_fp6(bf16_raw(pattern), __NV_E2M3, cudaRoundNearest))
HEADER_TABLE(header_bf16_to_e3m2, "cuda.satfinite.e3m2.bf16", __nv_cvt_bfloat16raw_to_fp6(bf16_raw(pattern), __NV_E3M2, cudaRoundNearest))
HEADER_TABLE(header_bf16_to_e2m1, "cuda.satfinite.e2m1.bf16", __nv_cvt_bfloat16raw_to_fp4(bf16_raw(pattern), __NV_E2M1, cudaRoundNearest))
HEADER_DIGEST(header_float_to_e8m0_rz_satfinite, "cuda.satfinite.rz.e8m0.f32", __nv_cvt_float_to_e8m0(__uint_as_float(pattern), __NV_SATFINITE, cudaRoundZero))
HEADER_DIGEST(header_float_to_e8m0_rz_nosat, "cuda.nosat.rz.e8m0.f32", __nv_cvt_float_to_e8m0(__uint_as_float(pattern), __NV_NOSAT, cudaRoundZero))
HEADER_DIGEST(header_float_to_e8m0_rp_satfinite, "cuda.satfinite.rp.e8m0.f32", __nv_cvt_float_to_e8m0(__uint_as_float(pattern), __NV_SATFINITE, cudaRoundPosInf))
HEADER_DIGEST(header_float_to_e8m0_rp_nosat, "cuda.nosat.rp.e8m0.f32", __nv_cvt_float_to_e8m0(__uint_as_float(pattern), __NV_NOSAT, cudaRoundPosInf))
HEADER_TABLE(header_bf16_to_e8m0_rz_satfinite, "cuda.satfinite.rz.e8m0.bf16", __nv_cvt_bfloat16raw_to_e8m0(bf16_raw(pattern), __NV_SATFINITE, cudaRoundZero))
HEADER_TABLE(header_bf16_to_e8m0_rz_nosat, "cuda.nosat.rz.e8m0.bf16", __nv_cvt_bfloat16raw_to_e8m0(bf16_raw(pattern), __NV_NOSAT, cudaRoundZero))
HEADER_TABLE(header_bf16_to_e8m0_rp_satfinite, "cuda.satfinite.rp.e8m0.bf16", __nv_cvt_bfloat16raw_to_e8m0(bf16_raw(pattern), __NV_SATFINITE, cudaRoundPosInf))
HEADER_TABLE(header_bf16_to_e8m0_rp_nosat, "cuda.nosat.rp.e8m0.bf16", __nv_cvt_bfloat16raw_to_e8m0(bf16_raw(pattern), __NV_NOSAT, cudaRoundPosInf))
HEADER_TABLE(header_e8m0_to_bf16, "cuda.decode.e8m0.bf16", __nv_cvt_e8m0_to_bf16raw(pattern & 0xFF).x)
HEADER_TABLE(header_e2m3_to_half, "cuda.decode.e2m3.f16", __nv_cvt_fp6_to_halfraw(pattern & 0x3F, __NV_E2M3).x)
HEADER_TABLE(header_e3m2_to_half, "cuda.decode.e3m2.f16", __nv_cvt_fp6_to_halfraw(pattern & 0x3F, __NV_E3M2).x)
HEADER_TABLE(header_e2m1_to_half, "cuda.decode.e2m1.f16", __nv_cvt_fp4_to_halfraw(pattern & 0xF, __NV_E2M1).x)
