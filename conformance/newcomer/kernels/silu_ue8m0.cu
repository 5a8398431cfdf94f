// SiLU, then E4M3 with one UE8M0 scale for each 32 columns: the least power of two with amax / scale <= 448.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

// e^x without ex2.approx, whose bits no document fixes: x = k ln 2 + r, a polynomial of degree 6 in r, every step an FMA.
__device__ float exponential(float x) {
  const float k = rintf(__fmul_rn(x, 1.44269502f));
  const float r = fmaf(k, 2.12194442e-4f, fmaf(k, -0.693359375f, x));
  float p = 1.38888892e-3f;
  p = fmaf(p, r, 8.33333377e-3f);
  p = fmaf(p, r, 4.16666679e-2f);
  p = fmaf(p, r, 0.166666672f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  return __fmul_rn(p, __int_as_float((static_cast<int>(k) + 127) << 23));
}

__device__ float silu(float x) {
  const float e = exponential(fminf(fmaxf(-x, -87.0f), 87.0f));
  return __fdiv_rn(x, __fadd_rn(1.0f, e));
}

// A warp a group; NaN does not count for the scale.
extern "C" __global__ void silu_ue8m0(const __nv_bfloat16* x, __nv_fp8_storage_t* q, unsigned char* scales,
                                      unsigned groups) {
  const unsigned group = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  if (group >= groups) return;
  const float y = silu(__bfloat162float(x[group * 32 + lane]));
  float amax = isnan(y) ? 0.0f : fabsf(y);
  for (unsigned offset = 16; offset > 0; offset /= 2) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, offset));
  const unsigned char e = __nv_cvt_float_to_e8m0(__fdiv_rn(amax, 448.0f), __NV_SATFINITE, cudaRoundPosInf);
  const float scale = __int_as_float(e == 0 ? 0x00400000 : e << 23);
  const float v = __fdiv_rn(y, scale);
  q[group * 32 + lane] = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
  if (lane == 0) scales[group] = e;
}
