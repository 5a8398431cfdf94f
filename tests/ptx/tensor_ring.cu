// Tensor memory handed from thread to thread as the PTX ISA shows it: by relaxed arrivals and waits between fences of tcgen05.
//
//   tensor_ring   one warp copies, one multiplies into two accumulators in turn, four store them
//   tensor_turns  what four warps load of a product they store as A of the next one
//   tensor_pair   two blocks of a cluster, of which the first one multiplies for both
//   tensor_pipe   one thread copies scales to tensor memory, another multiplies behind that, before it is done
//
// Targets: sm_100a

#include <stdint.h>

using u32 = uint32_t;
using u64 = uint64_t;
constexpr u32 kStages = 2, kOperandA = 4096, kOperandB = 1024, kScales = 512;

__device__ u32 address(const void* generic) { return static_cast<u32>(__cvta_generic_to_shared(generic)); }

// ---- mbarriers
__device__ void init(u32 bar, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ void wait(u32 bar, u32 parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
__device__ void wait_relaxed(u32 bar, u32 parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
// By a whole warp, whose threads go on together.
__device__ void wait_together(u32 bar, u32 parity) {
    u32 done;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (!__all_sync(0xffffffff, done));
}
__device__ void arrive_relaxed(u32 bar) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ void copy(u32 to, const unsigned char* from, u32 bytes, u32 bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(bar)
                 : "memory");
}

// ---- tensor memory
template <u32 COLUMNS>
__device__ void allocate(u32 slot) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(slot), "n"(COLUMNS) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
template <u32 COLUMNS>
__device__ void give_back(u32 tensor) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tensor), "n"(COLUMNS) : "memory");
}
__device__ void before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ void behind() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
__device__ void commit(u32 bar) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(bar) : "memory");
}
__device__ void loaded() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
__device__ void stored() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

// 32 columns of this thread's lane.
__device__ void load(u32 (&r)[32], u32 tensor) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]), "=r"(r[8]),
          "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]), "=r"(r[14]), "=r"(r[15]), "=r"(r[16]), "=r"(r[17]),
          "=r"(r[18]), "=r"(r[19]), "=r"(r[20]), "=r"(r[21]), "=r"(r[22]), "=r"(r[23]), "=r"(r[24]), "=r"(r[25]), "=r"(r[26]),
          "=r"(r[27]), "=r"(r[28]), "=r"(r[29]), "=r"(r[30]), "=r"(r[31])
        : "r"(tensor)
        : "memory");
}
__device__ void store(u32 tensor, const u32 (&r)[16]) {
    asm volatile(
        "tcgen05.st.sync.aligned.32x32b.x16.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16};" ::"r"(
            tensor),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]), "r"(r[8]), "r"(r[9]), "r"(r[10]),
        "r"(r[11]), "r"(r[12]), "r"(r[13]), "r"(r[14]), "r"(r[15])
        : "memory");
}
__device__ u64 at(u64 word, u32 shared) { return word + (shared >> 4); }
__device__ void multiply(u32 d, u64 a, u64 b, u32 idesc, bool adds) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(d), "l"(a),
                 "l"(b), "r"(idesc), "r"(u32(adds))
                 : "memory");
}
__device__ void multiply_columns(u32 d, u32 a, u64 b, u32 idesc, bool adds) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p; }" ::"r"(d), "r"(a),
                 "l"(b), "r"(idesc), "r"(u32(adds))
                 : "memory");
}
__device__ void multiply_scaled(u32 d, u64 a, u64 b, u32 idesc, u32 sfa, u32 sfb, bool adds) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %6, 0; "
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], %1, %2, %3, [%4], [%5], p; }" ::"r"(d), "l"(a), "l"(b),
        "r"(idesc), "r"(sfa), "r"(sfb), "r"(u32(adds))
        : "memory");
}
__device__ void copy_scales(u32 tensor, u32 from) {
    const u64 word = u64{1} << 46 | u64{8} << 32 | (from >> 4);  // 32 rows of 16 bytes, one after another
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(tensor), "l"(word) : "memory");
}
__device__ void put(float* out, const u32 (&r)[32]) {
#pragma unroll
    for (u32 i = 0; i < 32; ++i) out[i] = __uint_as_float(r[i]);
}

