// Who holds which element: unique tags through ldmatrix, stmatrix, mma.sync, wgmma and TMA, and the cycles of
// shared-memory accesses.
//
// A product is a black box from places of A and places of B to places of D. `pairs` puts a single 1 at place a of A and
// a single 1 at place b of B, everything else 0, and says at which place of D a 1 comes out. A place in registers is
// thread * values + value, values counted from the lowest register and bit up; a place in shared memory is a slot of the
// element's size, counted from the region's first byte. layouts_forms.inc (text() of layouts_forms.py) has one Op per
// instruction.
//
// Compile: nvcc -cubin -std=c++17 -gencode arch=compute_90a,code=sm_90a, with the folder of layouts_forms.inc as -I

#include <cuda_fp16.h>

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 ALL = ~0u;       // a place: every place holds a 1
constexpr u32 NONE = ~0u - 1;  // a result: no place of D is other than 0
constexpr u32 MANY = ~0u - 2;  // a result: several are, or one that is not 1

__device__ u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

// Generic-proxy writes to shared memory, seen by tensor cores and TMA after the barrier.
__device__ void publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
}

extern __shared__ __align__(1024) u8 region[];

__device__ void fill(u8* from, u32 bytes, u32 word) {
    for (u32 i = threadIdx.x; i < bytes / 4; i += blockDim.x) reinterpret_cast<u32*>(from)[i] = word;
}

// ---- products --------------------------------------------------------------------------------------------------------

template <class Word>
__device__ Word ones(u32 bits, u64 one) {
    Word word = 0;
    for (u32 shift = 0; shift < 8 * sizeof(Word); shift += bits) word |= Word(one) << shift;
    return word;
}

// Registers that hold a 1 at one place of `values` per thread.
template <class Word, u32 REGISTERS>
__device__ void put(Word (&registers)[REGISTERS], u32 place, u32 values, u32 bits, u64 one) {
    u32 per = 8 * sizeof(Word) / bits, value = place % values;
    bool mine = place / values == threadIdx.x;
#pragma unroll
    for (u32 r = 0; r < REGISTERS; ++r) {
        Word hot = mine && value / per == r ? Word(one) << value % per * bits : Word(0);
        registers[r] = place == ALL ? ones<Word>(bits, one) : hot;
    }
}

// A region of shared memory, all 0, that is to hold a 1 in one slot; what `put_shared` wrote, `clear_shared` takes back.
__device__ void put_shared(u8* start, u32 bytes, u32 slot, u32 bits, u64 one) {
    if (slot == ALL) fill(start, bytes, ones<u32>(bits, one));
    else if (threadIdx.x == 0)
        reinterpret_cast<u32*>(start)[u64(slot) * bits / 32] = u32(one) << slot * bits % 32;
}

__device__ void clear_shared(u8* start, u32 bytes, u32 slot, u32 bits) {
    if (slot == ALL) fill(start, bytes, 0);
    else if (threadIdx.x == 0) reinterpret_cast<u32*>(start)[u64(slot) * bits / 32] = 0;
}

template <class Op>
__device__ void report(const typename Op::Word (&d)[Op::D_REGISTERS], u32* result) {
    constexpr u32 PER = 8 * sizeof(typename Op::Word) / Op::ACCUMULATOR_BITS;
    constexpr u64 MASK = ~0ull >> (64 - Op::ACCUMULATOR_BITS);
    u32 count = 0, place = 0;
#pragma unroll
    for (u32 value = 0; value < Op::D_VALUES; ++value) {
        u64 got = u64(d[value / PER]) >> value % PER * Op::ACCUMULATOR_BITS & MASK;
        count += got == 0 ? 0 : got == Op::ACCUMULATOR_ONE ? 1 : 2;
        place = got ? value : place;
    }
    bool several = __syncthreads_or(count > 1);
    u32 holders = __syncthreads_count(count != 0);
    if (several || holders > 1) {
        if (threadIdx.x == 0) *result = MANY;
    } else if (holders == 0) {
        if (threadIdx.x == 0) *result = NONE;
    } else if (count) *result = threadIdx.x * Op::D_VALUES + place;
}

template <class Op>
__device__ void pairs(const u32* a_places, u32 a_count, const u32* b_places, u32 b_count, u32* results) {
    typename Op::Word a[Op::A_REGISTERS], b[Op::B_REGISTERS];
    for (u32 i = blockIdx.x; i < a_count; i += gridDim.x) {
        put(a, a_places[i], Op::A_VALUES, Op::BITS, Op::ONE);
        for (u32 j = 0; j < b_count; ++j) {
            put(b, b_places[j], Op::B_VALUES, Op::BITS, Op::ONE);
            typename Op::Word d[Op::D_REGISTERS] = {};
            Op::run(d, a, b);
            report<Op>(d, results + u64(i) * b_count + j);
        }
    }
}

