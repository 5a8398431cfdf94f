// Attention forward for Hopper: O = softmax(scale * Q K^T) V, causal or not, in bf16 or E4M3, heads of 64 or 128.
//
//   q        [heads, q_length, D] by tensor map of three dimensions: boxes of 64 rows and at most 128 bytes, swizzled
//   k        [heads / group, kv_length, D], likewise
//   v        bf16: as k. E4M3: [heads / group, D, kv_length], boxes of D rows and 64 columns
//   scales   E4M3: a float for each head of q, k and v
//   o        [heads, q_length, D] bf16, rows `pitch` elements apart; an even number
//   lse      [heads, q_length] float: the logarithm of each row's sum of exponentials
//
// A block of one warpgroup has 64 rows of a head and takes the keys 64 at a time. Row r sees the keys below kv_length, causal those
// up to r + kv_length - q_length; tiles that none of a block's rows sees are not taken. With C = fl(scale * log2(e)), from the
// host, in E4M3 fl(fl(C * q_scale) * k_scale), and F = 0, in E4M3 8, each tile does, on float32, rounded to nearest each time:
//   s = wgmma over D ascending, from +0; -infinity where the row does not see the key
//   m' = max(m, s), NaN left out, from -infinity; u = m', 0 where it is -infinity
//   a = ex2(fl(fl(m - u) * C)); p = ex2(fma(s, C, -fl(fl(u * C) - F)))
//   l = fma(l, a, t), where the columns of a row belong to four lanes, lane i those with column % 8 / 2 == i, each with an l of
//       its own and t the sum of its p, ascending from +0
//   o = wgmma over the tile's keys ascending, from fl(o * a): p rounded to bf16 or E4M3, times v
// and at the end L = (l0 + l1) + (l2 + l3), O = bf16(fl(o * rcp(L))), in E4M3 bf16(fl(fl(o * rcp(L)) * v_scale)),
// lse = fl(fl(fl(fl(u * C) - F) + lg2(L)) * ln(2)), which is -infinity where L is 0, and O +0. ex2, rcp and lg2 are .approx.ftz.
//
// Targets: sm_90a

#include <stdint.h>

#include "gemm/async.cuh"
#include "gemm/tile.cuh"
#include "gemm/wgmma.cuh"
#include "special_functions.cuh"

namespace attention {

using namespace gemm;
using namespace special_functions;

enum : uint32_t { kRows = 64, kKeys = 64, kStages = 2, kThreads = 128, kScores = kKeys / 2 };  // scores of a thread

struct Scales {
    const float *q, *k, *v;
};
struct Problem {
    uint32_t q_length, kv_length, group, causal, pitch;
    float scale;  // C
};

// ---------------------------------------------------------------------------------------------------------------------
// Instructions

inline __device__ uint32_t pair_of_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
inline __device__ uint32_t pair_of_e4m3(float low, float high) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}
inline __device__ void load_box(uint32_t to, const TensorMap* map, uint32_t barrier, uint32_t x, uint32_t y, uint32_t z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
}

// Rows of SPAN bytes, swizzled within SPAN; `across` from one piece of an operand whose rows are keys to the next.
template <uint32_t SPAN>
__device__ uint64_t descriptor_of(uint32_t address, uint32_t across = 16) {
    return uint64_t{SPAN == 128 ? 1 : 2} << 62 | uint64_t{8 * SPAN >> 4} << 32 | uint64_t{across >> 4} << 16 |
           (address & 0x3ffff) >> 4;
}

#define ATTENTION_RS(D, K, TYPE, NAMES, A0, A1, A2, A3, B, ADD, TRANSPOSED, ...)                                        \
    inline __device__ void multiply_##TYPE(float (&d)[D / 2], const uint32_t (&a)[4], uint64_t b) {                    \
        asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %" ADD ", 0;\n\t"                                       \
                     "wgmma.mma_async.sync.aligned.m64n" #D "k" #K ".f32." #TYPE "." #TYPE " {" NAMES "}, {%" A0       \
                     ", %" A1 ", %" A2 ", %" A3 "}, %" B ", add, 1, 1" TRANSPOSED ";\n\t}"                             \
                     : __VA_ARGS__                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));                                    \
    }
ATTENTION_RS(64, 16, bf16, GEMM_R3, "32", "33", "34", "35", "36", "37", ", 1", GEMM_V3)
ATTENTION_RS(128, 16, bf16, GEMM_R7, "64", "65", "66", "67", "68", "69", ", 1", GEMM_V7)
ATTENTION_RS(64, 32, e4m3, GEMM_R3, "32", "33", "34", "35", "36", "37", "", GEMM_V3)
ATTENTION_RS(128, 32, e4m3, GEMM_R7, "64", "65", "66", "67", "68", "69", "", GEMM_V7)

