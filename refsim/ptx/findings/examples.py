"""The smallest kernel of each check that its code is found in, and what mends it: `refsim explain CODE` and the site show them.

A line that ends in `// wrong` makes the mistake, one in `// mended` stands in its place or was missing; the others are in both.
Where a whole kernel would hide the point, lines stand alone: those have no `block`, and the tests that launch every example put
them into a kernel.
"""

from dataclasses import dataclass

WRONG, MENDED = "// wrong", "// mended"


@dataclass(frozen=True)
class Example:
    """Lines of CUDA with both marks, and what mends the mistake in a sentence; `block` threads launch a whole kernel. What
    stands around lines that are none is the tests'."""

    mends: str
    lines: str
    block: int = 0

    def text(self, mark: str) -> str:
        """Return the kernel with the lines of one mark, WRONG or MENDED, and without those of the other."""
        other = MENDED if mark == WRONG else WRONG
        return "".join(line for line in self.lines.splitlines(keepends=True) if not line.rstrip().endswith(other))


def _kernel(block: int, mends: str, body: str, head: str = "__global__ void example(unsigned* out) {") -> Example:
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return Example(mends, f"{head}\n{indented}}}\n", block)


def _lines(mends: str, body: str) -> Example:
    return Example(mends, body.strip() + "\n")


