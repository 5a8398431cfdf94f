// Protocols of strong accesses: k<0> is right, k<1> goes wrong only if another thread runs between two of its accesses.
static __device__ unsigned seen(const unsigned *from) {
  unsigned value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

static __device__ void set(unsigned *to, unsigned value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// The first block that comes claims the sum.
template <int LESS> __global__ void claim(const unsigned *in, unsigned *out, unsigned *work) {
  __shared__ unsigned others;
  if (threadIdx.x == 0) {
    if (LESS) {
      others = seen(work);
      set(work, 1);
    } else {
      others = atomicExch(work, 1);
    }
  }
  __syncthreads();
  if (others == 0) atomicAdd(out + threadIdx.x, in[threadIdx.x]);
}

// One block changes two words together, another reads them; a version tells whether they belong together.
template <int LESS> __global__ void versions(const unsigned *in, unsigned *out, unsigned *work) {
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    for (unsigned turn = 1; turn < 5; ++turn) {
      set(work, 2 * turn - 1);
      __threadfence();
      set(work + 1, in[0] * turn);
      set(work + 2, in[0] * turn + 7);
      __threadfence();
      set(work, 2 * turn);
    }
  } else if (blockIdx.x == 1) {
    unsigned version, low, high, again;
    do {
      version = seen(work);
      __threadfence();
      low = seen(work + 1), high = seen(work + 2);
      __threadfence();
      again = LESS ? version : seen(work);
    } while (version == 0 || version % 2 || again != version);
    out[0] = high - low;
  }
}

// Each block adds to a counter.
template <int LESS> __global__ void counter(const unsigned *in, unsigned *out, unsigned *) {
  if (threadIdx.x) return;
  if (LESS) *(volatile unsigned *)out = *(volatile unsigned *)out + in[blockIdx.x];
  else atomicAdd(out, in[blockIdx.x]);
}

// A lock that looks before it takes.
template <int LESS> __global__ void lock(const unsigned *in, unsigned *out, unsigned *work) {
  if (threadIdx.x) return;
  if (LESS) {
    while (seen(work)) {}
    set(work, 1);
  } else {
    while (seen(work) || atomicCAS(work, 0, 1)) {}
  }
  __threadfence();
  out[0] += in[blockIdx.x];
  __threadfence();
  set(work, 0);
}

// A word is looked at, and then used: it must be read once.
template <int LESS> __global__ void used(const unsigned *in, unsigned *out, unsigned *work) {
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    for (unsigned turn = 0; turn < 4; ++turn) {
      set(work, in[0]);
      set(work, 0);
    }
  } else {
    unsigned right = 1;
    for (unsigned turn = 0; turn < 4; ++turn) {
      const unsigned value = seen(work);
      if (value) right &= (LESS ? seen(work) : value) == in[0];
    }
    out[blockIdx.x] = right;
  }
}

// Each block waits for its turn: by atomics that leave the word as it was, or beside atomics that change another word.
template <int LESS> __global__ void turns(const unsigned *in, unsigned *out, unsigned *work) {
  const unsigned b = blockIdx.x;
  if (threadIdx.x == 0) {
    while (atomicAdd(work, 0) != b) {}
    if (!LESS) __threadfence();
  }
  __syncthreads();
  out[threadIdx.x] += in[b];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(work, 1);
}

template <int LESS> __global__ void counted(const unsigned *in, unsigned *out, unsigned *work) {
  const unsigned b = blockIdx.x;
  if (threadIdx.x == 0) {
    while (seen(work) != b) {
      atomicAdd(work + 1, 1);
      atomicSub(work + 1, 1);
    }
    if (!LESS) __threadfence();
  }
  __syncthreads();
  out[threadIdx.x] += in[b];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(work, 1);
}

#define BOTH(k)                                                       \
  template __global__ void k<0>(const unsigned *, unsigned *, unsigned *); \
  template __global__ void k<1>(const unsigned *, unsigned *, unsigned *);
BOTH(claim)
BOTH(versions)
BOTH(counter)
BOTH(lock)
BOTH(used)
BOTH(turns)
BOTH(counted)
