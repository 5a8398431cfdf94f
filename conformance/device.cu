// What the tests of devices launch.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned u32; typedef unsigned long long u64;

extern "C" __global__ void add(const u32* x, u32* y, u32 n) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1;
}
extern "C" __global__ void scalars(u8 a, short b, u32 c, u64 d, float e, double f, bool g, long long h, u16 i, u64* y) {
    y[0] = a; y[1] = (u64)(long long)b; y[2] = c; y[3] = d; y[4] = __float_as_uint(e);
    y[5] = __double_as_longlong(f); y[6] = g; y[7] = h; y[8] = i;
}
struct Three { u8 c[3]; };
struct Odd { u8 a; u16 b; u8 c[3]; };
struct alignas(16) Quad { float x; u8 c; };
struct alignas(64) Map { u64 words[16]; };
extern "C" __global__ void structs(u8 lead, Three three, u8 between, Odd odd, Quad quad, u8 last, Map map, u64* y) {
    y[0] = three.c[0] | three.c[1] << 8 | three.c[2] << 16;
    y[1] = odd.a; y[2] = odd.b; y[3] = odd.c[2]; y[4] = __float_as_uint(quad.x); y[5] = quad.c;
    y[6] = map.words[0]; y[7] = map.words[15]; y[8] = lead | between << 8 | last << 16;
}
struct Wide { u32 words[8188]; };
extern "C" __global__ void wide(const __grid_constant__ Wide wide, u32* y, u32 last) {
    u32 sum = 0;
    for (u32 i = threadIdx.x; i < 8188; i += blockDim.x) sum += wide.words[i] * (i + 1);
    y[threadIdx.x] = sum + last;
}
extern "C" __global__ void shared(u32* y, u32 words) {
    extern __shared__ u32 held[];
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) held[i] = i;
    __syncthreads();
    y[threadIdx.x] = held[words - 1 - threadIdx.x];
}
extern "C" __global__ void columns(u32* y) {
    __shared__ u32 held[1024];
    held[threadIdx.x * 32] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = held[(31 - threadIdx.x) * 32];
}
extern "C" __global__ void over_grid(u32* y) {
    y[blockIdx.x] = blockIdx.x + 1;
    cg::this_grid().sync();
    u32 sum = 0;
    for (u32 i = 0; i < gridDim.x; ++i) sum += y[i];
    y[gridDim.x + blockIdx.x] = sum;
}
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void ranks(u32* y) {
    u32 block = blockIdx.y * gridDim.x + blockIdx.x;
    y[block] = cg::this_cluster().block_rank() + 100 * cg::this_cluster().num_blocks();
}
extern "C" __global__ void neighbours(u32* y) {
    __shared__ u32 mine;
    auto cluster = cg::this_cluster();
    mine = 10 * blockIdx.x;
    cluster.sync();
    y[blockIdx.x] = *cluster.map_shared_rank(&mine, (cluster.block_rank() + 1) % cluster.num_blocks());
    cluster.sync();
}
extern "C" __global__ void __cluster_dims__(2) pairs(u32* y) { y[blockIdx.x] = cg::this_cluster().block_rank(); }
#endif
__device__ u32 counter = 5;
extern "C" __global__ void count(u32* y) { *y = atomicAdd(&counter, 1); }
extern "C" __global__ void __launch_bounds__(64) small(u32* y) { *y = 1; }
extern "C" __global__ void coordinates(u32* y) {
    u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    u32 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    y[block * blockDim.x * blockDim.y * blockDim.z + thread] = block << 16 | thread;
}
extern "C" __global__ void stop() { __trap(); }