inline __device__ void multiply_shared(float (&d)[kScores], uint64_t a, uint64_t b, uint32_t add) {
    asm volatile(
        "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %34, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" GEMM_R3 "}, %32, %33, add, 1, 1, 0, 0;\n\t}"
        : GEMM_V3
        : "l"(a), "l"(b), "r"(add));
}

// ---------------------------------------------------------------------------------------------------------------------
// The two types: how operands lie, and how a tile of weights becomes the A of the second product

// kPiece bytes of a row of Q and K in a box; kShift is F.
template <uint32_t D>
struct Bf16 {
    static constexpr uint32_t kHead = D, kBytes = 2, kPiece = 128, kSteps = kKeys / 16;
    static constexpr float kShift = 0;
    static constexpr bool kScaled = false;

    static __device__ void scores(float (&s)[kScores], uint64_t q, uint64_t k, uint32_t add) { multiply_shared(s, q, k, add); }
    static __device__ void weights(uint32_t (&a)[kSteps][4], const float (&p)[kScores]) {
#pragma unroll
        for (uint32_t i = 0; i < kSteps * 4; ++i) a[i / 4][i % 4] = pair_of_bf16(p[2 * i], p[2 * i + 1]);
    }
    static __device__ void values(float (&o)[D / 2], const uint32_t (&a)[4], uint32_t v, uint32_t step) {
        multiply_bf16(o, a, descriptor_of<128>(v + step * 16 * 128, kKeys * 128));
    }
    static __device__ void load_values(uint32_t to, const TensorMap* v, uint32_t barrier, uint32_t key, uint32_t head) {
#pragma unroll
        for (uint32_t piece = 0; piece < D / 64; ++piece) load_box(to + piece * kKeys * 128, v, barrier, piece * 64, key, head);
    }
};

template <uint32_t D>
struct E4m3 {
    static constexpr uint32_t kHead = D, kBytes = 1, kPiece = D, kSteps = kKeys / 32;
    static constexpr float kShift = 8;
    static constexpr bool kScaled = true;

