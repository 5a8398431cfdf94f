// mbarrier objects: phases that order accesses, stages filled and given back, copies that arrive, objects that begin and end.
#include "suite.cuh"

#define INIT(bar, count) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(AT(bar)), "r"(count) : "memory")
#define INVAL(bar) asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(AT(bar)) : "memory")
#define COME(bar) \
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(AT(bar)) : "memory")
#define COPIES_COME(how, bar) asm volatile("cp.async.mbarrier.arrive" how ".shared.b64 [%0];" ::"r"(AT(bar)) : "memory")
#define SEES(done, bar, parity) \
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" \
               : "=r"(done) : "r"(AT(bar)), "r"(parity) : "memory")

__device__ void see(unsigned long long* bar, unsigned parity) {
  unsigned done;
  do SEES(done, bar, parity);
  while (!done);
}

template <int LESS> __global__ void phase(ARGS) {
  __shared__ unsigned long long bar;
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  if (t == 0) INIT(&bar, 64);
  __syncthreads();
  if (LESS == 2) COME(&bar);
  tile[t] = in[t];  // A1 A2
  if (LESS != 2) COME(&bar);
  if (LESS != 1) see(&bar, 0);
  out[t] = tile[63 - t];  // B1 B2
}
LESS_2(phase)

template <int LESS> __global__ void phase_of_a_warp(ARGS) {
  __shared__ unsigned long long bar;
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  if (t == 0) INIT(&bar, 32);
  __syncwarp();
  tile[t] = in[t];  // A1
  COME(&bar);
  if (LESS != 1) see(&bar, 0);
  out[t] = tile[t ^ 1];  // B1
}
LESS_1(phase_of_a_warp)

template <int LESS> __global__ void phase_global(ARGS) {
  __shared__ unsigned long long bar;
  const unsigned t = threadIdx.x;
  if (t == 0) INIT(&bar, 64);
  __syncthreads();
  work[t] = in[t];  // A1
  COME(&bar);
  if (LESS != 1) see(&bar, 0);
  out[t] = work[63 - t];  // B1
}
LESS_1(phase_global)

// One lane arrives for its warp, one lane of each warp waits for it: the others meet it.
template <int LESS> __global__ void elected(ARGS) {
  __shared__ unsigned long long bar;
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  if (t == 0) INIT(&bar, 2);
  __syncthreads();
  tile[t] = in[t];  // A1 A2
  if (LESS != 1) __syncwarp();
  if (t % 32 == 0) COME(&bar);
  if (t % 32 == 0) see(&bar, 0);
  if (LESS != 2) __syncwarp();
  out[t] = tile[63 - t];  // B1 B2
}
LESS_2(elected)

// Only those that use an object must come after its initialisation.
template <int LESS> __global__ void users_alone(ARGS) {
  __shared__ unsigned long long bar;
  const unsigned t = threadIdx.x;
  if (t == 0) INIT(&bar, 32);
  if (t < 32) __syncwarp();
  if (t < 32) COME(&bar);
  if (t < 32) see(&bar, 0);
  out[t] = in[t];
}
LESS_0(users_alone)

// The bytes of an object hold data once it has ended and everybody knows.
template <int LESS> __global__ void bytes_again(ARGS) {
  __shared__ unsigned long long bar;
  const unsigned t = threadIdx.x;
  if (t == 0) INIT(&bar, 64);
  __syncthreads();
  COME(&bar);
  see(&bar, 0);
  __syncthreads();
  if (t == 0) INVAL(&bar);
  if (t == 0) *reinterpret_cast<unsigned*>(&bar) = in[5];
  __syncthreads();
  out[t] = *reinterpret_cast<unsigned*>(&bar);
}
LESS_0(bytes_again)