// C through a product of zeros: place p of C holds p + 1, and what D then holds is kept.
template <class Op>
__device__ void carry(u64* results) {
    using Word = typename Op::Word;
    constexpr u32 PER = 8 * sizeof(Word) / Op::ACCUMULATOR_BITS;
    Word a[Op::A_REGISTERS] = {}, b[Op::B_REGISTERS] = {}, d[Op::D_REGISTERS] = {};
#pragma unroll
    for (u32 value = 0; value < Op::D_VALUES; ++value) {
        u32 tag = threadIdx.x * Op::D_VALUES + value + 1;
        u64 bits = Op::INTEGER                   ? tag
                   : Op::ACCUMULATOR_BITS == 64 ? u64(__double_as_longlong(double(tag)))
                   : Op::ACCUMULATOR_BITS == 32 ? __float_as_uint(float(tag))
                                                : __half_as_ushort(__float2half(float(tag)));
        d[value / PER] |= Word(bits) << value % PER * Op::ACCUMULATOR_BITS;
    }
    Op::run(d, a, b);
#pragma unroll
    for (u32 value = 0; value < Op::D_VALUES; ++value)
        results[threadIdx.x * Op::D_VALUES + value] =
            u64(d[value / PER]) >> value % PER * Op::ACCUMULATOR_BITS & ~0ull >> (64 - Op::ACCUMULATOR_BITS);
}

// Where the regions of A and B lie and the words that describe them, their start addresses counted from the region.
struct Operands {
    u64 a_word, b_word;
    u32 a_bytes, b_bytes;
};

__device__ u64 descriptor(u64 word, const u8* start) { return word + (shared_address(start) >> 4); }

template <class Op, bool FED>
__device__ void wgmma_pairs(
    const u32* a_places, u32 a_count, const u32* b_places, u32 b_count, Operands operands, u32* results) {
    u8 *a_start = region, *b_start = region + (operands.a_bytes + 1023) / 1024 * 1024;
    fill(a_start, operands.a_bytes, 0);
    fill(b_start, operands.b_bytes, 0);
    if (shared_address(region) % 1024) __trap();
    u64 b_word = descriptor(operands.b_word, b_start), a_word = descriptor(operands.a_word, a_start);
    typename Op::Word a[Op::A_REGISTERS];
    __syncthreads();
    for (u32 i = blockIdx.x; i < a_count; i += gridDim.x) {
        if (FED) put(a, a_places[i], Op::A_VALUES, Op::BITS, Op::ONE);
        else put_shared(a_start, operands.a_bytes, a_places[i], Op::BITS, Op::ONE);
        for (u32 j = 0; j < b_count; ++j) {
            put_shared(b_start, operands.b_bytes, b_places[j], Op::BITS, Op::ONE);
            publish();
            typename Op::Word d[Op::D_REGISTERS] = {};
            if constexpr (FED) Op::run(d, a, b_word);
            else Op::run(d, a_word, b_word);
            report<Op>(d, results + u64(i) * b_count + j);
            clear_shared(b_start, operands.b_bytes, b_places[j], Op::BITS);
            __syncthreads();
        }
        if (!FED) clear_shared(a_start, operands.a_bytes, a_places[i], Op::BITS);
        __syncthreads();
    }
}

#define PLACES const u32 *a_places, u32 a_count, const u32 *b_places, u32 b_count
#define MMA(entry)                                                                                                     \
    extern "C" __global__ void entry(PLACES, u32* results) {                                                           \
        pairs<op_##entry>(a_places, a_count, b_places, b_count, results);                                              \
    }                                                                                                                  \
    extern "C" __global__ void entry##_carry(u64* results) { carry<op_##entry>(results); }
#define WGMMA_FED(entry)                                                                                               \
    extern "C" __global__ __launch_bounds__(128) void entry(Operands operands, PLACES, u32* results) {                 \
        wgmma_pairs<op_##entry, true>(a_places, a_count, b_places, b_count, operands, results);                        \
    }
#define WGMMA_SHARED(entry)                                                                                            \
    extern "C" __global__ __launch_bounds__(128) void entry(Operands operands, PLACES, u32* results) {                 \
        wgmma_pairs<op_##entry, false>(a_places, a_count, b_places, b_count, operands, results);                       \
    }

#include "layouts_forms.inc"

