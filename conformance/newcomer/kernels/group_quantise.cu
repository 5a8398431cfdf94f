// INT8 by rows with cooperative groups: scale = amax / 127, q = x / scale to nearest even; a NaN makes its row's scale NaN.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;
constexpr unsigned kWarps = 4;

extern "C" __global__ void __launch_bounds__(32 * kWarps)
    group_quantise(const float* x, signed char* q, float* scales, unsigned columns) {
  __shared__ unsigned largest[kWarps];
  const cg::thread_block block = cg::this_thread_block();
  const cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  const float* mine = x + blockIdx.x * columns;

  // Patterns of magnitudes order as their values do, and those of NaN are the largest.
  unsigned amax = 0;
  for (unsigned column = block.thread_rank(); column < columns; column += block.size())
    amax = max(amax, __float_as_uint(mine[column]) & 0x7fffffffu);
  amax = cg::reduce(warp, amax, cg::greater<unsigned>());
  if (warp.thread_rank() == 0) largest[warp.meta_group_rank()] = amax;
  block.sync();
  for (unsigned other = 0; other < kWarps; ++other) amax = max(amax, largest[other]);

  const float scale = __fdiv_rn(__uint_as_float(amax), 127.0f);
  for (unsigned column = block.thread_rank(); column < columns; column += block.size()) {
    const int rounded = scale == 0.0f ? 0 : __float2int_rn(__fdiv_rn(mine[column], scale));
    q[blockIdx.x * columns + column] = static_cast<signed char>(min(max(rounded, -127), 127));
  }
  if (block.thread_rank() == 0) scales[blockIdx.x] = scale;
}