// out[turn][128][32] = A B^T of two stages each.
extern "C" __global__ void __launch_bounds__(192) tensor_ring(const unsigned char* codes, float* out, u32 turns, u64 a, u64 b, u32 idesc) {
    constexpr u32 kBytes = kOperandA + kOperandB;
    __shared__ alignas(1024) unsigned char tile[kStages * kBytes];
    __shared__ alignas(8) u64 bars[8];
    __shared__ u32 slot;
    const u32 warp = threadIdx.x / 32, full = address(bars), empty = full + 16, ready = full + 32, unused = full + 48;
    if (warp == 0) allocate<64>(address(&slot));
    if (threadIdx.x == 32)
        for (u32 i = 0; i < 8; ++i) init(full + 8 * i, i < 6 ? 1 : 128);
    __syncthreads();
    const u32 tensor = slot, base = address(tile);
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (u32 t = 0; t < 2 * turns; ++t) {
            const u32 s = t % 2;
            wait(empty + 8 * s, (t / 2 & 1) ^ 1);
            copy(base + s * kBytes, codes + t * kBytes, kBytes, full + 8 * s);
        }
    } else if (threadIdx.x == 32) {
#pragma unroll 1
        for (u32 t = 0; t < 2 * turns; ++t) {
            const u32 s = t % 2, turn = t / 2, d = turn % 2, stage = base + s * kBytes;
            if (s == 0) {
                wait_relaxed(unused + 8 * d, (turn / 2 & 1) ^ 1);
                behind();
            }
            wait(full + 8 * s, turn & 1);
            multiply(tensor + 32 * d, at(a, stage), at(b, stage + kOperandA), idesc, s != 0);
            commit(empty + 8 * s);
            if (s == 1) commit(ready + 8 * d);
        }
    } else if (warp >= 2) {
        const u32 row = warp % 4 * 32 + threadIdx.x % 32;
#pragma unroll 1
        for (u32 turn = 0; turn < turns; ++turn) {
            const u32 d = turn % 2;
            u32 r[32];
            wait_together(ready + 8 * d, turn / 2 & 1);
            behind();
            load(r, tensor + (warp % 4 << 21) + 32 * d);
            loaded();
            before();
            arrive_relaxed(unused + 8 * d);
            put(out + (turn * 128 + row) * 32, r);
        }
    }
    __syncthreads();
    if (warp == 0) give_back<64>(tensor);
}

// out[128][32] = the sum over turns of P V^T, where P is A B^T rounded to bf16: 32 of K, of which each half of V is a stage's.
extern "C" __global__ void __launch_bounds__(192) tensor_turns(const unsigned char* codes, float* out, u32 turns, u64 a, u64 b, u32 idesc) {
    constexpr u32 kBytes = kOperandA + 3 * kOperandB;
    __shared__ alignas(1024) unsigned char tile[kStages * kBytes];
    __shared__ alignas(8) u64 bars[7];
    __shared__ u32 slot;
    const u32 warp = threadIdx.x / 32, full = address(bars), empty = full + 16, ready = full + 32, turned = full + 40, done = full + 48;
    if (warp == 0) allocate<128>(address(&slot));
    if (threadIdx.x == 32)
        for (u32 i = 0; i < 7; ++i) init(full + 8 * i, i != 5 ? 1 : 128);
    __syncthreads();
    const u32 s_at = slot, p_at = s_at + 32, o_at = s_at + 64, base = address(tile);
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (u32 t = 0; t < turns; ++t) {
            wait(empty + 8 * (t % 2), (t / 2 & 1) ^ 1);
            copy(base + t % 2 * kBytes, codes + t * kBytes, kBytes, full + 8 * (t % 2));
        }
    } else if (threadIdx.x == 32) {
#pragma unroll 1
        for (u32 t = 0; t < turns; ++t) {
            const u32 stage = base + t % 2 * kBytes, v = stage + kOperandA + kOperandB;
            wait(full + 8 * (t % 2), t / 2 & 1);
            multiply(s_at, at(a, stage), at(b, stage + kOperandA), idesc, false);
            commit(ready);
            wait_relaxed(turned, t & 1);
            behind();
            multiply_columns(o_at, p_at, at(b, v), idesc, t != 0);
            multiply_columns(o_at, p_at + 8, at(b, v + kOperandB), idesc, true);
            commit(empty + 8 * (t % 2));
        }
        commit(done);
    } else if (warp >= 2) {
        const u32 row = warp % 4 * 32 + threadIdx.x % 32, lanes = warp % 4 << 21;
        u32 r[32];
#pragma unroll 1
        for (u32 t = 0; t < turns; ++t) {
            u32 p[16];
            wait_together(ready, t & 1);
            behind();
            load(r, s_at + lanes);
            loaded();
#pragma unroll
            for (u32 i = 0; i < 16; ++i) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(p[i]) : "r"(r[2 * i + 1]), "r"(r[2 * i]));
            store(p_at + lanes, p);
            stored();
            before();
            arrive_relaxed(turned);
        }
        wait_together(done, 0);
        behind();
        load(r, o_at + lanes);
        loaded();
        put(out + row * 32, r);
    }
    __syncthreads();
    if (warp == 0) give_back<128>(s_at);
}

