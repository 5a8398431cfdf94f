// Flags: release and acquire, fences, scopes and chains, between warps of a block and between blocks.
#include "suite.cuh"

template <int LESS> __global__ void fenced_flag(ARGS) {
  __shared__ unsigned data[32];
  __shared__ volatile unsigned flag;
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    data[lane] = in[lane];  // A1 A2 A3
    __syncwarp();
    if (LESS != 1 && LESS != 3) __threadfence_block();
    if (lane == 0) flag = 1;
  } else {
    if (lane == 0)
      while (flag == 0) {}
    if (LESS != 2 && LESS != 3) __threadfence_block();
    __syncwarp();
    out[lane] = data[31 - lane];  // B1 B2 B3
  }
}
LESS_3(fenced_flag)

template <int LESS> __global__ void released_flag(ARGS) {
  __shared__ unsigned data[32], flags[2];
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x < 2) flags[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    data[lane] = in[lane];  // A1 A2 A3 A4 A5
    if (LESS != 4) __syncwarp();
    if (lane == 0) {
      if (LESS == 1) STS("relaxed.cta", &flags[0], 1);
      else STS("release.cta", &flags[0], 1);
    }
  } else {
    if (lane == 0) {
      unsigned seen = 0, other;
      while (!seen) {
        if (LESS == 2 || LESS == 3) LDS("relaxed.cta", seen, &flags[0]);
        else LDS("acquire.cta", seen, &flags[0]);
      }
      if (LESS == 3) LDS("acquire.cta", other, &flags[1]);
    }
    if (LESS != 5) __syncwarp();
    out[lane] = data[31 - lane];  // B1 B2 B3 B4 B5
  }
}
LESS_5(released_flag)

template <int LESS> __global__ void strong_flag(ARGS) {
  __shared__ unsigned flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    if (LESS == 1) asm volatile("st.shared.u32 [%0], 1;" ::"r"(AT(&flag)) : "memory");  // A1
    else STS("relaxed.cta", &flag, 1);
  } else if (threadIdx.x == 32) {
    unsigned seen = 0;
    while (!seen) LDS("relaxed.cta", seen, &flag);  // B1
    out[0] = seen + in[3];
  }
}
LESS_1(strong_flag)

// The third warp must not acquire while it polls: it might see the first warp's own write on the way.
template <int LESS> __global__ void chained_flag(ARGS) {
  __shared__ unsigned data, turn;
  unsigned seen = 0;
  if (threadIdx.x == 0) turn = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    data = in[4];  // A1
    REDS("release.cta.shared.add", &turn, 1);
  } else if (threadIdx.x == 32) {
    while (seen != 1) LDS("relaxed.cta", seen, &turn);
    if (LESS == 1) STS("relaxed.cta", &turn, 2);
    else REDS("relaxed.cta.shared.add", &turn, 1);
  } else if (threadIdx.x == 64) {
    while (seen != 2) LDS("relaxed.cta", seen, &turn);
    LDS("acquire.cta", seen, &turn);
    out[0] = data;  // B1
  }
}
LESS_1(chained_flag)

// A flag in global memory that orders data in shared memory.
template <int LESS> __global__ void global_flag(ARGS) {
  __shared__ unsigned data[32];
  const unsigned lane = threadIdx.x % 32;
  unsigned *const flag = work + blockIdx.x;
  if (threadIdx.x < 32) {
    data[lane] = in[lane] + blockIdx.x;  // A1 A2
    __syncwarp();
    if (lane == 0) {
      if (LESS == 1) ST("relaxed.gpu.global", flag, 1);
      else ST("release.gpu.global", flag, 1);
    }
  } else {
    unsigned seen = 0;
    while (!seen) {
      if (LESS == 2) LD("relaxed.gpu.global", seen, flag);
      else LD("acquire.gpu.global", seen, flag);
    }
    out[32 * blockIdx.x + lane] = data[31 - lane];  // B1 B2
  }
}
LESS_2(global_flag)

template <int LESS> __global__ void global_flag_fenced(ARGS) {
  __shared__ unsigned data[32];
  const unsigned lane = threadIdx.x % 32;
  volatile unsigned *const flag = work + blockIdx.x;
  if (threadIdx.x < 32) {
    data[lane] = in[lane] + blockIdx.x;  // A1 A2
    __syncwarp();
    if (LESS != 1) __threadfence();
    if (lane == 0) *flag = 1;
  } else {
    while (*flag == 0) {}
    if (LESS != 2) __threadfence();
    out[32 * blockIdx.x + lane] = data[31 - lane];  // B1 B2
  }
}
LESS_2(global_flag_fenced)

