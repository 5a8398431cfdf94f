// Products of warpgroups (wgmma) and what may go on beside them: operands filled again, rows that no result needs, moves.
#include "suite.cuh"

#define WORD(tile, across, down) \
  ((static_cast<unsigned long long>(AT(tile)) >> 4) | (across >> 4) << 16 | static_cast<unsigned long long>(down >> 4) << 32)
#define MULTIPLY(d, a, b) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 0, 1, 1, 0, 0;" \
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "l"(WORD(a, 128, 256)), "l"(WORD(b, 128, 256)) : "memory")
#define BEGIN_PRODUCTS() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define END_GROUP() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define WAIT_GROUP(groups) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory")
#define MOVE(to, from) asm volatile("mov.f32 %0, %1;" : "=f"(to) : "f"(from))
#define BULK(to, from, bytes, bar) \
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" \
               ::"r"(AT(to)), "l"(from), "r"(bytes), "r"(AT(bar)) : "memory")
#define SHOW_OPERANDS() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")

constexpr unsigned ONES = 0x3f803f80, TWOS = 0x40004000;  // pairs of bf16
constexpr int A_WORDS = 512, B_WORDS = 64;                // 64 and 8 rows of 16 elements, as core matrices

template <int WORDS> __device__ void fill(unsigned* tile, unsigned word, unsigned thread) {
  for (unsigned i = thread; i < WORDS; i += 128) tile[i] = word;
}

// The threads of a warpgroup that have waited copy what the next product reads, with no barrier before.
template <int LESS> __global__ void copied_behind_wait(ARGS) {
  __shared__ __align__(1024) unsigned a[A_WORDS], b[B_WORDS];
  const unsigned t = threadIdx.x;
  float d[4], e[4];
  work[t] = TWOS;
  fill<A_WORDS>(a, ONES, t);
  fill<B_WORDS>(b, ONES, t);
  SHOW_OPERANDS();
  __syncthreads();
  BEGIN_PRODUCTS();
  MULTIPLY(d, a, b);  // A1
  END_GROUP();
  WAIT_GROUP(LESS == 1);
  COPY(a + t, work + t);  // B1
  WAIT_ALL();
  SHOW_OPERANDS();
  __syncthreads();
  BEGIN_PRODUCTS();
  MULTIPLY(e, a, b);
  END_GROUP();
  WAIT_GROUP(0);
  out[t] = d[0] + d[1] + d[2] + d[3] + 4 * (t < 32 ? e[0] : e[2]);
}
LESS_1(copied_behind_wait)

// Each warpgroup has an A of its own and fills it again; nothing orders it behind the other one's product.
template <int LESS> __global__ void stored_behind_wait(ARGS) {
  __shared__ __align__(1024) unsigned a[2][A_WORDS], b[B_WORDS];
  const unsigned t = threadIdx.x, group = t / 128;
  float d[4], e[4], f[4];
  fill<A_WORDS>(a[group], ONES, t % 128);
  if (group == 0) fill<B_WORDS>(b, ONES, t);
  SHOW_OPERANDS();
  __syncthreads();
  BEGIN_PRODUCTS();
  MULTIPLY(e, a[group], a[group]);  // A1
  MULTIPLY(d, a[group], b);
  END_GROUP();
  WAIT_GROUP(0);
  unsigned* next = a[LESS == 1 ? 1 - group : group];
#pragma unroll 1
  for (unsigned i = 127 - t % 128; i < A_WORDS; i += 128) next[i] = TWOS;  // B1
  SHOW_OPERANDS();
  __syncthreads();
  BEGIN_PRODUCTS();
  MULTIPLY(f, a[group], b);
  END_GROUP();
  WAIT_GROUP(0);
  out[t] = d[0] + d[3] + e[0] + f[3];
}
LESS_1(stored_behind_wait)

// Copies of accumulators between commit and wait, which ptxas removes; what is computed of them comes behind the wait.
template <int LESS> __global__ void moved_in_flight(ARGS) {
  __shared__ __align__(1024) unsigned a[A_WORDS], b[B_WORDS];
  const unsigned t = threadIdx.x;
  float d[4], e[4], f[4];
  fill<A_WORDS>(a, ONES, t);
  fill<B_WORDS>(b, ONES, t);
  SHOW_OPERANDS();
  __syncthreads();
  BEGIN_PRODUCTS();
  MULTIPLY(d, a, b);  // A1
  END_GROUP();
  for (int i = 0; i < 4; ++i) MOVE(e[i], d[i]);
  for (int i = 0; i < 4; ++i) MOVE(f[i], e[3 - i]);
  WAIT_GROUP(LESS == 1);
  out[t] = f[0] + f[3] + e[1];  // B1
  WAIT_GROUP(0);
}
LESS_1(moved_in_flight)

