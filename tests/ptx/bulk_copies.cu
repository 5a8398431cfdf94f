// What the copy engine does, one kernel each: boxes in and out, runs of bytes, reductions, multicast, a ring of stages.

#include <stdint.h>

using u32 = uint32_t;
using u64 = uint64_t;

struct alignas(64) TensorMap {
    u64 opaque[16];
};

extern __shared__ __align__(1024) unsigned char region[];

__device__ u32 shared(const void* generic) { return static_cast<u32>(__cvta_generic_to_shared(generic)); }
__device__ void init(u64* bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(bar)), "r"(count) : "memory");
}
__device__ void expect(u64* bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(bar)), "r"(bytes) : "memory");
}
__device__ void arrive(u64* bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(bar)) : "memory"); }
__device__ void wait(u64* bar, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared(bar)), "r"(parity) : "memory");
}
// The same, and behind what other blocks of the cluster did before they arrived.
__device__ void wait_for_cluster(u64* bar, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared(bar)), "r"(parity) : "memory");
}
__device__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ void publish() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

struct Corner {
    int at[5];
};

#define LOAD "shared::cluster.global.tile.mbarrier::complete_tx::bytes"
#define STORE "global.shared::cta.tile.bulk_group"
__device__ void load_box(u32 rank, u32 to, const TensorMap* map, const Corner& c, u64* bar) {
    u32 b = shared(bar);
    if (rank == 1) asm volatile("cp.async.bulk.tensor.1d." LOAD " [%0], [%1, {%2}], [%3];" ::"r"(to), "l"(map), "r"(c.at[0]), "r"(b) : "memory");
    if (rank == 2) asm volatile("cp.async.bulk.tensor.2d." LOAD " [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(c.at[0]), "r"(c.at[1]), "r"(b) : "memory");
    if (rank == 3) asm volatile("cp.async.bulk.tensor.3d." LOAD " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(b) : "memory");
    if (rank == 4) asm volatile("cp.async.bulk.tensor.4d." LOAD " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to), "l"(map), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]), "r"(b) : "memory");
    if (rank == 5) asm volatile("cp.async.bulk.tensor.5d." LOAD " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to), "l"(map), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]), "r"(c.at[4]), "r"(b) : "memory");
}
__device__ void store_box(u32 rank, const TensorMap* map, u32 from, const Corner& c) {
    if (rank == 1) asm volatile("cp.async.bulk.tensor.1d." STORE " [%0, {%1}], [%2];" ::"l"(map), "r"(c.at[0]), "r"(from) : "memory");
    if (rank == 2) asm volatile("cp.async.bulk.tensor.2d." STORE " [%0, {%1, %2}], [%3];" ::"l"(map), "r"(c.at[0]), "r"(c.at[1]), "r"(from) : "memory");
    if (rank == 3) asm volatile("cp.async.bulk.tensor.3d." STORE " [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(from) : "memory");
    if (rank == 4) asm volatile("cp.async.bulk.tensor.4d." STORE " [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]), "r"(from) : "memory");
    if (rank == 5) asm volatile("cp.async.bulk.tensor.5d." STORE " [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(map), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]), "r"(c.at[4]), "r"(from) : "memory");
}

// A box at byte `offset` of shared memory, and out again as bytes. WHERE says whence the map comes.
__constant__ TensorMap held_map;
__device__ void load(const TensorMap* map, const Corner& corner, u32 rank, u32 offset, u32 bytes, u32 size, u32* out) {
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        expect(&bar, bytes);
        load_box(rank, shared(region) + offset, map, corner, &bar);
    }
    wait(&bar, 0);
    for (u32 i = threadIdx.x; i < size / 4; i += blockDim.x) out[i] = reinterpret_cast<u32*>(region + offset)[i];
}
extern "C" __global__ void box_in(const __grid_constant__ TensorMap map, Corner corner, u32 rank, u32 offset, u32 bytes, u32 size, u32* out) {
    if (threadIdx.x == 0) asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
    load(&map, corner, rank, offset, bytes, size, out);
}
extern "C" __global__ void box_in_by_pointer(const TensorMap* map, Corner corner, u32 rank, u32 offset, u32 bytes, u32 size, u32* out) {
    load(map, corner, rank, offset, bytes, size, out);
}

extern "C" __global__ void box_out(const __grid_constant__ TensorMap map, Corner corner, u32 rank, u32 offset, u32 size, const u32* in) {
    for (u32 i = threadIdx.x; i < size / 4; i += blockDim.x) reinterpret_cast<u32*>(region + offset)[i] = in[i];
    publish();
    __syncthreads();
    if (threadIdx.x == 0) {
        store_box(rank, &map, shared(region) + offset, corner);
        commit();
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

// Two reductions of one box into a tensor, one by each thread of two.
#define REDUCE(OP) \
    extern "C" __global__ void box_##OP(const __grid_constant__ TensorMap map, int x, int y, u32 size, const u32* in) { \
        for (u32 i = threadIdx.x; i < size / 4; i += blockDim.x) reinterpret_cast<u32*>(region)[i] = in[i]; \
        publish(); \
        __syncthreads(); \
        if (threadIdx.x < 2) { \
            asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta." #OP ".tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), \
                         "r"(x), "r"(y), "r"(shared(region)) : "memory"); \
            commit(); \
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); \
        } \
    }
REDUCE(add) REDUCE(min) REDUCE(max) REDUCE(inc) REDUCE(dec) REDUCE(and) REDUCE(or) REDUCE(xor)

// Bytes in by a run, added to a sum there, and out by a run.
extern "C" __global__ void runs(const u32* in, u32* out, u32* sums, u32 bytes) {
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(in), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared(region)),
                     "l"(in), "r"(bytes), "r"(shared(&bar)) : "memory");
        expect(&bar, bytes);
    }
    wait(&bar, 0);
    for (u32 i = threadIdx.x; i < bytes / 4; i += blockDim.x) reinterpret_cast<u32*>(region)[i] += 1;
    publish();
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out), "r"(shared(region)), "r"(bytes) : "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;" ::"l"(sums), "r"(shared(region)),
                     "r"(bytes) : "memory");
        commit();
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        out[0] = out[0] + 1000;
    }
}

