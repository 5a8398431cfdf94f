// Words of shared memory that nobody wrote, on their way through tensor memory.
#include "suite.cuh"

#define FIRST_WARP if (threadIdx.x < 32)
#define FIRST if (threadIdx.x == 0)
#define COPY_ROWS(to, word) asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(word) : "memory")
#define LOAD_4(d, at)                                                                             \
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%0, %1, %2, %3}, [%4];\n"                   \
               " tcgen05.wait::ld.sync.aligned;"                                                    \
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(at) : "memory")

// Of each chunk of 16 bytes the first two words were written, and the first two columns are stored; LESS 1 stores a third.
template <int LESS> __global__ void words_of_a_chunk(ARGS) {
  __shared__ __align__(1024) unsigned rows[128];
  __shared__ __align__(8) unsigned long long done;
  __shared__ unsigned base;
  const unsigned t = threadIdx.x;
  FIRST_WARP {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(AT(&base)) : "memory");
    rows[4 * t] = in[2 * t];
    rows[4 * t + 1] = in[2 * t + 1];
  }
  FIRST asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(AT(&done)) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  const unsigned to = base;
  FIRST {
    const unsigned long long word = (unsigned long long)((AT(rows) & 0x3ffff) >> 4) | 1ull << 16 | 8ull << 32 | 1ull << 46;
    COPY_ROWS(to, word);  // A1
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(AT(&done)) : "memory");
  }
  asm volatile("{.reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra W;}" ::"r"(AT(&done)) : "memory");
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  unsigned d[4];
  LOAD_4(d, to + ((t / 32 * 32) << 16));
  for (unsigned i = 0; i < (LESS == 1 ? 3 : 2); ++i) out[4 * t + i] = d[i];  // B1
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncthreads();
  FIRST_WARP asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(to) : "memory");
}
LESS_1(words_of_a_chunk)