// Warps of one block, data in global memory: .cta is wide enough.
template <int LESS> __global__ void block_scope(ARGS) {
  const unsigned lane = threadIdx.x % 32;
  unsigned *const data = work + 32 + 32 * blockIdx.x, *const flag = work + blockIdx.x;
  if (threadIdx.x < 32) {
    data[lane] = in[lane] + blockIdx.x;  // A1 A2
    __syncwarp();
    if (lane == 0) {
      if (LESS == 1) ST("relaxed.cta.global", flag, 1);
      else ST("release.cta.global", flag, 1);
    }
  } else {
    unsigned seen = 0;
    while (!seen) {
      if (LESS == 2) LD("relaxed.cta.global", seen, flag);
      else LD("acquire.cta.global", seen, flag);
    }
    out[32 * blockIdx.x + lane] = data[31 - lane];  // B1 B2
  }
}
LESS_2(block_scope)

template <int LESS> __global__ void blocks_fenced(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned *const data = work + 32;
  volatile unsigned *const flag = work;
  if (blockIdx.x == 0) {
    data[t] = in[t];  // A1 A2 A3 A4 A5
    __syncwarp();
    if (t == 0) {
      if (LESS == 3) __threadfence_block();
      else if (LESS != 1 && LESS != 5) __threadfence();
      if (LESS == 6) asm volatile("st.global.u32 [%0], 1;" ::"l"(flag) : "memory");  // A6
      else *flag = 1;  // A7
    }
  } else {
    if (t == 0) {
      unsigned seen = 0;
      while (!seen) {
        if (LESS == 7) asm volatile("ld.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");  // B7
        else seen = *flag;  // B6
      }
      if (LESS == 4) __threadfence_block();
      else if (LESS != 2 && LESS != 5) __threadfence();
    }
    __syncwarp();
    out[t] = data[31 - t];  // B1 B2 B3 B4 B5
  }
}
LESS_7(blocks_fenced)

template <int LESS> __global__ void blocks_released(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned *const data = work + 32, *const flag = work, *const other = work + 1;
  if (blockIdx.x == 0) {
    data[t] = in[t];  // A1 A2 A3 A4 A5 A6 A7 A8
    if (LESS != 7) __syncwarp();
    if (t == 0) {
      if (LESS == 1) ST("relaxed.gpu.global", flag, 1);
      else if (LESS == 3) ST("release.cta.global", flag, 1);
      else if (LESS == 6) ST("volatile.global", work + 2, 1);
      else ST("release.gpu.global", flag, 1);
    }
  } else {
    if (t == 0) {
      unsigned seen = 0;
      if (LESS == 6) LD("volatile.global", seen, work + 3);
      while (LESS != 6 && !seen) {
        if (LESS == 2 || LESS == 5) LD("relaxed.gpu.global", seen, flag);
        else if (LESS == 4) LD("acquire.cta.global", seen, flag);
        else LD("acquire.gpu.global", seen, flag);
      }
      if (LESS == 5) LD("acquire.gpu.global", seen, other);
    }
    if (LESS != 8) __syncwarp();
    out[t] = data[31 - t];  // B1 B2 B3 B4 B5 B6 B7 B8
  }
}
LESS_8(blocks_released)

// Scopes that include each other: .sys releases what .gpu acquires, in generic addresses, and data goes on to a third block.
template <int LESS> __global__ void passed_on(ARGS) {
  const unsigned t = threadIdx.x, b = blockIdx.x;
  unsigned *const data = work + 32, *const flags = work;
  unsigned seen = 0;
  if (b > 0) {
    while (!seen) {
      if (LESS == 1 && b == 1) LD("relaxed.gpu", seen, flags);
      else LD("acquire.gpu", seen, flags + b - 1);
    }
  }
  if (b == 0) data[t] = in[t];  // A1
  if (b == 2) out[t] = data[31 - t];  // B1
  __syncwarp();
  if (t == 0 && b < 2) ST("release.sys", flags + b, 1);
}
LESS_1(passed_on)

// All threads of a block hand over to all threads of another.
template <int LESS> __global__ void whole_blocks(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned *const data = work + 64, *const flag = work;
  if (blockIdx.x == 0) {
    data[t] = in[t];  // A1 A2
    if (LESS != 1) __syncthreads();
    if (t == 0) ST("release.gpu.global", flag, 1);
  } else {
    if (t == 0) {
      unsigned seen = 0;
      while (!seen) LD("acquire.gpu.global", seen, flag);
    }
    if (LESS != 2) __syncthreads();
    out[t] = data[63 - t];  // B1 B2
  }
}
LESS_2(whole_blocks)