// Rows 16 to 63 of A lie where a copy engine still writes, or other warps store; the results of these rows are dropped.
template <int LESS> __global__ void padding_rows(ARGS) {
  __shared__ __align__(1024) unsigned a[A_WORDS], b[B_WORDS];
  __shared__ unsigned long long full;
  const unsigned t = threadIdx.x;
  float d[4];
  if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(AT(&full)) : "memory");
  fill<A_WORDS / 4>(a, ONES, t);
  fill<B_WORDS>(b, ONES, t);
  SHOW_OPERANDS();
  __syncthreads();
  if (t == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1536;" ::"r"(AT(&full)) : "memory");
    BULK(a + A_WORDS / 4, in, 512, &full);       // A1
    BULK(a + A_WORDS / 2, in + 128, 512, &full);
    BULK(a + A_WORDS * 3 / 4, in, 512, &full);
  }
  __syncthreads();
  BEGIN_PRODUCTS();
  MULTIPLY(d, a, b);  // B1
  END_GROUP();
  WAIT_GROUP(0);
  if (t / 32 == (LESS == 1)) out[t % 32] = d[0] + d[3];
  unsigned done;
  do asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
                  : "=r"(done) : "r"(AT(&full)) : "memory");
  while (!done);
}
LESS_1(padding_rows)

// A second warpgroup stores rows that the first one's product reads, with no order; their results are dropped.
template <int LESS> __global__ void stored_padding_rows(ARGS) {
  __shared__ __align__(1024) unsigned a[A_WORDS], b[B_WORDS];
  const unsigned t = threadIdx.x;
  float d[4];
  if (t < 128) fill<A_WORDS>(a, ONES, t);
  if (t < 128) fill<B_WORDS>(b, ONES, t);
  SHOW_OPERANDS();
  __syncthreads();
  if (t >= 128) {
    for (int i = LESS == 1 ? 0 : 128; i < A_WORDS; i += 128) a[i + t - 128] = TWOS;  // A1
    return;
  }
  BEGIN_PRODUCTS();
  MULTIPLY(d, a, b);  // B1
  END_GROUP();
  WAIT_GROUP(0);
  if (t < 32) out[t] = d[0] + d[3];
}
LESS_1(stored_padding_rows)

// The warpgroup itself stores into rows of A before it waits for the product.
template <int LESS> __global__ void padding_rows_in_flight(ARGS) {
  __shared__ __align__(1024) unsigned a[A_WORDS], b[B_WORDS];
  const unsigned t = threadIdx.x;
  float d[4];
  fill<A_WORDS>(a, ONES, t);
  fill<B_WORDS>(b, ONES, t);
  SHOW_OPERANDS();
  __syncthreads();
  BEGIN_PRODUCTS();
  MULTIPLY(d, a, b);  // A1
  END_GROUP();
  a[A_WORDS / 4 + t] = TWOS;  // B1
  WAIT_GROUP(0);
  if (t / 32 == (LESS == 1)) out[t % 32] = d[0] + d[3];
}
LESS_1(padding_rows_in_flight)

// Other warps poll a flag that orders nothing, and store into rows of A whose product is complete by then.
template <int LESS> __global__ void padding_rows_afterwards(ARGS) {
  __shared__ __align__(1024) unsigned a[A_WORDS], b[B_WORDS];
  __shared__ unsigned flag;
  const unsigned t = threadIdx.x;
  float d[4];
  if (t == 0) flag = 0;
  if (t < 128) fill<A_WORDS>(a, ONES, t);
  if (t < 128) fill<B_WORDS>(b, ONES, t);
  SHOW_OPERANDS();
  __syncthreads();
  if (t >= 128) {
    unsigned seen;
    do LDS("volatile", seen, &flag);
    while (!seen);
    a[A_WORDS / 4 + t - 128] = TWOS;  // A1
    return;
  }
  BEGIN_PRODUCTS();
  MULTIPLY(d, a, b);  // B1
  END_GROUP();
  WAIT_GROUP(0);
  if (t == 0) STS("volatile", &flag, 1);
  if (t / 32 == (LESS == 1)) out[t % 32] = d[0] + d[3];
}
LESS_1(padding_rows_afterwards)
