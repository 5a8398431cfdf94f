// D = A B^T + C by one tensor-core instruction, chained over K: one entry per instruction, one block per product.
//
// Operands come packed by the host (refsim.bringup.tensor_cores): for every product and every step of K the registers
// of thread 0, of thread 1 and so on; B of wgmma as the bytes of shared memory. Nothing here knows a layout or a format.
//
// An entry is named after its opcode: mma_m16n8k32_f32_e4m3_e5m2 is mma.sync m16n8k32, D f32, A e4m3, B e5m2.
// Compiles for every target from sm_80 on; each has the entries of its own instructions.

using u32 = unsigned int;
using u64 = unsigned long long;

template <class Word, u32 COUNT>
__device__ void load(Word (&registers)[COUNT], const Word* from, u64 row) {
#pragma unroll
    for (u32 r = 0; r < COUNT; ++r) registers[r] = from[row * COUNT + r];
}

template <class Word, u32 COUNT>
__device__ void store(Word* to, u64 row, const Word (&registers)[COUNT]) {
#pragma unroll
    for (u32 r = 0; r < COUNT; ++r) to[row * COUNT + r] = registers[r];
}

// ---- mma.sync: a warp, all operands in registers ---------------------------------------------------------------------

template <class Op, class Word>
__device__ void chain(const Word* a, const Word* b, const Word* c, Word* d, u32 steps) {
    u64 product = blockIdx.x;
    Word sum[Op::D];
    load(sum, c, product * 32 + threadIdx.x);
    for (u32 step = 0; step < steps; ++step) {
        Word x[Op::A], y[Op::B];
        load(x, a, (product * steps + step) * 32 + threadIdx.x);
        load(y, b, (product * steps + step) * 32 + threadIdx.x);
        Op::run(sum, x, y);
    }
    store(d, product * 32 + threadIdx.x, sum);
}

#define PLACES_1_1_2 "{%0, %1}, {%2}, {%3}, {%0, %1};"
#define PLACES_2_1_2 "{%0, %1}, {%2, %3}, {%4}, {%0, %1};"
#define PLACES_2_1_4 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
#define PLACES_4_2_2 "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
#define PLACES_4_2_4 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#define PLACES_8_4_4                                                                                                   \
    "{%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
#define OUT_2(l) "+" l(d[0]), "+" l(d[1])
#define OUT_4(l) OUT_2(l), "+" l(d[2]), "+" l(d[3])
#define IN_1(l, x) l(x[0])
#define IN_2(l, x) l(x[0]), l(x[1])
#define IN_4(l, x) IN_2(l, x), l(x[2]), l(x[3])
#define IN_8(l, x) IN_4(l, x), l(x[4]), l(x[5]), l(x[6]), l(x[7])

#define MMA_OF(entry, form, Word, letter, a_count, b_count, d_count)                                                   \
    struct op_##entry {                                                                                                \
        static constexpr u32 A = a_count, B = b_count, D = d_count;                                                    \
        static __device__ void run(Word (&d)[D], const Word (&a)[A], const Word (&b)[B]) {                             \
            asm volatile("mma.sync.aligned." form " " PLACES_##a_count##_##b_count##_##d_count                         \
                         : OUT_##d_count(letter) : IN_##a_count(letter, a), IN_##b_count(letter, b));                  \
        }                                                                                                              \
    };                                                                                                                 \
    extern "C" __global__ __launch_bounds__(32) void entry(                                                            \
        const Word* a, const Word* b, const Word* c, Word* d, u32 steps) {                                             \
        chain<op_##entry>(a, b, c, d, steps);                                                                          \
    }
#define MMA(entry, form, a_count, b_count, d_count) MMA_OF(entry, form, u32, "r", a_count, b_count, d_count)
#define MMA_F64(entry, form, a_count, b_count, d_count) MMA_OF(entry, form, u64, "l", a_count, b_count, d_count)

