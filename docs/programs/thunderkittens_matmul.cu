// A matrix product of ThunderKittens, and host functions that make its parameters; its source is not part of refsim.
#define main benchmark
#include "ThunderKittens/kernels/gemm/educational_h100/level_06.cu"

extern "C" int sizes(int* to) { return to[0] = sizeof(matmul_globals), to[1] = NUM_THREADS, 0; }
extern "C" int make(matmul_globals* to, bf16* a, bf16* b, bf16* c, int n) {
    using gl = matmul_globals::tile_gl;
    size_t N = n;
    new (to) matmul_globals{gl{a, nullptr, nullptr, N, N}, gl{b, nullptr, nullptr, N, N}, gl{c, nullptr, nullptr, N, N}, n};
    return 0;
}