    static __device__ void scores(float (&s)[kScores], uint64_t q, uint64_t k, uint32_t add) {
        Wgmma<kKeys>::multiply(s, q, k, add);
    }
    // A lane has pairs of columns, 2 t of each eight, and the product wants four, 4 t of each sixteen: from two of its quad.
    static __device__ void weights(uint32_t (&a)[kSteps][4], const float (&p)[kScores]) {
        const uint32_t lane = threadIdx.x % 32, from = lane / 4 * 4 + lane % 2 * 2, upper = lane % 4 / 2;
#pragma unroll
        for (uint32_t i = 0; i < kSteps * 4; ++i) {
            const uint32_t first = i / 2 * 8 + i % 2 * 2;  // of sixteen columns, in the upper or the lower eight rows
            const uint32_t own = pair_of_e4m3(p[first], p[first + 1]) | pair_of_e4m3(p[first + 4], p[first + 5]) << 16;
            const uint32_t left = __shfl_sync(0xffffffff, own, from), right = __shfl_sync(0xffffffff, own, from + 1);
            a[i / 4][i % 4] = __byte_perm(left, right, upper ? 0x7632 : 0x5410);
        }
    }
    static __device__ void values(float (&o)[D / 2], const uint32_t (&a)[4], uint32_t v, uint32_t step) {
        multiply_e4m3(o, a, descriptor_of<64>(v + step * 32));
    }
    static __device__ void load_values(uint32_t to, const TensorMap* v, uint32_t barrier, uint32_t key, uint32_t head) {
        load_box(to, v, barrier, key, 0, head);
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// A block

// From the base: Q, stages of K, stages of V, a barrier for each.
template <class Type>
struct Shared {
    static constexpr uint32_t kTile = kRows * Type::kHead * Type::kBytes;
    static constexpr uint32_t kK = kTile, kV = kK + kStages * kTile, kReady = kV + kStages * kTile;
    static constexpr uint32_t kDynamic = kReady + 8 * (1 + 2 * kStages) + 1024;  // the base is rounded up to a swizzled piece
    static constexpr uint32_t kOfQ = kReady, kOfK = kOfQ + 8, kOfV = kOfK + 8 * kStages;
};

// 64 rows of Q or K: pieces of kPiece bytes of each.
template <class Type>
__device__ void load_rows(uint32_t to, const TensorMap* map, uint32_t barrier, uint32_t row, uint32_t head) {
    expect(barrier, Shared<Type>::kTile);
#pragma unroll
    for (uint32_t at = 0; at < Type::kHead * Type::kBytes; at += Type::kPiece)
        load_box(to + at * kRows, map, barrier, at / Type::kBytes, row, head);
}

template <class Type>
__device__ void load_tile(uint32_t base, const TensorMap* k, const TensorMap* v, uint32_t tile, uint32_t head) {
    using At = Shared<Type>;
    const uint32_t stage = tile % kStages;
    load_rows<Type>(base + At::kK + stage * At::kTile, k, base + At::kOfK + 8 * stage, tile * kKeys, head);
    expect(base + At::kOfV + 8 * stage, At::kTile);
    Type::load_values(base + At::kV + stage * At::kTile, v, base + At::kOfV + 8 * stage, tile * kKeys, head);
}

template <class Type>
__device__ void score(float (&s)[kScores], uint32_t q, uint32_t k) {
    hold(s);
    fence_registers();
#pragma unroll
    for (uint32_t at = 0; at < Type::kHead * Type::kBytes; at += 32) {
        const uint32_t place = at / Type::kPiece * Type::kPiece * kRows + at % Type::kPiece;
        Type::scores(s, descriptor_of<Type::kPiece>(q + place), descriptor_of<Type::kPiece>(k + place), at);
    }
    commit_products();
    wait_for_products<0>();
    hold(s);
}

// What is known of a thread's two rows, eight apart, so far; `base` is what the last exponents were taken from.
struct Rows {
    float top[2], sum[2], base[2], kept[2];
};

// Scores become weights, `kept` what older sums are multiplied by. `seen`: columns of this tile that each row sees, or fewer than 1.
template <class Type>
__device__ void weigh(float (&s)[kScores], Rows& rows, const int32_t (&seen)[2], float scale) {
    const float nothing = __int_as_float(0xff800000);
    const int32_t first = threadIdx.x % 4 * 2;
#pragma unroll
    for (uint32_t below = 0; below < 2; ++below) {
        float top = rows.top[below];
#pragma unroll
        for (uint32_t i = 0; i < kScores / 2; ++i) {
            float& each = s[i / 2 * 4 + below * 2 + i % 2];
            each = first + static_cast<int32_t>(i / 2 * 8 + i % 2) < seen[below] ? each : nothing;
            top = fmaxf(top, each);
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
        const float used = top == nothing ? 0 : top;
        const float base = __fadd_rn(__fmul_rn(used, scale), -Type::kShift);
        float sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < kScores / 2; ++i) {
            float& each = s[i / 2 * 4 + below * 2 + i % 2];
            each = ex2_flushed(__fmaf_rn(each, scale, -base));
            sum = __fadd_rn(sum, each);
        }
        rows.kept[below] = ex2_flushed(__fmul_rn(__fsub_rn(rows.top[below], used), scale));
        rows.sum[below] = __fmaf_rn(rows.sum[below], rows.kept[below], sum);
        rows.top[below] = top, rows.base[below] = base;
    }
}

template <class Type>
__device__ void add_values(float (&o)[Type::kHead / 2], const float (&p)[kScores], const float (&kept)[2], uint32_t v) {
    uint32_t a[Type::kSteps][4];
    Type::weights(a, p);
#pragma unroll
    for (uint32_t i = 0; i < Type::kHead / 2; ++i) o[i] = __fmul_rn(o[i], kept[i % 4 / 2]);
#pragma unroll
    for (uint32_t i = 0; i < Type::kSteps * 4; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
    hold(o);
    fence_registers();
#pragma unroll
    for (uint32_t step = 0; step < Type::kSteps; ++step) Type::values(o, a[step], v, step);
    commit_products();
    wait_for_products<0>();
    hold(o);
}

template <class Type>
__device__ void store(const float (&o)[Type::kHead / 2], const Rows& rows, uint32_t first, uint32_t head, float v_scale,
                      uint16_t* to, float* lse, const Problem& problem) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t below = 0; below < 2; ++below) {
        float sum = rows.sum[below];
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffff, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffff, sum, 2));
        const uint32_t row = first + threadIdx.x / 32 * 16 + below * 8 + lane / 4;
        if (row >= problem.q_length) continue;
        const uint64_t at = uint64_t{head} * problem.q_length + row;
        const float inverse = rcp_flushed(sum), ln2 = __int_as_float(0x3f317218);
        if (lane % 4 == 0) lse[at] = __fmul_rn(__fadd_rn(rows.base[below], lg2_flushed(sum)), ln2);
#pragma unroll
        for (uint32_t i = 0; i < Type::kHead / 4; i += 2) {
            float of[2];
#pragma unroll
            for (uint32_t right = 0; right < 2; ++right) {
                of[right] = __fmul_rn(o[2 * i + below * 2 + right], inverse);
                if (Type::kScaled) of[right] = __fmul_rn(of[right], v_scale);
                of[right] = sum == 0 ? 0 : of[right];
            }
            *reinterpret_cast<uint32_t*>(to + at * problem.pitch + i * 4 + lane % 4 * 2) = pair_of_bf16(of[0], of[1]);
        }
    }
}