// ---- ldmatrix, stmatrix ----------------------------------------------------------------------------------------------

constexpr u32 ROWS = 40;  // 16-byte slots of shared memory; lane i names slot slots[i]

// Halfword h of slot s holds s * 8 + h; registers come back as they are.
#define LDMATRIX(entry, count, form, ...)                                                                              \
    extern "C" __global__ void entry(const u32* slots, u32* results) {                                                 \
        __shared__ __align__(16) u16 rows[ROWS * 8];                                                                   \
        for (u32 i = threadIdx.x; i < ROWS * 8; i += 32) rows[i] = u16(i);                                             \
        __syncthreads();                                                                                               \
        u32 d[count];                                                                                                  \
        u32 row = shared_address(rows + 8 * slots[threadIdx.x]);                                                       \
        asm volatile("ldmatrix.sync.aligned." form " [%" #count "];" : __VA_ARGS__ : "r"(row) : "memory");             \
        for (u32 r = 0; r < count; ++r) results[threadIdx.x * count + r] = d[r];                                       \
    }
// Value v of a lane is lane * values + v; the halfwords of all slots come back.
#define STMATRIX(entry, count, form, ...)                                                                              \
    extern "C" __global__ void entry(const u32* slots, u16* results) {                                                 \
        __shared__ __align__(16) u16 rows[ROWS * 8];                                                                   \
        for (u32 i = threadIdx.x; i < ROWS * 8; i += 32) rows[i] = 0xFFFF;                                             \
        __syncthreads();                                                                                               \
        u32 d[count];                                                                                                  \
        for (u32 r = 0; r < count; ++r) d[r] = (threadIdx.x * count + r) * 0x20002u + 0x10000u;                        \
        u32 row = shared_address(rows + 8 * slots[threadIdx.x]);                                                       \
        asm volatile("stmatrix.sync.aligned." form ";" ::"r"(row), __VA_ARGS__ : "memory");                            \
        __syncthreads();                                                                                               \
        for (u32 i = threadIdx.x; i < ROWS * 8; i += 32) results[i] = rows[i];                                         \
    }
#define OUT1 "=r"(d[0])
#define OUT2 OUT1, "=r"(d[1])
#define OUT4 OUT2, "=r"(d[2]), "=r"(d[3])
#define IN1 "r"(d[0])
#define IN2 IN1, "r"(d[1])
#define IN4 IN2, "r"(d[2]), "r"(d[3])
LDMATRIX(ldmatrix_x1, 1, "m8n8.x1.shared.b16 {%0},", OUT1)
LDMATRIX(ldmatrix_x2, 2, "m8n8.x2.shared.b16 {%0, %1},", OUT2)
LDMATRIX(ldmatrix_x4, 4, "m8n8.x4.shared.b16 {%0, %1, %2, %3},", OUT4)
LDMATRIX(ldmatrix_x1_trans, 1, "m8n8.x1.trans.shared.b16 {%0},", OUT1)
LDMATRIX(ldmatrix_x2_trans, 2, "m8n8.x2.trans.shared.b16 {%0, %1},", OUT2)
LDMATRIX(ldmatrix_x4_trans, 4, "m8n8.x4.trans.shared.b16 {%0, %1, %2, %3},", OUT4)
STMATRIX(stmatrix_x1, 1, "m8n8.x1.shared.b16 [%0], {%1}", IN1)
STMATRIX(stmatrix_x2, 2, "m8n8.x2.shared.b16 [%0], {%1, %2}", IN2)
STMATRIX(stmatrix_x4, 4, "m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4}", IN4)
STMATRIX(stmatrix_x1_trans, 1, "m8n8.x1.trans.shared.b16 [%0], {%1}", IN1)
STMATRIX(stmatrix_x2_trans, 2, "m8n8.x2.trans.shared.b16 [%0], {%1, %2}", IN2)
STMATRIX(stmatrix_x4_trans, 4, "m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4}", IN4)

// ---- TMA -------------------------------------------------------------------------------------------------------------

__constant__ __align__(64) u8 tensor_map[128];
constexpr u64 PATIENCE = 20000000;  // cycles

struct Copy {
    int x, y, z;
    u32 rank, shared_offset, transaction_bytes, window_bytes, poison;
};

// A box into a poisoned window of shared memory, which comes back; result 0 is 1 if the transaction count was met.
extern "C" __global__ void tma_load(Copy copy, u32* met, u32* window) {
    __shared__ __align__(8) u64 barrier;
    fill(region, copy.window_bytes, copy.poison);
    u32 bar = shared_address(&barrier), to = shared_address(region) + copy.shared_offset, done = 0;
    if (shared_address(region) % 1024) __trap();
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
    publish();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(copy.transaction_bytes)
                     : "memory");
        if (copy.rank == 2)
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                         " [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(tensor_map), "r"(copy.x), "r"(copy.y), "r"(bar)
                         : "memory");
        else
            asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                         " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(tensor_map), "r"(copy.x), "r"(copy.y),
                         "r"(copy.z), "r"(bar) : "memory");
        for (long long began = clock64(); !done && clock64() - began < PATIENCE;)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done) : "r"(bar) : "memory");
        *met = done;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < copy.window_bytes / 4; i += blockDim.x) window[i] = reinterpret_cast<u32*>(region)[i];
}

