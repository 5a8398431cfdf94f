// Words of shared memory that nobody wrote, and a product of tensor cores in a cluster: each block reads its own memory.
#include "suite.cuh"

#define BF16 0x3f803f80u
#define DESCRIPTOR(at) \
  ((unsigned long long)((AT(at) & 0x3ffff) >> 4) | (unsigned long long)(128 >> 4) << 16 | (unsigned long long)(256 >> 4) << 32)
#define MEET() asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory")
#define MULTIPLY(d, a, b)                                                                                            \
  asm volatile("wgmma.fence.sync.aligned;\n wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, "   \
               "%4, %5, 0, 1, 1, 0, 0;\n wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;"         \
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "l"(a), "l"(b) : "memory")

// The first block fills all but a column of its B, the second block all of its own; LESS 1: the other way round.
template <int LESS> __global__ void __cluster_dims__(2, 1, 1) product_of_own_block(ARGS) {
  __shared__ __align__(1024) unsigned a[512], b[64];
  unsigned rank, spare;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const unsigned t = threadIdx.x;
  for (unsigned i = t; i < 512; i += 128) a[i] = BF16;
  if (t < 64 && (rank != LESS || t % 32 >= 4)) b[t] = BF16;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  MEET();
  float d[4];
  MULTIPLY(d, DESCRIPTOR(a), DESCRIPTOR(b));  // A1
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(spare) : "r"(AT(b)) : "memory");
  if (rank == 1) out[t] = static_cast<unsigned>(d[0] + d[1] + d[2] + d[3]);  // B1
  MEET();
}
LESS_1(product_of_own_block)