// Warps 0 and 1 fill two stages, 2 and 3 take from them.
template <int LESS> __global__ void stages_of_phases(ARGS) {
  __shared__ unsigned long long full[2], empty[2];
  __shared__ unsigned stages[2][64];
  const unsigned t = threadIdx.x % 64;
  unsigned sum = 0;
  if (threadIdx.x < 2) INIT(&full[threadIdx.x], 64);
  if (threadIdx.x < 2) INIT(&empty[threadIdx.x], 64);
  __syncthreads();
  if (threadIdx.x < 64) {
    for (unsigned i = 0; i < 4; ++i) {
      see(&empty[i % 2], (i / 2 + 1) % 2);
      if (LESS == 2) COME(&full[i % 2]);
      stages[i % 2][t] = in[64 * i + t];  // B1 A2
      if (LESS != 2) COME(&full[i % 2]);
    }
  } else {
    for (unsigned i = 0; i < 4; ++i) {
      see(&full[i % 2], i / 2 % 2);
      if (LESS == 1) COME(&empty[i % 2]);
      sum = sum * 3 + stages[i % 2][63 - t];  // A1 B2
      if (LESS != 1) COME(&empty[i % 2]);
    }
    out[t] = sum;
  }
}
LESS_2(stages_of_phases)

template <int LESS> __global__ void copies_come(ARGS) {
  __shared__ unsigned long long bar;
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  if (t == 0) INIT(&bar, 64);
  __syncthreads();
  if (LESS == 2) COPIES_COME(".noinc", &bar);
  COPY(&tile[t], in + t);  // A1 A2 A3
  if (LESS != 2) COPIES_COME(".noinc", &bar);
  if (LESS == 1) __syncthreads();
  if (LESS == 3) WAIT_ALL();
  if (LESS != 1 && LESS != 3) see(&bar, 0);
  out[t] = tile[63 - t];  // B1 B2 B3
}
LESS_3(copies_come)

// Without .noinc the arrival of the copies is one more; the thread arrives besides.
template <int LESS> __global__ void copies_counted(ARGS) {
  __shared__ unsigned long long bar;
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  if (t == 0) INIT(&bar, 64);
  __syncthreads();
  COPY(&tile[t], in + t);  // A1
  if (LESS != 1) COPIES_COME("", &bar);
  COME(&bar);
  see(&bar, 0);
  out[t] = tile[63 - t];  // B1
}
LESS_1(copies_counted)

// What a thread did before its copies arrive comes with them, what it does behind that does not.
template <int LESS> __global__ void stored_beside_copies(ARGS) {
  __shared__ unsigned long long bar;
  __shared__ unsigned tile[64], beside[64];
  const unsigned t = threadIdx.x;
  if (t == 0) INIT(&bar, 64);
  __syncthreads();
  COPY(&tile[t], in + t);
  if (LESS == 1) COPIES_COME(".noinc", &bar);
  beside[t] = in[t] * 2;  // A1
  if (LESS != 1) COPIES_COME(".noinc", &bar);
  see(&bar, 0);
  out[t] = tile[63 - t] + beside[63 - t];  // B1
}
LESS_1(stored_beside_copies)

// A thread may wait for its copies itself besides; others wait for the phase.
template <int LESS> __global__ void own_and_others(ARGS) {
  __shared__ unsigned long long bar;
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  if (t == 0) INIT(&bar, 64);
  __syncthreads();
  COPY(&tile[t], in + t);  // A1 A2
  COPIES_COME(".noinc", &bar);
  if (LESS != 1) WAIT_ALL();
  const unsigned own = tile[t];  // B1
  if (LESS != 2) see(&bar, 0);
  out[t] = own + tile[63 - t];  // B2
}
LESS_2(own_and_others)

// Warp 0 copies into two stages, warp 1 takes from them.
template <int LESS> __global__ void stages_of_copies(ARGS) {
  __shared__ unsigned long long full[2], empty[2];
  __shared__ unsigned stages[2][32];
  const unsigned t = threadIdx.x % 32;
  unsigned sum = 0;
  if (threadIdx.x < 2) INIT(&full[threadIdx.x], 32);
  if (threadIdx.x < 2) INIT(&empty[threadIdx.x], 32);
  __syncthreads();
  if (threadIdx.x < 32) {
    for (unsigned i = 0; i < 6; ++i) {
      see(&empty[i % 2], (i / 2 + 1) % 2);
      COPY(&stages[i % 2][t], in + 32 * i + t);  // B1
      COPIES_COME(".noinc", &full[i % 2]);
    }
  } else {
    for (unsigned i = 0; i < 6; ++i) {
      see(&full[i % 2], i / 2 % 2);
      if (LESS == 1) COME(&empty[i % 2]);
      sum = sum * 3 + stages[i % 2][31 - t];  // A1
      if (LESS != 1) COME(&empty[i % 2]);
    }
    out[t] = sum;
  }
}
LESS_1(stages_of_copies)
