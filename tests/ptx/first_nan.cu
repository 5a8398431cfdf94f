// Kernels whose output holds NaN or infinities, for test_first_nan.py. A mark names the line where they are made.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define T threadIdx.x
#define KERNEL(name) extern "C" __global__ void name(const float* x, float* y)

KERNEL(softcap) {
    const float v = x[T] * 4.0f;
    const float p = __expf(v),  // softcap: born
        m = __expf(-v);
    y[T] = (p - m) / (p + m);
}

KERNEL(product) {
    float v = x[T] + 0.0f;
    y[T] = v * 1e38f;  // product: born
}

KERNEL(quotient) {
    float v = x[T] - 4.0f;
    v = x[T] / v;  // quotient: born
    y[T] = v;
}

KERNEL(reciprocal) {
    float v = x[T] - 7.0f;
    v = __frcp_rn(v);  // reciprocal: born
    y[T] = v;
}

KERNEL(root) {
    float v = x[T] - 1.0f;
    v = rsqrtf(v);  // root: born
    y[T] = v * 2.0f;
}

KERNEL(logarithm) {
    float v = x[T] - 2.0f;
    v = __log2f(v);  // logarithm: born
    y[T] = v;
}

KERNEL(fused) {
    float v = x[T] + 1.0f;
    v = fmaf(v, 1e38f, -x[T]);  // fused: born
    y[T] = v;
}

extern "C" __global__ void twice(const double* x, double* y) {
    double v = x[T] * 1e306;
    v = v * 8.0;  // twice: born
    y[T] = v;
}

KERNEL(half_sum) {
    __half h = __float2half_rn(x[T] * 2000.0f);
    h = __hadd(h, h);  // half_sum: born
    y[T] = __half2float(h);
}

extern "C" __global__ void to_half(const float* x, __half* y) {
    float v = x[T] * 3000.0f;
    y[T] = __float2half_rn(v);  // to_half: born
}

KERNEL(bfloat) {
    __nv_bfloat16 b = __float2bfloat16_rn(x[T] * 1e18f);
    b = __hmul(b, b);  // bfloat: born
    y[T] = __bfloat162float(b);
}

KERNEL(upper_half) {
    __half2 h = __floats2half2_rn(1.0f, x[T] * 2000.0f);
    h = __hmul2(h, __float2half2_rn(2.0f));  // upper_half: born
    y[T] = __high2float(h);
    y[T + 32] = __low2float(h);
}

KERNEL(pair_of_bfloats) {
    __nv_bfloat162 b = __floats2bfloat162_rn(x[T] * 1e37f, 1.0f);
    b = __hfma2(b, __float2bfloat162_rn(4.0f), b);  // pair_of_bfloats: born
    y[T] = __low2float(b);
}

KERNEL(loop) {
    float v = 1.0f;
#pragma unroll 1
    for (int i = 0; i < T; i++)
        v = v * 1e10f;  // loop: born
    y[T] = v;
}

KERNEL(handed_over) {
    __shared__ float tile[32];
    float v = x[T] * 2e37f;  // handed_over: born
    tile[T] = v;
    __syncthreads();
    y[T] = tile[(T + 1) % 32] - 1.0f;
}

KERNEL(shuffled) {
    float v = x[T];
    if (T == 3)
        v = v * 2e38f;  // shuffled: born
    for (int i = 16; i; i /= 2)
        v += __shfl_xor_sync(~0u, v, i);
    y[T] = v;
}

KERNEL(diverged) {
    float v = x[T];
    if (T & 1) {
        for (int i = 0; i < T; i++)
            v += 1.0f;
        asm volatile("mul.f32 %0, %0, 0f7e967699;" : "+f"(v));  // diverged: born
    }
    y[T] = v;
}

KERNEL(guarded) {
    float v = x[T];
    asm("{.reg .pred p; setp.gt.f32 p, %0, 0f41a00000; @p mul.f32 %0, %0, 0f7f000000;}" : "+f"(v));  // guarded: born
    y[T] = v;
}

KERNEL(atomic) {
    float v = x[T] * 1e37f;
    float old = atomicAdd(y, v);  // atomic: born
    y[T + 32] = old;
}

KERNEL(reduction) {
    float v = x[T] * 1e37f;
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(y + T / 16), "f"(v) : "memory");  // reduction: born
}

KERNEL(vectors) {
    float4 v = ((const float4*)x)[T % 8];
    v.z = v.z * 1e38f;  // vectors: born
    if (T < 8) ((float4*)y)[T] = v;
}

__device__ __noinline__ float square(float v) {
    return v * v;  // called: born
}
KERNEL(called) {
    y[T] = square(x[T] * 1e18f);
}

KERNEL(warp_product) {
    __nv_bfloat162 v = __floats2bfloat162_rn(1e19f, 1e19f);
    unsigned w = *(unsigned*)&v, a = T / 4 == 2 ? w : 0;
    float c[4] = {3e38f, 1, 2, 3};
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a), "r"(w));  // warp_product: born
    for (int i = 0; i < 4; i++) y[4 * T + i] = c[i];
}

KERNEL(unknown_bits) {
    int bits = 0x7f800000 + (int)T * 4;  // unknown_bits: integer bits
    y[T] = __int_as_float(bits) + 1.0f;
}

KERNEL(masked_row) {
    float m = T < 8 ? -INFINITY : x[T];
    float s = m - (T < 8 ? m : 0.0f);    // masked_row: NaN of infinities
    y[T] = __expf(s);
}