template <class Type>
__device__ void attend(const TensorMap& q, const TensorMap& k, const TensorMap& v, const Scales& scales, uint16_t* o, float* lse,
                       const Problem& problem) {
    using At = Shared<Type>;
    extern __shared__ uint8_t dynamic[];
    const uint32_t base = up_to(shared_address(dynamic), 1024);
    const uint32_t first = blockIdx.x * kRows, head = blockIdx.y, kv_head = head / problem.group;
    const int32_t length = problem.kv_length, ahead = length - static_cast<int32_t>(problem.q_length);
    // Keys that the last row sees, of all rows of the block the most.
    const int32_t last = min(first + kRows, problem.q_length), keys = problem.causal ? max(last + ahead, 0) : length;
    const uint32_t tiles = (keys + kKeys - 1) / kKeys;

    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < 1 + 2 * kStages; ++i) barrier_init(base + At::kReady + 8 * i, 1);
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x == 0 && tiles > 0) {
        load_rows<Type>(base, &q, base + At::kOfQ, first, head);
        for (uint32_t tile = 0; tile < min(tiles, kStages); ++tile) load_tile<Type>(base, &k, &v, tile, kv_head);
    }

    float scale = problem.scale, v_scale = 1;
    if constexpr (Type::kScaled) {
        scale = __fmul_rn(__fmul_rn(scale, scales.q[head]), scales.k[kv_head]);
        v_scale = scales.v[kv_head];
    }
    const float nothing = __int_as_float(0xff800000);
    Rows rows = {{nothing, nothing}, {0, 0}, {0, 0}, {0, 0}};
    float s[kScores], sums[Type::kHead / 2] = {};
    if (tiles > 0) wait(base + At::kOfQ, 0);
#pragma unroll 1
    for (uint32_t tile = 0; tile < tiles; ++tile) {
        const uint32_t stage = tile % kStages, parity = tile / kStages % 2;
        int32_t seen[2];
#pragma unroll
        for (uint32_t below = 0; below < 2; ++below) {
            const int32_t row = first + threadIdx.x / 32 * 16 + below * 8 + threadIdx.x % 32 / 4;
            seen[below] = (problem.causal ? min(row + ahead + 1, length) : length) - static_cast<int32_t>(tile * kKeys);
        }
        wait(base + At::kOfK + 8 * stage, parity);
        score<Type>(s, base, base + At::kK + stage * At::kTile);
        weigh<Type>(s, rows, seen, scale);
        wait(base + At::kOfV + 8 * stage, parity);
        add_values<Type>(sums, s, rows.kept, base + At::kV + stage * At::kTile);
        __syncthreads();  // every warp's products have read the stage
        if (threadIdx.x == 0 && tile + kStages < tiles) load_tile<Type>(base, &k, &v, tile + kStages, kv_head);
    }
    store<Type>(sums, rows, first, head, v_scale, o, lse, problem);
}

#define ENTRY(NAME, BYTES, ...)                                                                                        \
    extern "C" __global__ void __launch_bounds__(kThreads) attention_sm90_##NAME(                                      \
        const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, \
        const Scales scales, uint16_t* o, float* lse, const Problem problem) {                                         \
        static_assert(Shared<__VA_ARGS__>::kDynamic == BYTES, "a launch asks for the bytes of the table");             \
        attend<__VA_ARGS__>(q, k, v, scales, o, lse, problem);                                                         \
    }

// attention.py reads these lines.
//    name  shared bytes
ENTRY(bf16_64,     42024, Bf16<64>)
ENTRY(bf16_128,    82984, Bf16<128>)
ENTRY(e4m3_64,     21544, E4m3<64>)
ENTRY(e4m3_128,    42024, E4m3<128>)

}  // namespace attention
