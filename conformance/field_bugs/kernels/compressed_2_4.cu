// Of every four numbers at most two are kept, with their places. Where fewer than two are not zero, a slot that is free
// keeps the last number of the four beside the place 2: a number that is nowhere in the matrix.
// Meant: what is kept at its place, zeros elsewhere. Launch: grid ceil(groups / 32), block 32.
#include <cuda/std/cstdint>
using cuda::std::uint32_t;

extern "C" __global__ void compressed_2_4(const float* x, float* y, uint32_t groups) {
    const uint32_t group = 32 * blockIdx.x + threadIdx.x;
    if (group >= groups) return;
    const float* four = x + 4 * group;
#ifdef RIGHT
    float kept[2] = {0.0f, 0.0f};
#else
    float kept[2] = {four[3], four[3]};
#endif
    uint32_t place[2] = {2, 2}, found = 0;
    for (uint32_t i = 0; i < 4 && found < 2; ++i)
        if (four[i] != 0.0f) {
            kept[found] = four[i];
            place[found++] = i;
        }
    float out[4] = {};
    for (uint32_t slot = 0; slot < 2; ++slot)
        if (kept[slot] != 0.0f) out[place[slot]] = kept[slot];
    for (uint32_t i = 0; i < 4; ++i) y[4 * group + i] = out[i];
}