// out[128][32] = the sum over turns of A B^T, both scaled.
extern "C" __global__ void __launch_bounds__(128) tensor_pipe(const unsigned char* codes, float* out, u32 turns, u64 a, u64 b, u32 idesc) {
    constexpr u32 kBytes = kOperandA + kOperandB + 2 * kScales;
    __shared__ alignas(1024) unsigned char tile[kStages * kBytes];
    __shared__ alignas(8) u64 bars[7];
    __shared__ u32 slot;
    const u32 warp = threadIdx.x / 32, full = address(bars), empty = full + 16, copied = full + 32, done = full + 48;
    if (warp == 0) allocate<64>(address(&slot));
    if (threadIdx.x == 32)
        for (u32 i = 0; i < 7; ++i) init(full + 8 * i, 1);
    __syncthreads();
    const u32 tensor = slot, base = address(tile);
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (u32 t = 0; t < turns; ++t) {
            const u32 s = t % 2, stage = base + s * kBytes, scales = stage + kOperandA + kOperandB;
            wait(empty + 8 * s, (t / 2 & 1) ^ 1);
            copy(stage, codes + t * kBytes, kBytes, full + 8 * s);
            wait(full + 8 * s, t / 2 & 1);
            copy_scales(tensor + 32 + 8 * s, scales);
            copy_scales(tensor + 36 + 8 * s, scales + kScales);
            before();
            arrive_relaxed(copied + 8 * s);
        }
    } else if (threadIdx.x == 32) {
#pragma unroll 1
        for (u32 t = 0; t < turns; ++t) {
            const u32 s = t % 2, stage = base + s * kBytes;
            wait(full + 8 * s, t / 2 & 1);
            wait_relaxed(copied + 8 * s, t / 2 & 1);
            behind();
            multiply_scaled(tensor, at(a, stage), at(b, stage + kOperandA), idesc, tensor + 32 + 8 * s, tensor + 36 + 8 * s, t != 0);
            commit(empty + 8 * s);
        }
        commit(done);
    }
    u32 r[32];
    wait_together(done, 0);
    behind();
    load(r, tensor + (warp << 21));
    loaded();
    put(out + threadIdx.x * 32, r);
    __syncthreads();
    if (warp == 0) give_back<64>(tensor);
}

// ---- two blocks of a cluster
__device__ u32 there(u32 bar, u32 rank) {
    u32 found;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(bar), "r"(rank));
    return found;
}
__device__ void wait_cluster(u32 bar, u32 parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
__device__ void commit_to_both(u32 bar) {
    asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(bar),
                 "h"((unsigned short)3)
                 : "memory");
}

// out[turn][2][128][32] = A B^T, 256 rows: each block copies 128 rows of A and half of B; the first one multiplies for both.
extern "C" __global__ void __launch_bounds__(192) tensor_pair(const unsigned char* codes, float* out, u32 turns, u64 a, u64 b, u32 idesc) {
    constexpr u32 kBytes = kOperandA + kOperandB / 2;
    __shared__ alignas(1024) unsigned char tile[kStages * kBytes];
    __shared__ alignas(8) u64 bars[10];
    __shared__ u32 slot;
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const u32 warp = threadIdx.x / 32, full = address(bars), empty = full + 16, theirs = full + 32, ready = full + 48, unused = full + 64;
    if (warp == 0) {
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(address(&slot)) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
    }
    if (threadIdx.x == 32)
        for (u32 i = 0; i < 10; ++i) init(full + 8 * i, i < 8 ? 1 : 256);
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    const u32 tensor = slot, base = address(tile);
    if (threadIdx.x == 128) {
#pragma unroll 1
        for (u32 t = 0; t < turns; ++t) {
            const u32 s = t % 2;
            wait(empty + 8 * s, (t / 2 & 1) ^ 1);
            copy(base + s * kBytes, codes + (2 * t + rank) * kBytes, kBytes, full + 8 * s);
        }
    } else if (threadIdx.x == 160 && rank == 1) {
#pragma unroll 1
        for (u32 t = 0; t < turns; ++t) {
            wait(full + 8 * (t % 2), t / 2 & 1);
            asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there(theirs + 8 * (t % 2), 0)) : "memory");
        }
    } else if (threadIdx.x == 160) {
#pragma unroll 1
        for (u32 t = 0; t < turns; ++t) {
            const u32 s = t % 2, stage = base + s * kBytes;
            wait_relaxed(unused + 8 * s, (t / 2 & 1) ^ 1);
            behind();
            wait(full + 8 * s, t / 2 & 1);
            wait_cluster(theirs + 8 * s, t / 2 & 1);
            asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(
                             tensor + 32 * s),
                         "l"(at(a, stage)), "l"(at(b, stage + kOperandA)), "r"(idesc)
                         : "memory");
            commit_to_both(empty + 8 * s);
            commit_to_both(ready + 8 * s);
        }
    } else if (warp < 4) {
#pragma unroll 1
        for (u32 t = 0; t < turns; ++t) {
            const u32 s = t % 2;
            u32 r[32];
            wait_together(ready + 8 * s, t / 2 & 1);
            behind();
            load(r, tensor + (warp << 21) + 32 * s);
            loaded();
            before();
            asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(there(unused + 8 * s, 0)) : "memory");
            put(out + ((2 * t + rank) * 128 + threadIdx.x) * 32, r);
        }
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, 64;" ::"r"(tensor) : "memory");
}