#define INTEGER_PAIRS(ROW) ROW(s8, s8) ROW(s8, u8) ROW(u8, s8) ROW(u8, u8)
#define FP8_PAIRS(ROW) ROW(e4m3, e4m3) ROW(e4m3, e5m2) ROW(e5m2, e4m3) ROW(e5m2, e5m2)

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
MMA(mma_m16n8k16_f32_f16_f16, "m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 4)
MMA(mma_m16n8k8_f32_f16_f16, "m16n8k8.row.col.f32.f16.f16.f32", 2, 1, 4)
MMA(mma_m16n8k16_f16_f16_f16, "m16n8k16.row.col.f16.f16.f16.f16", 4, 2, 2)
MMA(mma_m16n8k8_f16_f16_f16, "m16n8k8.row.col.f16.f16.f16.f16", 2, 1, 2)
MMA(mma_m16n8k16_f32_bf16_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32", 4, 2, 4)
MMA(mma_m16n8k8_f32_bf16_bf16, "m16n8k8.row.col.f32.bf16.bf16.f32", 2, 1, 4)
MMA(mma_m16n8k8_f32_tf32_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, 4)
MMA(mma_m16n8k4_f32_tf32_tf32, "m16n8k4.row.col.f32.tf32.tf32.f32", 2, 1, 4)
MMA_F64(mma_m8n8k4_f64_f64_f64, "m8n8k4.row.col.f64.f64.f64.f64", 1, 1, 2)
#define ROW(x, y)                                                                                                      \
    MMA(mma_m16n8k32_s32_##x##_##y, "m16n8k32.row.col.s32." #x "." #y ".s32", 4, 2, 4)                                 \
    MMA(mma_m16n8k16_s32_##x##_##y, "m16n8k16.row.col.s32." #x "." #y ".s32", 2, 1, 4)                                 \
    MMA(mma_m8n8k16_s32_##x##_##y, "m8n8k16.row.col.s32." #x "." #y ".s32", 1, 1, 2)
INTEGER_PAIRS(ROW)
#undef ROW
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define ROW(x, y)                                                                                                      \
    MMA(mma_m16n8k32_f32_##x##_##y, "m16n8k32.row.col.f32." #x "." #y ".f32", 4, 2, 4)                                 \
    MMA(mma_m16n8k16_f32_##x##_##y, "m16n8k16.row.col.f32." #x "." #y ".f32", 2, 1, 4)                                 \
    MMA(mma_m16n8k32_f16_##x##_##y, "m16n8k32.row.col.f16." #x "." #y ".f16", 4, 2, 2)                                 \
    MMA(mma_m16n8k16_f16_##x##_##y, "m16n8k16.row.col.f16." #x "." #y ".f16", 2, 1, 2)
FP8_PAIRS(ROW)
#undef ROW
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
MMA_F64(mma_m16n8k4_f64_f64_f64, "m16n8k4.row.col.f64.f64.f64.f64", 2, 1, 4)
MMA_F64(mma_m16n8k8_f64_f64_f64, "m16n8k8.row.col.f64.f64.f64.f64", 4, 2, 4)
MMA_F64(mma_m16n8k16_f64_f64_f64, "m16n8k16.row.col.f64.f64.f64.f64", 8, 4, 4)
#endif

// FP6 and FP4 stand in bytes of their own; any two of the five types.
#if defined(__CUDA_ARCH_FEAT_SM120_ALL)
#define ROW(x, y)                                                                                                      \
    MMA(mma_f8f6f4_m16n8k32_f32_##x##_##y, "m16n8k32.row.col.kind::f8f6f4.f32." #x "." #y ".f32", 4, 2, 4)             \
    MMA(mma_f8f6f4_m16n8k32_f16_##x##_##y, "m16n8k32.row.col.kind::f8f6f4.f16." #x "." #y ".f16", 4, 2, 2)
#define ROWS(x) ROW(x, e4m3) ROW(x, e5m2) ROW(x, e3m2) ROW(x, e2m3) ROW(x, e2m1)
ROWS(e4m3) ROWS(e5m2) ROWS(e3m2) ROWS(e2m3) ROWS(e2m1)
#undef ROWS
#undef ROW
#endif

// ---- wgmma: a warpgroup, A and D in registers, B in shared memory ----------------------------------------------------

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr u32 ACCUMULATE = 1, NEGATE_A = 2, NEGATE_B = 4;  // flags: scale-d, imm-scale-a and imm-scale-b
constexpr u32 K_BYTES = 32;                                // K of one instruction

// `b_word` is the matrix descriptor of B without its start address. Without ACCUMULATE the first step has scale-d = 0
// over registers full of NaN.
template <class Op>
__device__ void chain_wgmma(
    const u32* a, const u32* b, const u32* c, u32* d, u64 b_word, u32 steps, u32 flags) {
    constexpr u32 B_WORDS = Op::N * K_BYTES / 4;
    __shared__ __align__(128) u32 tile[B_WORDS];
    u64 product = blockIdx.x, word = b_word + (u32(__cvta_generic_to_shared(tile)) >> 4);
    u32 sum[Op::D];
    if (flags & ACCUMULATE) load(sum, c, product * 128 + threadIdx.x);
    else
        for (u32 r = 0; r < Op::D; ++r) sum[r] = ~0u;
    for (u32 step = 0; step < steps; ++step) {
        u64 row = product * steps + step;
        u32 x[4];
        load(x, a, row * 128 + threadIdx.x);
        for (u32 i = threadIdx.x; i < B_WORDS; i += 128) tile[i] = b[row * B_WORDS + i];
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        Op::run(sum, x, word, step > 0 || (flags & ACCUMULATE), flags);
        __syncthreads();
    }
    store(d, product * 128 + threadIdx.x, sum);
}

#define TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define UNITS "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9"
#define FIFTY UNITS ", " TEN(1) ", " TEN(2) ", " TEN(3) ", " TEN(4)
#define PLACES_2 "{%0, %1}, {%2, %3, %4, %5}, %6"
#define PLACES_4 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8"
#define PLACES_16 "{" UNITS ", %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20"
#define PLACES_32 "{" UNITS ", " TEN(1) ", " TEN(2) ", %30, %31}, {%32, %33, %34, %35}, %36"
#define PLACES_64 "{" FIFTY ", " TEN(5) ", %60, %61, %62, %63}, {%64, %65, %66, %67}, %68"
#define PLACES_128                                                                                                     \
    "{" FIFTY ", " TEN(5) ", " TEN(6) ", " TEN(7) ", " TEN(8) ", " TEN(9) ", " TEN(10) ", " TEN(11)                    \
    ", %120, %121, %122, %123, %124, %125, %126, %127}, {%128, %129, %130, %131}, %132"
#define FLAG_2 "%7"
#define FLAG_4 "%9"
#define FLAG_16 "%21"
#define FLAG_32 "%37"
#define FLAG_64 "%69"
#define FLAG_128 "%133"
#define D_1(i) "+r"(d[i])
#define D_2(i) D_1(i), D_1(i + 1)
#define D_4(i) D_2(i), D_2(i + 2)
#define D_8(i) D_4(i), D_4(i + 4)
#define D_16(i) D_8(i), D_8(i + 8)
#define D_32(i) D_16(i), D_16(i + 16)
#define D_64(i) D_32(i), D_32(i + 32)
#define D_128(i) D_64(i), D_64(i + 64)

// `immediates` ends the instruction: imm-scale-a, imm-scale-b and, for 16-bit types, imm-trans-b.
#define ISSUE(form, d_count, immediates)                                                                               \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " FLAG_##d_count ", 0;\n\twgmma.fence.sync.aligned;\n\t"        \
                 "wgmma.mma_async.sync.aligned." form " " PLACES_##d_count ", p" immediates ";\n\t"                    \
                 "wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;\n\t}"                           \
                 : D_##d_count(0) : IN_4("r", a), "l"(b), "r"(u32(accumulate)) : "memory")
#define SIGNED(form, d_count, tail)                                                                                    \
    switch (flags & (NEGATE_A | NEGATE_B)) {                                                                           \
        case 0: ISSUE(form, d_count, ", 1, 1" tail); break;                                                            \
        case NEGATE_A: ISSUE(form, d_count, ", -1, 1" tail); break;                                                    \
        case NEGATE_B: ISSUE(form, d_count, ", 1, -1" tail); break;                                                    \
        default: ISSUE(form, d_count, ", -1, -1" tail);                                                                \
    }
#define WGMMA(entry, n, d_count, ...)                                                                                  \
    struct op_##entry {                                                                                                \
        static constexpr u32 N = n, D = d_count;                                                                       \
        static __device__ void run(u32 (&d)[D], const u32 (&a)[4], u64 b, bool accumulate, u32 flags) { __VA_ARGS__; } \
    };                                                                                                                 \
    extern "C" __global__ __launch_bounds__(128) void entry(                                                           \
        const u32* a, const u32* b, const u32* c, u32* d, u64 b_word, u32 steps, u32 flags) {                          \
        chain_wgmma<op_##entry>(a, b, c, d, b_word, steps, flags);                                                     \
    }
#define WGMMA_FLOAT(n, depth, type, x, y, d_count, tail)                                                               \
    WGMMA(wgmma_m64n##n##k##depth##_##type##_##x##_##y, n, d_count,                                                    \
          SIGNED("m64n" #n "k" #depth "." #type "." #x "." #y, d_count, tail))
#define WGMMA_F32(k, x, y, tail)                                                                                       \
    WGMMA_FLOAT(8, k, f32, x, y, 4, tail)                                                                              \
    WGMMA_FLOAT(64, k, f32, x, y, 32, tail)                                                                            \
    WGMMA_FLOAT(256, k, f32, x, y, 128, tail)
#define WGMMA_F16(k, x, y, tail)                                                                                       \
    WGMMA_FLOAT(8, k, f16, x, y, 2, tail)                                                                              \
    WGMMA_FLOAT(64, k, f16, x, y, 16, tail)                                                                            \
    WGMMA_FLOAT(256, k, f16, x, y, 64, tail)
#define WGMMA_S32(n, x, y, d_count)                                                                                    \
    WGMMA(wgmma_m64n##n##k32_s32_##x##_##y, n, d_count, ISSUE("m64n" #n "k32.s32." #x "." #y, d_count, ""))

WGMMA_F32(16, f16, f16, ", 0")
WGMMA_F16(16, f16, f16, ", 0")
WGMMA_F32(16, bf16, bf16, ", 0")
WGMMA_F32(8, tf32, tf32, "")
#define ROW(x, y) WGMMA_F32(32, x, y, "") WGMMA_F16(32, x, y, "")
FP8_PAIRS(ROW)
#undef ROW
#define ROW(x, y) WGMMA_S32(8, x, y, 4) WGMMA_S32(64, x, y, 32) WGMMA_S32(256, x, y, 128)
INTEGER_PAIRS(ROW)
#undef ROW
#endif