KERNEL(masks) {
    y[T] = T < 8 ? -INFINITY : x[T];
}

KERNEL(given) {
    y[T] = x[T] + 1.0f;  // given: passed on
}

KERNEL(copied) {
    __shared__ float tile[32];
    unsigned to = __cvta_generic_to_shared(tile + T);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + T));
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    y[T] = tile[31 - T] * 2.0f;  // copied: passed on
}

extern "C" __global__ void codes(const unsigned char* x, float* y) {
    __half_raw h = __nv_cvt_fp8_to_halfraw(x[T], __NV_E4M3);  // codes: passed on
    y[T] = __half2float(__half(h)) + 1.0f;
}

extern "C" __global__ void to_codes(const float* x, unsigned char* y) {
    float v = x[T] * 2e37f;                                 // to_codes: born
    v = v - v;                                              // to_codes: NaN of infinities
    y[T] = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
}

extern "C" __global__ void overflowing_codes(const float* x, unsigned char* y) {
    y[T] = __nv_cvt_float_to_fp8(x[T] * 100.0f, __NV_NOSAT, __NV_E4M3);
}

KERNEL(unused) {
    float v = x[T] * 1e38f;
    asm volatile("" ::"f"(v));
    y[T] = isinf(v) ? 0.0f : v;
}

KERNEL(maximum) {
    float m = -INFINITY;
    for (int i = 0; i < 4; i++) m = fmaxf(m, x[i]);
    y[T] = m;
}

KERNEL(vanishing) {
    float v = (x[T] + 1.0f) * 3e38f;
    y[T] = 1.0f / v;
}

extern "C" __global__ void integers(const int* x, int* y) {
    y[T] = min(0x7fffffff, x[T] | 0x7f800000);
}

KERNEL(replaced) {
    y[T] = isnan(x[T]) ? 1.0f : x[T];
}

KERNEL(masked_sum) {
    float m = T < 8 ? -INFINITY : x[T];
    y[T] = __expf(m - 40.0f);
}

KERNEL(overwritten) {
    y[T] = x[T] * 3e38f;
    __syncthreads();
    y[T] = 1.0f;
}

KERNEL(never_guarded) {
    float v = x[T] * 1e38f;  // never_guarded: born
    asm("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p mul.f32 %0, %0, 0f7f000000;}" : "+f"(v));
    y[T] = v;
}

KERNEL(halves) {
    __half2 h = __floats2half2_rn(1.0f, x[T] * 2000.0f);
    h = __hmul2(h, __float2half2_rn(2.0f));  // halves: born
    unsigned bits = *(unsigned*)&h;
    ((unsigned short*)y)[T] = bits;
    ((unsigned short*)y)[T + 32] = bits >> 16;
}

#define PRODUCT(types, d, c)                                                                                        \
    "mma.sync.aligned.m16n8k16.row.col." types " {" d "}, {%4, %5, %6, %7}, {%8, %8}, {" c "};"

extern "C" __global__ void given_product(const unsigned* x, float* y) {
    float c[4] = {0, 1, 2, 3};
    asm volatile(PRODUCT("f32.bf16.bf16.f32", "%0, %1, %2, %3", "%0, %1, %2, %3")
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(x[T]), "r"(x[T + 32]), "r"(x[T + 64]), "r"(x[T + 96]), "r"(0x3f803f80));
    for (int i = 0; i < 4; i++) y[4 * T + i] = c[i];
}

extern "C" __global__ void half_product(const float* x, __half* y) {
    __half2 h = __float2half2_rn(T == 5 ? 250.0f : 1.0f);
    unsigned w = *(unsigned*)&h, d[2];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %2, %2, %2}, {%2, %2}, {%3, %3};"
                 : "=r"(d[0]), "=r"(d[1]) : "r"(w), "r"(0x7bff0000));  // half_product: born
    for (int i = 0; i < 2; i++) ((unsigned*)y)[2 * T + i] = d[i];
}

extern "C" __global__ void code_pairs(const unsigned short* x, float* y) {
    __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(x[T], __NV_E4M3);
    y[2 * T] = __half2float(__half2(h).x);
    y[2 * T + 1] = __half2float(__half2(h).y);
}

KERNEL(stale_half) {
    __shared__ alignas(4) unsigned short tile[64];
    __half h = __float2half_rn(x[T] * 1e6f + 1e6f);  // stale_half: born
    tile[T] = __half_as_ushort(h);
    __syncthreads();
    if (T % 2 == 0) tile[T] = 0;
    __syncthreads();
    unsigned pair, at = __cvta_generic_to_shared(tile + T / 2 * 2);
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(at) : "memory");
    y[T] = __half2float(__ushort_as_half(pair >> 16));
}

KERNEL(atomic_found) {
    __shared__ float sum;
    if (T == 0) sum = 0.0f;
    __syncthreads();
    y[T] = atomicAdd(&sum, x[T] * 1e37f);  // atomic_found: born
}

KERNEL(vanishing_bits) {
    float v = (x[T] + 2.0f) * 3e38f;
    v = 1.0f / v + x[T];
    ((unsigned short*)y)[T] = __float_as_uint(v) >> 16;
}

extern "C" __global__ void many_blocks(const float* x, float* y) {
    float v = x[T];
    if (blockIdx.x == 1500) asm volatile("mul.f32 %0, %0, 0f7e967699;" : "+f"(v));  // many_blocks: born
    y[blockIdx.x * 32 + T] = v;
}
