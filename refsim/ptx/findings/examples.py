"""The smallest kernel in which each check finds its code, and the fix; `refsim explain CODE` and the site show them.

A line that ends in `// wrong` makes the mistake. A line that ends in `// right` replaces it, or was missing. The other lines
belong to both kernels. An example without `block` consists of single lines where a whole kernel would hide the point; the
tests that launch every example put them into a kernel.
"""

from dataclasses import dataclass

WRONG, RIGHT = "// wrong", "// right"


@dataclass(frozen=True)
class Example:
    """Lines of CUDA with both marks, and the fix in a sentence; `block`: the threads of a whole kernel, 0 for single lines."""

    fix: str
    lines: str
    block: int = 0

    def text(self, mark: str) -> str:
        """Return the kernel with the lines of one mark, WRONG or RIGHT, and without the lines of the other."""
        other = RIGHT if mark == WRONG else WRONG
        return "".join(line for line in self.lines.splitlines(keepends=True) if not line.rstrip().endswith(other))


def _kernel(block: int, fix: str, body: str, head: str = "__global__ void example(unsigned* out) {") -> Example:
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return Example(fix, f"{head}\n{indented}}}\n", block)


def _lines(fix: str, body: str) -> Example:
    return Example(fix, body.strip() + "\n")


EXAMPLES = {
    "race": _kernel(
        64,
        "order the two accesses: __syncwarp among lanes of a warp, __syncthreads among warps of a block, a release "
        "and an acquire among blocks",
        """
__shared__ unsigned held[64];
held[threadIdx.x] = threadIdx.x;
__syncthreads();  // right
out[threadIdx.x] = held[63 - threadIdx.x];
""",
    ),
    "ordered-by-convergence": _kernel(
        32,
        "add __syncwarp() next to the shuffle or vote: the threads meet there, but only a barrier orders memory",
        """
__shared__ unsigned held[32];
held[threadIdx.x] = threadIdx.x;
unsigned other = __shfl_xor_sync(~0u, threadIdx.x, 1);
__syncwarp();  // right
out[threadIdx.x] = held[other];
""",
    ),
    "equal-stores": _lines(
        "let one thread issue the copy; the two copies write equal bytes only by chance",
        """
if (threadIdx.x % 32 == 0)  // wrong
if (threadIdx.x == 0)  // right
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 64;" ::"l"(out), "r"(held) : "memory");
""",
    ),
    "shared-barrier": _lines(
        "use a separate barrier number for each pair of warps, or order the two uses",
        """
// used by warps 0 and 1, then by warps 2 and 3, in no order
asm volatile("bar.sync 1, 64;" ::: "memory");  // wrong
asm volatile("bar.sync %0, 64;" ::"r"(1 + threadIdx.x / 64) : "memory");  // right
""",
    ),
    "stale-read": _kernel(
        32,
        "use an ordinary load for data that the launch writes: no __ldg, no const __restrict__ on that pointer",
        """
volatile unsigned* written = out;
written[threadIdx.x] = 1;
unsigned back = __ldg(out + threadIdx.x);  // wrong
unsigned back = written[threadIdx.x];  // right
written[threadIdx.x] = back + 1;
""",
    ),
    "missing-proxy-fence": _lines(
        "execute fence.proxy.async in every thread that wrote, before the barrier after which the copy is issued",
        """
held[threadIdx.x] = threadIdx.x;
asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // right
__syncthreads();
if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;" ::"l"(out), "r"(place) : "memory");
""",
    ),
    "unfenced-refill": _lines(
        "none may be needed, as compilers emit none here; the letter of the ISA asks for fence.proxy.async before arrival",
        """
unsigned seen = held[threadIdx.x];
asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // right
asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(empty) : "memory");  // its waiter issues the copy that refills
""",
    ),
    "map-beyond-rank": _lines(
        "replace only dimensions below the rank of the map",
        """
// a map of rank 2
asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 2, %1;" ::"l"(map), "r"(rows));  // wrong
asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %1;" ::"l"(map), "r"(rows));  // right
""",
    ),
    "missing-grid-wait": _lines(
        "execute griddepcontrol.wait (cudaGridDependencySynchronize) before accesses to memory of the previous launch",
        """
asm volatile("griddepcontrol.wait;" ::: "memory");  // right
out[threadIdx.x] = written_by_the_launch_before[threadIdx.x];
""",
    ),
    "read-before-wait": _kernel(
        16,
        "commit after the copies of a stage, and wait for that group before any thread reads the stage",
        """
__shared__ alignas(16) unsigned held[64];
unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(held + 4 * threadIdx.x));
asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(out + 4 * threadIdx.x) : "memory");
asm volatile("cp.async.commit_group;" ::: "memory");
asm volatile("cp.async.wait_group 0;" ::: "memory");  // right
out[64 + threadIdx.x] = held[4 * threadIdx.x];
""",
    ),
    "register-in-flight": _lines(
        "commit after the products of a step, and wait for that group before their accumulators are touched",
        """
asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");  // right
out[threadIdx.x] = accumulator[0];
""",
    ),
    "unfenced-register": _lines(
        "execute wgmma.fence before the first product, and after other code touched its registers",
        """
accumulator[0] *= 2.0f;
asm volatile("wgmma.fence.sync.aligned;" : "+f"(accumulator[0]) :: "memory");  // right
asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
    : "+f"(accumulator[0]), "+f"(accumulator[1]), "+f"(accumulator[2]), "+f"(accumulator[3]) : "l"(a), "l"(b));
""",
    ),
    "tensor-memory-in-flight": _lines(
        "commit after the products, and wait for that phase before D is loaded; execute tcgen05.wait::st after stores",
        """
asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(done) : "memory");
wait_for(done, phase);  // right
asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(d) : "r"(columns));
""",
    ),
    "tensor-memory-leak": _lines(
        "deallocate each allocation in one warp before the block exits",
        """
asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(columns));  // right
return;
""",
    ),
    "unfinished-copy": _lines(
        "wait for every phase that counts bytes before the block exits",
        """
asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 64, [%2];"
    ::"r"(held), "l"(out), "r"(full) : "memory");
wait_for(full, phase);  // right
return;
""",
    ),
    "unfinished-store": _lines(
        "execute cp.async.bulk.wait_group.read 0 in the thread that stores, before the block exits",
        """
asm volatile("cp.async.bulk.commit_group;" ::: "memory");
asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // right
return;
""",
    ),
    "uninitialised": _kernel(
        64,
        "write every element that is read: the tail of a tile, a padded row, an accumulator's first value",
        """
__shared__ unsigned held[64];
if (threadIdx.x < 48)  // wrong
held[threadIdx.x] = 1;
__syncthreads();
out[threadIdx.x] = held[63 - threadIdx.x];
""",
    ),
    "uninitialised-unused": _kernel(
        64,
        "none is needed: the value reaches no output, address or branch; without the read the note disappears",
        """
__shared__ volatile unsigned held[64];
unsigned unused = held[threadIdx.x];  // wrong
out[threadIdx.x] = 1;
""",
    ),
    "divergent-sync": _kernel(
        32,
        "let all threads of the warp reach the barrier together: outside the branch, or with a mask of those threads",
        """
__shared__ unsigned held[32];
held[threadIdx.x] = threadIdx.x;
if (threadIdx.x < 16)  // wrong
__syncthreads();
out[threadIdx.x] = held[threadIdx.x];
""",
    ),
    "schedule-dependent": _lines(
        "let the place, or the order of a sum, depend on the thread and not on which thread came first",
        """
unsigned place = atomicAdd(count, 1);  // wrong
unsigned place = blockIdx.x * blockDim.x + threadIdx.x;  // right
out[place] = value;
""",
    ),
    "phase-waited-twice": _lines(
        "flip the parity once a phase was seen complete",
        """
wait_for(full, parity);
arrive(empty);
parity ^= 1;  // right
wait_for(full, parity);
""",
    ),
    "setmaxnreg-ignored": Example(
        "declare how many threads a block has: __launch_bounds__, or .maxntid in PTX",
        """\
__global__ void example(unsigned* out) {  // wrong
__global__ void __launch_bounds__(128) example(unsigned* out) {  // right
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    out[threadIdx.x] = 1;
}
""",
        128,
    ),
    "leak": _kernel(
        32,
        "free what malloc returned, on every path to the end",
        """
volatile unsigned* own = static_cast<unsigned*>(malloc(4));
*own = threadIdx.x;
out[threadIdx.x] = *own;
free(const_cast<unsigned*>(own));  // right
""",
    ),
    "bank-conflicts": _kernel(
        32,
        "let neighboring lanes access neighboring banks: add a column of padding, or use a swizzle",
        """
__shared__ unsigned held[32][32];  // wrong
__shared__ unsigned held[32][33];  // right
for (int row = 0; row < 32; ++row) held[row][threadIdx.x] = row;
__syncwarp();
out[threadIdx.x] = held[threadIdx.x][5];
""",
    ),
    "out-of-bounds": _kernel(
        64,
        "compare the index with the extent before the access",
        """
if (threadIdx.x < 63)  // right
    out[256 - 63 + threadIdx.x] = 1;
""",
    ),
    "use-after-free": _kernel(
        32,
        "free after the last access, with an order between other threads' accesses and the free",
        """
volatile unsigned* own = static_cast<unsigned*>(malloc(4));
*own = threadIdx.x;
free(const_cast<unsigned*>(own));  // wrong
out[threadIdx.x] = *own;
free(const_cast<unsigned*>(own));  // right
""",
    ),
    "invalid-free": _kernel(
        32,
        "free the pointer that malloc returned, once",
        """
unsigned* own = static_cast<unsigned*>(malloc(8));
out[threadIdx.x] = own != nullptr;
free(own + 1);  // wrong
free(own);  // right
""",
    ),
    "misaligned": _kernel(
        32,
        "use an address that is a multiple of the bytes of one access: 8 for uint2, 16 for uint4",
        """
*reinterpret_cast<uint2*>(out + 2 * threadIdx.x + 1) = make_uint2(1, 2);  // wrong
*reinterpret_cast<uint2*>(out + 2 * threadIdx.x) = make_uint2(1, 2);  // right
""",
    ),
    "read-only": _lines(
        "write to an output; declare a buffer that is both input and output as updated by the kernel",
        """
const_cast<unsigned*>(input)[threadIdx.x] = 0;  // wrong
out[threadIdx.x] = 0;  // right
""",
    ),
    "invalid-operand": _lines(
        "pass an operand that the rule of the finding permits: here the rank of a block in the cluster",
        """
unsigned there;
asm volatile("mapa.shared::cluster.u32 %0, %1, %%cluster_nctarank;" : "=r"(there) : "r"(held));  // wrong
asm volatile("mapa.shared::cluster.u32 %0, %1, %%cluster_ctarank;" : "=r"(there) : "r"(held));  // right
""",
    ),
    "invalid-call": _lines(
        "call through a pointer to a function of that type",
        """
auto* function = reinterpret_cast<int (*)(int)>(table[kind] + 8);  // wrong
auto* function = reinterpret_cast<int (*)(int)>(table[kind]);  // right
out[threadIdx.x] = function(threadIdx.x);
""",
    ),
    "barrier-misuse": _kernel(
        64,
        "use a number from 0 to 15, and a count that is a multiple of 32 and not more than the threads of the block",
        """
unsigned count = 48 + out[255];  // wrong
unsigned count = 64 + out[255];  // right
asm volatile("bar.sync 1, %0;" ::"r"(count) : "memory");
out[threadIdx.x] = 1;
""",
    ),
    "tensor-memory-misuse": _lines(
        "allocate a power of two of at least 32 columns, and address only allocated columns",
        """
asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 48;" ::"r"(place));  // wrong
asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(place));  // right
""",
    ),
    "deadlock": _kernel(
        64,
        "let as many threads arrive as the barrier expects, all at one number",
        """
if (threadIdx.x < 32)  // wrong
asm volatile("bar.sync 1, 64;" ::: "memory");
out[threadIdx.x] = 1;
""",
    ),
    "trap": _kernel(
        32,
        "the kernel itself detected a mistake: check the condition before the trap",
        """
if (out[255] == 0) __trap();  // wrong
out[threadIdx.x] = 1;
""",
    ),
    "timeout": _lines(
        "give the launch more time, Checks(seconds=...), or a smaller test case; an endless loop exceeds every limit",
        """
for (unsigned turn = 1; turn != 1u << 6; turn += 2) atomicAdd(out, turn);  // wrong
for (unsigned turn = 1; turn < 1u << 6; turn += 2) atomicAdd(out, turn);  // right
""",
    ),
}
"""The example of each finding, by its code."""
