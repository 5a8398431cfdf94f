// RoPE of keys, then E4M3 into a paged KV cache: the first half of a head turns with the second half.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

constexpr unsigned kDepth = 64, kHalf = kDepth / 2, kPage = 16;

// keys [tokens][heads][64] bf16; cosines and sines [tokens][32] float; slots [tokens], the place of each token;
// inverse_scales [heads]; cache [pages][heads][16][64], rotated [tokens][heads][64] bf16. A warp has one head of a token.
extern "C" __global__ void rope_cache(const __nv_bfloat16* keys, const float* cosines, const float* sines,
                                      const int* slots, const float* inverse_scales, __nv_fp8_storage_t* cache,
                                      __nv_bfloat16* rotated, unsigned heads) {
  const unsigned token = blockIdx.x, head = threadIdx.x / 32, pair = threadIdx.x % 32;
  const unsigned from = (token * heads + head) * kDepth;
  const unsigned first = pair, second = pair + kHalf;
  const float x = __bfloat162float(keys[from + first]), y = __bfloat162float(keys[from + second]);
  const float c = cosines[token * kHalf + pair], s = sines[token * kHalf + pair];
  const float turned_x = __fsub_rn(__fmul_rn(x, c), __fmul_rn(y, s));
  const float turned_y = __fadd_rn(__fmul_rn(y, c), __fmul_rn(x, s));
  rotated[from + first] = __float2bfloat16_rn(turned_x);
  rotated[from + second] = __float2bfloat16_rn(turned_y);
  const unsigned slot = slots[token], page = slot / kPage, row = slot % kPage;
  const unsigned to = ((page * heads + head) * kPage + row) * kDepth;
  const float scale = inverse_scales[head];
  cache[to + first] = __nv_cvt_float_to_fp8(__fmul_rn(turned_x, scale), __NV_SATFINITE, __NV_E4M3);
  cache[to + second] = __nv_cvt_float_to_fp8(__fmul_rn(turned_y, scale), __NV_SATFINITE, __NV_E4M3);
}
