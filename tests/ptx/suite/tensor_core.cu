// Products of tcgen05.mma and what may go on beside them: rows of A that no result needs.
#include "suite.cuh"

#define FIRST_WARP if (threadIdx.x < 32)
#define FIRST if (threadIdx.x == 0)
#define BULK(to, from, bytes, bar) \
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" \
               ::"r"(AT(to)), "l"(from), "r"(bytes), "r"(AT(bar)) : "memory")
#define EXPECT(bar, bytes) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(AT(bar)), "n"(bytes) : "memory")
#define COME(bar) \
  asm volatile("{.reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra W;}" ::"r"(AT(bar)) : "memory")
#define WORD(tile) ((AT(tile) & 0x3ffffull) >> 4 | (128ull >> 4) << 16 | (256ull >> 4) << 32 | 1ull << 46)
#define MULTIPLY(d, a, b) \
  asm volatile("{.reg .pred p; setp.ne.u32 p, 0, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;}" \
               ::"r"(d), "l"(WORD(a)), "l"(WORD(b)), "r"(FORM) : "memory")
#define COMMIT_PRODUCTS(bar) \
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(AT(bar)) : "memory")
#define BEFORE_SYNC() asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory")
#define AFTER_SYNC() asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory")

constexpr unsigned ONES = 0x3f803f80, TWOS = 0x40004000;                          // pairs of bf16
constexpr unsigned FORM = 1 << 4 | 1 << 7 | 1 << 10 | (16 / 8) << 17 | (128 / 16) << 24;  // f32 = bf16 * bf16, 128 by 16
constexpr int A_WORDS = 1024, B_WORDS = 128;  // 128 and 16 rows of 16 elements, as core matrices

// Operands of ones, two mbarriers with one arrival each, and 32 columns for D. All threads call it.
__device__ unsigned prepare(unsigned* a, unsigned* b, unsigned long long* bars, unsigned* base) {
  for (int i = threadIdx.x; i < A_WORDS; i += 128) a[i] = ONES;
  b[threadIdx.x % B_WORDS] = ONES;
  FIRST_WARP asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(AT(base)) : "memory");
  FIRST for (int i = 0; i < 2; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(AT(bars + i)) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  BEFORE_SYNC();
  __syncthreads();
  AFTER_SYNC();
  return *base;
}

// Each warp loads 32 rows of D, stores their first column if it is the chosen warp, and the columns are given back.
__device__ void finish(unsigned d, unsigned chosen, unsigned* out) {
  AFTER_SYNC();
  float value;
  const unsigned t = threadIdx.x;
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];\n tcgen05.wait::ld.sync.aligned;"
               : "=f"(value) : "r"(d + ((t / 32 * 32) << 16)) : "memory");
  if (t / 32 == chosen) out[t % 32] = value;
  BEFORE_SYNC();
  __syncthreads();
  FIRST_WARP asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(d) : "memory");
}

// The first 32 rows of A are this stage's. A copy for the next stage may still fill the others, whose results are dropped.
template <int LESS> __global__ void tensor_padding_rows(ARGS) {
  __shared__ __align__(1024) unsigned a[A_WORDS], b[B_WORDS];
  __shared__ __align__(8) unsigned long long bars[2];
  __shared__ unsigned base;
  const unsigned d = prepare(a, b, bars, &base);
  FIRST {
    EXPECT(bars, 768);
    BULK(a + A_WORDS / 4, in, 768, bars);  // A1
    MULTIPLY(d, a, b);  // B1
    COMMIT_PRODUCTS(bars + 1);
  }
  COME(bars + 1);
  finish(d, LESS == 1, out);
  COME(bars);
}
LESS_1(tensor_padding_rows)

// The copy of the next stage begins while the product reads.
template <int LESS> __global__ void tensor_padding_rows_in_flight(ARGS) {
  __shared__ __align__(1024) unsigned a[A_WORDS], b[B_WORDS];
  __shared__ __align__(8) unsigned long long bars[2];
  __shared__ unsigned base;
  const unsigned d = prepare(a, b, bars, &base);
  FIRST {
    MULTIPLY(d, a, b);  // A1
    COMMIT_PRODUCTS(bars + 1);
    EXPECT(bars, 768);
    BULK(a + A_WORDS / 4, in, 768, bars);  // B1
  }
  COME(bars + 1);
  finish(d, LESS == 1, out);
  COME(bars);
}
LESS_1(tensor_padding_rows_in_flight)

// Another warp stores rows of A with no order to the product.
template <int LESS> __global__ void tensor_padding_rows_stored(ARGS) {
  __shared__ __align__(1024) unsigned a[A_WORDS], b[B_WORDS];
  __shared__ __align__(8) unsigned long long bars[2];
  __shared__ unsigned base;
  const unsigned t = threadIdx.x, d = prepare(a, b, bars, &base);
  FIRST {
    MULTIPLY(d, a, b);  // A1
    COMMIT_PRODUCTS(bars + 1);
  }
  if (t >= 96) a[A_WORDS / 4 + t - 96] = TWOS;  // B1
  COME(bars + 1);
  finish(d, LESS == 1, out);
}
LESS_1(tensor_padding_rows_stored)