template <int LESS> __global__ void chain_of_blocks(ARGS) {
  unsigned *const turn = work, *const data = work + 8;
  if (threadIdx.x != 0) return;
  unsigned seen = 0;
  if (blockIdx.x == 0) {
    *data = in[4];  // A1 A2 A3
    if (LESS == 3) RED("relaxed.gpu.global.add", turn, 1);
    else RED("release.gpu.global.add", turn, 1);
  } else if (blockIdx.x == 1) {
    while (seen != 1) LD("relaxed.gpu.global", seen, turn);
    if (LESS == 1) ST("relaxed.gpu.global", turn, 2);
    else RED("relaxed.gpu.global.add", turn, 1);
  } else {
    while (seen != 2) LD("relaxed.gpu.global", seen, turn);
    if (LESS != 2) LD("acquire.gpu.global", seen, turn);
    out[0] = *data;  // B1 B2 B3
  }
}
LESS_3(chain_of_blocks)

// Block 0 makes a value once; the others come when its flag stands, and take the fast path.
template <int LESS> __global__ void made_once(ARGS) {
  unsigned *const ready = work, *const lock = work + 1, *const made = work + 2, *const late = work + 3;
  if (threadIdx.x != 0) return;
  unsigned seen = 0;
  if (blockIdx.x > 0)
    while (!seen) LD("relaxed.gpu.global", seen, late);
  if (LESS == 1) LD("relaxed.gpu.global", seen, ready);
  else LD("acquire.gpu.global", seen, ready);
  if (!seen) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    __threadfence();
    LD("relaxed.gpu.global", seen, ready);
    if (!seen) {
      *made = in[6];  // A1 A2
      if (LESS == 2) ST("relaxed.gpu.global", ready, 1);
      else ST("release.gpu.global", ready, 1);
      ST("relaxed.gpu.global", late, 1);
    }
    __threadfence();
    atomicExch(lock, 0);
  }
  out[blockIdx.x] = *made + blockIdx.x;  // B1 B2
}
LESS_2(made_once)

// Two blocks play ping-pong with one word of data and one flag.
template <int LESS> __global__ void ping_pong(ARGS) {
  unsigned *const turn = work, *const data = work + 8, me = blockIdx.x;
  if (threadIdx.x != 0) return;
  for (unsigned round = 0; round < 4; ++round) {
    unsigned seen;
    do LD("acquire.gpu.global", seen, turn);
    while (seen % 2 != me);
    const unsigned old = *data;  // A1
    *data = old * 3 + in[me];  // B1
    if (LESS == 1 && me == 1) ST("relaxed.gpu.global", turn, seen + 1);
    else ST("release.gpu.global", turn, seen + 1);
    if (me == 1 && round == 3) out[0] = *data;
  }
}
LESS_1(ping_pong)

// Strong accesses never race with one another; what they order is nothing, and nothing here needs order.
template <int LESS> __global__ void last_seen(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned seen;
  if (LESS == 1 && blockIdx.x == 1) LD("relaxed.cta.global", seen, work);  // B1
  else LD("relaxed.gpu.global", seen, work);
  if (t == 0) ST("relaxed.gpu.global", work, blockIdx.x + 1);  // A1
  out[32 * blockIdx.x + t] = seen < 3;
}
LESS_1(last_seen)

// A strong read that saw a write comes after it without any fence: this word may be written plainly then, and no other.
template <int LESS> __global__ void seen_flag(ARGS) {
  __shared__ unsigned flag;
  const unsigned t = threadIdx.x;
  unsigned now;
  if (t == 0) flag = 0;
  __syncthreads();
  if (t == 0) STS("relaxed.cta", &flag, 1u);  // A1
  if (t == 32) {
    if (LESS != 1) do LDS("relaxed.cta", now, &flag); while (now == 0);
    flag = 2;  // B1
  }
  __syncthreads();
  out[t] = in[flag];
}
LESS_1(seen_flag)

// A release and then another strong write of the same place are a release pattern, too.
template <int LESS> __global__ void released_twice(ARGS) {
  unsigned now;
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    work[64] = in[5];  // A1
    if (LESS == 1) ST("relaxed.gpu.global", work, 1u);
    else ST("release.gpu.global", work, 1u);
    ST("relaxed.gpu.global", work, 2u);
  } else {
    do LD("acquire.gpu.global", now, work); while (now != 2);
    out[0] = work[64];  // B1
  }
}
LESS_1(released_twice)