EXAMPLES = {
    "race": _kernel(
        64,
        "put an order between the two accesses: __syncwarp among lanes of a warp, __syncthreads among warps of a block, a "
        "release and an acquire among blocks",
        """
__shared__ unsigned held[64];
held[threadIdx.x] = threadIdx.x;
__syncthreads();  // mended
out[threadIdx.x] = held[63 - threadIdx.x];
""",
    ),
    "ordered-by-convergence": _kernel(
        32,
        "__syncwarp() next to the shuffle or vote: the threads meet there, and only a barrier orders memory",
        """
__shared__ unsigned held[32];
held[threadIdx.x] = threadIdx.x;
unsigned other = __shfl_xor_sync(~0u, threadIdx.x, 1);
__syncwarp();  // mended
out[threadIdx.x] = held[other];
""",
    ),
    "equal-stores": _lines(
        "let one thread issue the copy; that both bring the same bytes is luck of the data",
        """
if (threadIdx.x % 32 == 0)  // wrong
if (threadIdx.x == 0)  // mended
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 64;" ::"l"(out), "r"(held) : "memory");
""",
    ),
    "shared-barrier": _lines(
        "a number of its own for each pair of warps, or an order between the two uses",
        """
// warps 0 and 1, then warps 2 and 3, which nothing orders
asm volatile("bar.sync 1, 64;" ::: "memory");  // wrong
asm volatile("bar.sync %0, 64;" ::"r"(1 + threadIdx.x / 64) : "memory");  // mended
""",
    ),
    "stale-read": _kernel(
        32,
        "read what the launch writes by an ordinary load: no __ldg, no const __restrict__ on that pointer",
        """
volatile unsigned* written = out;
written[threadIdx.x] = 1;
unsigned back = __ldg(out + threadIdx.x);  // wrong
unsigned back = written[threadIdx.x];  // mended
written[threadIdx.x] = back + 1;
""",
    ),
    "missing-proxy-fence": _lines(
        "fence.proxy.async by every thread that wrote, before the barrier after which the copy is issued",
        """
held[threadIdx.x] = threadIdx.x;
asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // mended
__syncthreads();
if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;" ::"l"(out), "r"(place) : "memory");
""",
    ),
    "unfenced-refill": _lines(
        "nothing where the documents are followed as compilers do; fence.proxy.async before the arrival says it to the letter",
        """
unsigned seen = held[threadIdx.x];
asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // mended
asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(empty) : "memory");  // its waiter issues the copy that refills
""",
    ),
    "map-beyond-rank": _lines(
        "replace only dimensions below the rank of the map",
        """
// a map of rank 2
asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 2, %1;" ::"l"(map), "r"(rows));  // wrong
asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %1;" ::"l"(map), "r"(rows));  // mended
""",
    ),
    "missing-grid-wait": _lines(
        "griddepcontrol.wait (cudaGridDependencySynchronize) before the first access to what the launch before it touches",
        """
asm volatile("griddepcontrol.wait;" ::: "memory");  // mended
out[threadIdx.x] = written_by_the_launch_before[threadIdx.x];
""",
    ),
    "read-before-wait": _kernel(
        16,
        "commit after the copies of a stage, and wait for that group before any thread reads it",
        """
__shared__ alignas(16) unsigned held[64];
unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(held + 4 * threadIdx.x));
asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(out + 4 * threadIdx.x) : "memory");
asm volatile("cp.async.commit_group;" ::: "memory");
asm volatile("cp.async.wait_group 0;" ::: "memory");  // mended
out[64 + threadIdx.x] = held[4 * threadIdx.x];
""",
    ),
    "register-in-flight": _lines(
        "commit after the products of a step, and wait for that group before their accumulators are touched",
        """
asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");  // mended
out[threadIdx.x] = accumulator[0];
""",
    ),
    "unfenced-register": _lines(
        "wgmma.fence before the first product, and wherever other code touched its registers",
        """
accumulator[0] *= 2.0f;
asm volatile("wgmma.fence.sync.aligned;" : "+f"(accumulator[0]) :: "memory");  // mended
asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
    : "+f"(accumulator[0]), "+f"(accumulator[1]), "+f"(accumulator[2]), "+f"(accumulator[3]) : "l"(a), "l"(b));
""",
    ),
    "tensor-memory-in-flight": _lines(
        "commit after the products, and wait for that phase before D is loaded; tcgen05.wait::st after stores",
        """
asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(done) : "memory");
wait_for(done, phase);  // mended
asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(d) : "r"(columns));
""",
    ),
    "tensor-memory-leak": _lines(
        "one warp gives back each allocation before the block exits",
        """
asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(columns));  // mended
return;
""",
    ),
    "unfinished-copy": _lines(
        "see every phase complete that counts bytes before the block exits",
        """
asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 64, [%2];"
    ::"r"(held), "l"(out), "r"(full) : "memory");
wait_for(full, phase);  // mended
return;
""",
    ),
    "unfinished-store": _lines(
        "cp.async.bulk.wait_group.read 0 by the thread that stores, before the block exits",
        """
asm volatile("cp.async.bulk.commit_group;" ::: "memory");
asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // mended
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
        "nothing must be: the value reaches no output, no address and no branch; leave the read out to be rid of the note",
        """
__shared__ volatile unsigned held[64];
unsigned unused = held[threadIdx.x];  // wrong
out[threadIdx.x] = 1;
""",
    ),
    "divergent-sync": _kernel(
        32,
        "let all threads of the warp come to the barrier together: outside the branch, or with a mask of those in it",
        """
__shared__ unsigned held[32];
held[threadIdx.x] = threadIdx.x;
if (threadIdx.x < 16)  // wrong
__syncthreads();
out[threadIdx.x] = held[threadIdx.x];
""",
    ),
    "schedule-dependent": _lines(
        "make the place, or the order of a sum, a function of the thread and not of who came first",
        """
unsigned place = atomicAdd(count, 1);  // wrong
unsigned place = blockIdx.x * blockDim.x + threadIdx.x;  // mended
out[place] = value;
""",
    ),
    "phase-waited-twice": _lines(
        "turn the parity once a phase was seen complete",
        """
wait_for(full, parity);
arrive(empty);
parity ^= 1;  // mended
wait_for(full, parity);
""",
    ),
    "setmaxnreg-ignored": Example(
        "say how many threads a block has: __launch_bounds__, or .maxntid in PTX",
        """\
__global__ void example(unsigned* out) {  // wrong
__global__ void __launch_bounds__(128) example(unsigned* out) {  // mended
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    out[threadIdx.x] = 1;
}
""",
        128,
    ),
    "leak": _kernel(
        32,
        "free what malloc gave, on every way out",
        """
volatile unsigned* own = static_cast<unsigned*>(malloc(4));
*own = threadIdx.x;
out[threadIdx.x] = *own;
free(const_cast<unsigned*>(own));  // mended
""",
    ),
    "bank-conflicts": _kernel(
        32,
        "let neighbouring lanes touch neighbouring banks: a column of padding, or a swizzle",
        """
__shared__ unsigned held[32][32];  // wrong
__shared__ unsigned held[32][33];  // mended
for (int row = 0; row < 32; ++row) held[row][threadIdx.x] = row;
__syncwarp();
out[threadIdx.x] = held[threadIdx.x][5];
""",
    ),
    "out-of-bounds": _kernel(
        64,
        "compare the index with the extent before the access",
        """
if (threadIdx.x < 63)  // mended
    out[256 - 63 + threadIdx.x] = 1;
""",
    ),
    "use-after-free": _kernel(
        32,
        "free after the last access, and after what orders other threads' accesses before it",
        """
volatile unsigned* own = static_cast<unsigned*>(malloc(4));
*own = threadIdx.x;
free(const_cast<unsigned*>(own));  // wrong
out[threadIdx.x] = *own;
free(const_cast<unsigned*>(own));  // mended
""",
    ),
    "invalid-free": _kernel(
        32,
        "free the pointer that malloc gave, once",
        """
unsigned* own = static_cast<unsigned*>(malloc(8));
out[threadIdx.x] = own != nullptr;
free(own + 1);  // wrong
free(own);  // mended
""",
    ),
    "misaligned": _kernel(
        32,
        "an address that is a multiple of what one access moves: of 8 for uint2, of 16 for uint4",
        """
*reinterpret_cast<uint2*>(out + 2 * threadIdx.x + 1) = make_uint2(1, 2);  // wrong
*reinterpret_cast<uint2*>(out + 2 * threadIdx.x) = make_uint2(1, 2);  // mended
""",
    ),
    "read-only": _lines(
        "write to an output; a buffer that is both is declared as one that the kernel updates",
        """
const_cast<unsigned*>(input)[threadIdx.x] = 0;  // wrong
out[threadIdx.x] = 0;  // mended
""",
    ),
    "invalid-operand": _lines(
        "give what the rule of the finding asks for: here the rank of a block that the cluster has",
        """
unsigned there;
asm volatile("mapa.shared::cluster.u32 %0, %1, %%cluster_nctarank;" : "=r"(there) : "r"(held));  // wrong
asm volatile("mapa.shared::cluster.u32 %0, %1, %%cluster_ctarank;" : "=r"(there) : "r"(held));  // mended
""",
    ),
    "invalid-call": _lines(
        "call through a pointer to a function of that type",
        """
auto* function = reinterpret_cast<int (*)(int)>(table[kind] + 8);  // wrong
auto* function = reinterpret_cast<int (*)(int)>(table[kind]);  // mended
out[threadIdx.x] = function(threadIdx.x);
""",
    ),
    "barrier-misuse": _kernel(
        64,
        "a number from 0 to 15, and a count of threads that is a multiple of 32 and that the block has",
        """
unsigned count = 48 + out[255];  // wrong
unsigned count = 64 + out[255];  // mended
asm volatile("bar.sync 1, %0;" ::"r"(count) : "memory");
out[threadIdx.x] = 1;
""",
    ),
    "tensor-memory-misuse": _lines(
        "allocate a power of two from 32 columns, and address only what is allocated",
        """
asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 48;" ::"r"(place));  // wrong
asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(place));  // mended
""",
    ),
    "deadlock": _kernel(
        64,
        "as many threads must come as the barrier counts, and to the same number",
        """
if (threadIdx.x < 32)  // wrong
asm volatile("bar.sync 1, 64;" ::: "memory");
out[threadIdx.x] = 1;
""",
    ),
    "trap": _kernel(
        32,
        "the kernel says itself what was wrong: look at the condition before the trap",
        """
if (out[255] == 0) __trap();  // wrong
out[threadIdx.x] = 1;
""",
    ),
    "timeout": _lines(
        "give the launch longer, Checks(seconds=...), or a smaller test case; a loop that never ends takes any time",
        """
for (unsigned turn = 1; turn != 1u << 6; turn += 2) atomicAdd(out, turn);  // wrong
for (unsigned turn = 1; turn < 1u << 6; turn += 2) atomicAdd(out, turn);  // mended
""",
    ),
}
"""By the code of a finding; each has one."""
