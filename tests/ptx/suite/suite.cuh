// What the kernels of this folder share. All have one signature, and a template argument LESS: 0 is the right kernel, any
// other number is the same kernel less one edge. A comment `A2` marks one, `B2` the other of the two accesses that instance
// 2 leaves without order. Exact instructions are macros, so that their source line is the line where they stand.
#pragma once

#define ARGS const unsigned *in, unsigned *out, unsigned *work
#define LESS_0(name) template __global__ void name<0>(ARGS);
#define LESS_1(name) LESS_0(name) template __global__ void name<1>(ARGS);
#define LESS_2(name) LESS_1(name) template __global__ void name<2>(ARGS);
#define LESS_3(name) LESS_2(name) template __global__ void name<3>(ARGS);
#define LESS_4(name) LESS_3(name) template __global__ void name<4>(ARGS);
#define LESS_5(name) LESS_4(name) template __global__ void name<5>(ARGS);
#define LESS_6(name) LESS_5(name) template __global__ void name<6>(ARGS);
#define LESS_7(name) LESS_6(name) template __global__ void name<7>(ARGS);
#define LESS_8(name) LESS_7(name) template __global__ void name<8>(ARGS);

// Addresses in global memory (or generic), then addresses in shared memory.
#define LD(how, value, from) asm volatile("ld." how ".u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory")
#define ST(how, to, value) asm volatile("st." how ".u32 [%0], %1;" ::"l"(to), "r"(value) : "memory")
#define LD64(how, value, from) asm volatile("ld." how ".u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory")
#define ST64(how, to, value) asm volatile("st." how ".u64 [%0], %1;" ::"l"(to), "l"(value) : "memory")
#define RED(how, to, value) asm volatile("red." how ".u32 [%0], %1;" ::"l"(to), "r"(value) : "memory")
#define ATOM(how, found, to, value) \
  asm volatile("atom." how ".u32 %0, [%1], %2;" : "=r"(found) : "l"(to), "r"(value) : "memory")
#define EXCHANGE(how, found, to, value) \
  asm volatile("atom." how ".exch.b32 %0, [%1], %2;" : "=r"(found) : "l"(to), "r"(value) : "memory")
#define SWAP(how, found, to, old, value) \
  asm volatile("atom." how ".cas.b32 %0, [%1], %2, %3;" : "=r"(found) : "l"(to), "r"(old), "r"(value) : "memory")
#define AT(pointer) static_cast<unsigned>(__cvta_generic_to_shared(pointer))
#define LDS(how, value, from) asm volatile("ld." how ".shared.u32 %0, [%1];" : "=r"(value) : "r"(AT(from)) : "memory")
#define STS(how, to, value) asm volatile("st." how ".shared.u32 [%0], %1;" ::"r"(AT(to)), "r"(value) : "memory")
#define REDS(how, to, value) asm volatile("red." how ".u32 [%0], %1;" ::"r"(AT(to)), "r"(value) : "memory")

#define FENCE(how) asm volatile("fence." how ";" ::: "memory")
#define SYNC(number, count) asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory")
#define ARRIVE(number, count) asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(count) : "memory")

#define COPY(to, from) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(AT(to)), "l"(from) : "memory")
#define COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT(groups) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory")
#define WAIT_ALL() asm volatile("cp.async.wait_all;" ::: "memory")