// Each block of a cluster of two sends its number to the other one, by a run and by a reduction.
extern "C" __global__ void __cluster_dims__(2, 1, 1) exchange(u32* out) {
    __shared__ u64 bar;
    __shared__ __align__(128) u32 mine[32], got[32], sum[32];
    u32 rank = blockIdx.x % 2, lane = threadIdx.x, there, bar_there, sum_there;
    mine[lane] = 100 * blockIdx.x + lane;
    sum[lane] = 7;
    if (lane == 0) {
        init(&bar, 1);
        expect(&bar, 256);
    }
    publish();
    meet_cluster();
    if (lane == 0) {
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared(got)), "r"(rank ^ 1));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(sum_there) : "r"(shared(sum)), "r"(rank ^ 1));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(bar_there) : "r"(shared(&bar)), "r"(rank ^ 1));
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::"r"(there),
                     "r"(shared(mine)), "r"(bar_there) : "memory");
        asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%0], [%1], 128, [%2];"
                     ::"r"(sum_there), "r"(shared(mine)), "r"(bar_there) : "memory");
    }
    wait(&bar, 0);
    out[blockIdx.x * 64 + lane] = got[lane];
    out[blockIdx.x * 64 + 32 + lane] = sum[lane];
    meet_cluster();
}

// Blocks of a cluster load a part of a tile each, for all of them: by boxes, then by runs.
extern "C" __global__ void __cluster_dims__(2, 1, 1) multicast(const __grid_constant__ TensorMap map, const u32* in, u32* out, u32 mask) {
    __shared__ u64 bar;
    u32 rank = blockIdx.x % 2, to = shared(region);
    if (threadIdx.x == 0) {
        init(&bar, 1);
        expect(&bar, 2 * (1024 + 256));
    }
    meet_cluster();
    if (threadIdx.x == 0) {
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], "
            "[%4], %5;" ::"r"(to + rank * 1024), "l"(&map), "r"(0), "r"(8 * rank), "r"(shared(&bar)), "h"(static_cast<uint16_t>(mask)) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 256, [%2], %3;" ::"r"(
                         to + 2048 + rank * 256), "l"(in + rank * 64), "r"(shared(&bar)), "h"(static_cast<uint16_t>(mask)) : "memory");
    }
    wait(&bar, 0);
    for (u32 i = threadIdx.x; i < 640; i += blockDim.x) out[blockIdx.x * 640 + i] = reinterpret_cast<u32*>(region)[i];
}