// A box out of shared memory, whose byte o holds byte `poison` of the number o + 1, into the tensor.
extern "C" __global__ void tma_store(Copy copy) {
    for (u32 i = threadIdx.x; i < copy.window_bytes; i += blockDim.x) region[i] = u8((i + 1) >> 8 * copy.poison);
    u32 from = shared_address(region) + copy.shared_offset;
    if (shared_address(region) % 1024) __trap();
    publish();
    if (threadIdx.x == 0) {
        if (copy.rank == 2)
            asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                             tensor_map), "r"(copy.x), "r"(copy.y), "r"(from) : "memory");
        else
            asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
                             tensor_map), "r"(copy.x), "r"(copy.y), "r"(copy.z), "r"(from) : "memory");
        asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// ---- cycles of shared-memory accesses --------------------------------------------------------------------------------

constexpr u32 ROUNDS = 64, TOGETHER = 8;  // each warp makes ROUNDS * TOGETHER accesses

// One block per pattern and multiprocessor; all warps access the 32 addresses of the pattern at once. `step` is 0, which
// ptxas does not know: it would make one access of equal ones, and drop words that nobody adds.
template <class Access>
__device__ void cycles(const u32* addresses, u32 step, u64* results, Access access) {
    u32 address = shared_address(region) + addresses[blockIdx.x * 32 + threadIdx.x % 32];
    for (u32 i = threadIdx.x; i < 8192; i += blockDim.x) reinterpret_cast<u32*>(region)[i] = i;
    u32 sum = threadIdx.x;
    long long began = 0;
    for (u32 round = 0; round < ROUNDS + 2; ++round) {
        if (round == 2) {
            __syncthreads();
            began = clock64();
        }
        u32 got[TOGETHER][4] = {};
#pragma unroll
        for (u32 i = 0; i < TOGETHER; ++i) access(got[i], address += step);
#pragma unroll
        for (u32 i = 0; i < TOGETHER; ++i) sum += got[i][0] + got[i][1] + got[i][2] + got[i][3];
    }
    __syncthreads();
    long long took = clock64() - began;
    if (threadIdx.x == 0) results[2 * blockIdx.x] = u64(took);
    if (sum == 0x80000001u) results[2 * blockIdx.x + 1] = sum;
}

#define CYCLES(entry, ...)                                                                                             \
    extern "C" __global__ void entry(const u32* addresses, u32 step, u64* results) {                                   \
        cycles(addresses, step, results, [](u32(&got)[4], u32 address) { __VA_ARGS__; });                                    \
    }
#define GOT "=r"(got[0])
#define GOT2 GOT, "=r"(got[1])
#define GOT4 GOT2, "=r"(got[2]), "=r"(got[3])
CYCLES(cycles_load_1, asm volatile("ld.shared.u8 %0, [%1];" : GOT : "r"(address) : "memory"))
CYCLES(cycles_load_2, asm volatile("{.reg .b16 h; ld.shared.b16 h, [%1]; cvt.u32.u16 %0, h;}" : GOT : "r"(address) : "memory"))
CYCLES(cycles_load_4, asm volatile("ld.shared.b32 %0, [%1];" : GOT : "r"(address) : "memory"))
CYCLES(cycles_load_8, asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : GOT2 : "r"(address) : "memory"))
CYCLES(cycles_load_16, asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : GOT4 : "r"(address) : "memory"))
CYCLES(cycles_store_4, asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(address) : "memory"))
CYCLES(cycles_store_8, asm volatile("st.shared.v2.b32 [%0], {%1, %1};" ::"r"(address), "r"(address) : "memory"))
CYCLES(cycles_store_16, asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(address) : "memory"))
CYCLES(cycles_ldmatrix, asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                                     : GOT4 : "r"(address) : "memory"))
CYCLES(cycles_stmatrix, asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %1, %1, %1};"
                                                 ::"r"(address), "r"(address) : "memory"))
