// Exhibit: the tile of X lies in shared memory row by row, 128 bytes each. Every bit of Y is right, but the eight rows of
// a matrix begin in the same bank: each ldmatrix takes eight passes for every one that it needs.
//
// Meant: Y[b, o] = the chain of mma.m16n8k16 over K, in bf16, without bank conflicts. reduction is a multiple of 64.
// Launch: grid ceil(output / 8), block 32.

#include "one_warp.cuh"

extern "C" __global__ void __launch_bounds__(32)
    unswizzled(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, uint32_t batch, uint32_t output,
               uint32_t reduction) {
    __shared__ __align__(128) uint4 tile[kRows * kRowBytes / 16];
    const uint32_t lane = threadIdx.x, base = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
    const auto place = [](uint32_t row, uint32_t chunk) { return row * 8 + chunk; };  // Defect: chunk ^ row % 8
    float d[4] = {};
    for (uint32_t k = 0; k < reduction; k += kTile) {
        __syncwarp();
        const uint4* from = reinterpret_cast<const uint4*>(x + k);
        for (uint32_t i = lane; i < kRows * 8; i += 32) {
            const uint32_t row = i / 8, chunk = i % 8;
            const uint4 zeros = {};
            tile[place(row, chunk)] = row < batch ? from[row * reduction / 8 + chunk] : zeros;
        }
        __syncwarp();
        for (uint32_t step = 0; step < kTile / 16; ++step) {
            uint32_t a[4], b[2];
            const uint32_t at = base + 16 * place(lane % 16, 2 * step + lane / 16);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                         : "r"(at)
                         : "memory");
            load_weights(b, w, output, reduction, k + 16 * step);
            multiply(d, a, b);
        }
    }
    store(y, d, batch, output);
}
