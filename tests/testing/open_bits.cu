// Kernels of one block whose `.approx` results, or float sums in no order, end in values, branches, addresses and memory.

extern "C" __global__ void values(const float* x, float* y, unsigned n) {
    unsigned i = threadIdx.x;
    if (i >= n) return;
    float r = rsqrtf(x[i]);
    y[i] = fmaxf(r > 0.25f ? r : 0.25f, 0.125f);
}

extern "C" __global__ void branches(const float* x, float* y, unsigned n) {
    unsigned i = threadIdx.x;
    if (i >= n) return;
    float r = rsqrtf(x[i]), s = 0.0f;
    for (unsigned k = 0; k < 64 && s < r; ++k) s = __fadd_rn(s, 0.25f);
    y[i] = s;
}

extern "C" __global__ void addresses(const float* x, float* y, unsigned n) {
    unsigned i = threadIdx.x;
    if (i >= n) return;
    y[i] = x[(unsigned)(rsqrtf(x[i]) * 0.001f)];
}

extern "C" __global__ void through_shared(const float* x, float* y, unsigned n) {
    __shared__ float held[64];
    unsigned i = threadIdx.x;
    held[i] = rsqrtf(x[i < n ? i : 0]);
    __syncthreads();
    if (i >= n) return;
    if (held[i ^ 1] > 1000.0f) __nanosleep(1);
    y[i] = 1.0f;
}

extern "C" __global__ void first(const float* x, float* kept, unsigned n) {
    if (threadIdx.x < n) kept[threadIdx.x] = rsqrtf(x[threadIdx.x]);
}

extern "C" __global__ void second(const float* kept, float* y, unsigned n) {
    unsigned i = threadIdx.x;
    if (i >= n) return;
    if (kept[i] > 1000.0f) __nanosleep(1);
    y[i] = 1.0f;
}

extern "C" __global__ void sums(float* total, float* y, unsigned n) {
    unsigned i = threadIdx.x;
    if (i < n) atomicAdd(total, 1.0f);
    __syncthreads();
    if (i >= n) return;
    if (*(volatile float*)total > 1000.0f) __nanosleep(1);
    y[i] = 1.0f;
}

extern "C" __global__ void exact(const float* x, float* y, unsigned n) {
    unsigned i = threadIdx.x;
    if (i < n && x[i] > 0.0f) y[i] = __fsqrt_rn(x[i]);
}

extern "C" __global__ void beside_unwritten(const float* x, float* y, unsigned n) {
    unsigned i = threadIdx.x;
    if (i >= n) return;
    float u = y[i], r = rsqrtf(x[i]);
    if ((i & 1 ? u : r) > 1000.0f) __nanosleep(1);
    if (u > 2000.0f) __nanosleep(2);
    y[i] = 1.0f;
}

extern "C" __global__ void tickets(float* y, unsigned* next) {
    y[atomicAdd(next, 1)] = (float)(threadIdx.x / 32);
}
