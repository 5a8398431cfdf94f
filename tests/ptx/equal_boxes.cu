// Every thread of a warp, or of a block, stores one tile by one instruction. MISTAKE: 0 none, 1 no proxy fence, 2 only
// thread 0 waits before the tile is written again, 3 nobody waits, 4 two blocks store different tiles to one place.
struct alignas(64) Map {
  char bytes[128];
};

extern "C" __global__ void __launch_bounds__(64) tiles(const __grid_constant__ Map map, int mistake, int threads) {
  extern __shared__ __align__(128) unsigned short tile[];
  unsigned at = (unsigned)__cvta_generic_to_shared(tile);
  for (int step = 0; step < 2; ++step) {
    for (int i = threadIdx.x; i < 32 * 16; i += 64) tile[i] = i + step + 7 * blockIdx.x;
    if (mistake != 1) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x < threads) {
      int row = 32 * step + (mistake == 4 ? 0 : 64 * blockIdx.x);
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
                   "cp.async.bulk.commit_group;" ::"l"(&map), "r"(0), "r"(row), "r"(at) : "memory");
      if (mistake != 3 && (mistake != 2 || threadIdx.x == 0)) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    __syncthreads();
  }
}