// A ring of two stages: one warp loads boxes of 1 KiB, the others add them up.
extern "C" __global__ void ring(const __grid_constant__ TensorMap map, u32 count, u32* out) {
    __shared__ u64 full[2], empty[2];
    if (threadIdx.x == 0)
        for (u32 s = 0; s < 2; ++s) {
            init(&full[s], 1);
            init(&empty[s], 64);
        }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0)
            for (u32 i = 0; i < count; ++i) {
                u32 s = i % 2;
                wait(&empty[s], (i / 2 & 1) ^ 1);
                expect(&full[s], 1024);
                load_box(2, shared(region) + 1024 * s, &map, Corner{{0, static_cast<int>(8 * i)}}, &full[s]);
            }
    } else {
        u32 sum[4] = {}, lane = threadIdx.x - 32;
        for (u32 i = 0; i < count; ++i) {
            u32 s = i % 2;
            wait(&full[s], i / 2 & 1);
            for (u32 k = 0; k < 4; ++k) sum[k] += reinterpret_cast<u32*>(region + 1024 * s)[lane + 64 * k];
            arrive(&empty[s]);
        }
        for (u32 k = 0; k < 4; ++k) out[lane + 64 * k] = sum[k];
    }
}

// Stores in groups: the buffer of a group is filled again once it was read.
extern "C" __global__ void groups(u32* out, u32 count) {
    for (u32 i = 0; i < count; ++i) {
        u32 at = i % 2 * 512;
        if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        __syncthreads();
        reinterpret_cast<u32*>(region + at)[threadIdx.x] = 1000 * i + threadIdx.x;
        publish();
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" ::"l"(out + 128 * i), "r"(shared(region) + at)
                         : "memory");
            commit();
        }
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// The same ring over two blocks of a cluster: each loads half of every stage for both, and whoever has read a stage says so to
// both, released to the cluster where it is not the own block: threads have read it, and not a tensor core.
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_ring(const __grid_constant__ TensorMap map, u32 count, u32* out) {
    __shared__ u64 full[2], empty[2];
    u32 rank = blockIdx.x % 2;
    if (threadIdx.x == 0)
        for (u32 s = 0; s < 2; ++s) {
            init(&full[s], 1);
            init(&empty[s], 2);
        }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0)
            for (u32 i = 0; i < count; ++i) {
                u32 s = i % 2, to = shared(region) + 1024 * s + 512 * rank;
                wait_for_cluster(&empty[s], (i / 2 & 1) ^ 1);
                expect(&full[s], 1024);
                asm volatile(
                    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], "
                    "[%4], %5;" ::"r"(to), "l"(&map), "r"(0), "r"(8 * i + 4 * rank), "r"(shared(&full[s])), "h"(uint16_t{3}) : "memory");
            }
    } else {
        u32 sum[8] = {}, lane = threadIdx.x - 32;
        for (u32 i = 0; i < count; ++i) {
            u32 s = i % 2;
            wait(&full[s], i / 2 & 1);
            for (u32 k = 0; k < 8; ++k) sum[k] += reinterpret_cast<u32*>(region + 1024 * s)[lane + 32 * k];
            __syncwarp();
            if (lane == 0) {
                arrive(&empty[s]);
                asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                             "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }" ::"r"(shared(&empty[s])), "r"(rank ^ 1) : "memory");
            }
        }
        for (u32 k = 0; k < 8; ++k) out[blockIdx.x * 256 + lane + 32 * k] = sum[k];
    }
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");  // a warp may come in parts
}
