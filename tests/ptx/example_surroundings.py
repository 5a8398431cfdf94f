"""What stands around the lines of an example that are no kernel: the kernel that a test puts them into."""

from dataclasses import dataclass

HELPERS = """#pragma nv_diag_suppress 177, 550  // names that an example does not use
__device__ inline unsigned shared_address(const void* place) { return static_cast<unsigned>(__cvta_generic_to_shared(place)); }
__device__ inline void begin(unsigned barrier, unsigned count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void wait_for(unsigned barrier, unsigned parity) {
    asm volatile("{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.shared.b64 done, [%0], %1; @!done bra AGAIN; }"
                 ::"r"(barrier), "r"(parity) : "memory");
}
__device__ inline void fetch(unsigned to, const unsigned* from, unsigned barrier) {
    expect(barrier, 64);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 64, [%2];"
                 ::"r"(to), "l"(from), "r"(barrier) : "memory");
}
__device__ inline void fence() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ inline void stored() {
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ int twice(int value) { return 2 * value; }
"""
BARRIERS = (
    "__shared__ unsigned long long barriers[2]; const unsigned full = shared_address(barriers), empty = full + 8;"
)
WORDS = "__shared__ alignas(1024) unsigned words[1024]; const unsigned held = shared_address(words), place = held;"
FILLED = f"{WORDS} words[threadIdx.x] = threadIdx.x; fence(); __syncthreads();"
WARPGROUP = f"""{WORDS}
for (unsigned each = threadIdx.x; each < 1024; each += 128) words[each] = 0;
fence(); __syncthreads();
float accumulator[4] = {{1, 2, 3, 4}};
const unsigned long long a = (held >> 4) | 8ull << 16 | 16ull << 32, b = a + 128;
"""
PRODUCT = """asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
    : "+f"(accumulator[0]), "+f"(accumulator[1]), "+f"(accumulator[2]), "+f"(accumulator[3]) : "l"(a), "l"(b) : "memory");"""
COMMIT, WAIT = (
    f'asm volatile("wgmma.{what};" ::: "memory");'
    for what in ("commit_group.sync.aligned", "wait_group.sync.aligned 0")
)
FENCE = """asm volatile("wgmma.fence.sync.aligned;"
    : "+f"(accumulator[0]), "+f"(accumulator[1]), "+f"(accumulator[2]), "+f"(accumulator[3]) :: "memory");"""
ALLOCATE = """__shared__ unsigned columns_of[1];
if (threadIdx.x < 32) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(shared_address(columns_of)));
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
__syncthreads();
const unsigned columns = columns_of[0];
"""
GIVE_BACK = """__syncthreads();
if (threadIdx.x < 32) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(columns));"""


@dataclass(frozen=True)
class Around:
    """Statements before and behind the lines, the threads and the target of a launch, seconds that it may take. `first` is
    the body of a launch before it, which lets it begin early; `map_first`: its output begins as a tensor map of rank 2."""

    before: str = ""
    after: str = "out[threadIdx.x] = 1;"
    block: int = 64
    target: str = "sm_90a"
    seconds: float = 60
    first: str = ""
    map_first: bool = False


AROUND = {
    "equal-stores": Around(FILLED, "stored();"),
    "shared-barrier": Around(block=128),
    "missing-proxy-fence": Around(
        "__shared__ alignas(128) unsigned held[64]; const unsigned place = shared_address(held);", "stored();"
    ),
    "unfenced-refill": Around(
        f"__shared__ alignas(128) unsigned held[64]; const unsigned place = shared_address(held); {BARRIERS}"
        "if (threadIdx.x == 0) { begin(full, 1); begin(empty, 16); fence(); } __syncthreads();"
        "if (threadIdx.x == 32) { fetch(place, out, full); wait_for(empty, 0); fetch(place, out, full); wait_for(full, 1); }"
        "if (threadIdx.x < 16) { wait_for(full, 0);",
        "out[128 + threadIdx.x] = seen; }",
    ),
    "map-beyond-rank": Around(
        f"{WORDS}{BARRIERS} const unsigned* map = out; const unsigned rows = 8;"
        "if (threadIdx.x == 0) { begin(full, 1); fence(); expect(full, 512);",
        """asm volatile("fence.proxy.tensormap::generic.release.gpu; fence.proxy.tensormap::generic.acquire.gpu [%0], 128;"
            ::"l"(map) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            " [%0], [%1, {%3, %3}], [%2];"
            ::"r"(held), "l"(map), "r"(full), "r"(0) : "memory");
        wait_for(full, 0); }""",
        block=32,
        map_first=True,
    ),
    "missing-grid-wait": Around(
        "unsigned* written_by_the_launch_before = out + 128;",
        "",
        first='asm volatile("griddepcontrol.launch_dependents;"); out[128 + threadIdx.x] = threadIdx.x;',
    ),
    "register-in-flight": Around(f"{WARPGROUP}{FENCE}{PRODUCT}", WAIT, block=128),
    "unfenced-register": Around(f"{WARPGROUP}{FENCE}", f"{COMMIT}{WAIT} out[threadIdx.x] = accumulator[0];", block=128),
    "tensor-memory-in-flight": Around(
        f"{ALLOCATE}{BARRIERS}{WORDS} const unsigned done = full, phase = 0; unsigned d;"
        "for (unsigned each = threadIdx.x; each < 1024; each += 128) words[each] = 0;"
        "if (threadIdx.x == 0) begin(done, 1); fence(); __syncthreads();"
        "const unsigned long long a = (held >> 4) | 8ull << 16 | 16ull << 32 | 1ull << 46;"
        "if (threadIdx.x == 0) asm volatile("
        '"{ .reg .pred no; setp.ne.u32 no, 0, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %1, %2, no; }"'
        '::"r"(columns), "l"(a), "r"(1u << 4 | 1u << 7 | 1u << 10 | 2u << 17 | 8u << 24) : "memory");'
        "if (threadIdx.x == 0)",
        f'asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); out[threadIdx.x] = d; {GIVE_BACK}',
        block=128,
        target="sm_100a",
    ),
    "tensor-memory-leak": Around(f"{ALLOCATE} out[threadIdx.x] = 1; if (threadIdx.x < 32) {{", "}", target="sm_100a"),
    "tensor-memory-misuse": Around(
        "__shared__ unsigned columns[1]; const unsigned place = shared_address(columns);",
        '__syncwarp(); asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" ::"r"(columns[0]));',
        block=32,
        target="sm_100a",
    ),
    "unfinished-copy": Around(
        f"{WORDS}{BARRIERS} const unsigned phase = 0;"
        "if (threadIdx.x == 0) { begin(full, 1); fence(); expect(full, 64);",
        "}",
    ),
    "unfinished-store": Around(
        f"{FILLED} if (threadIdx.x == 0) {{"
        'asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 64;" ::"l"(out), "r"(held) : "memory");',
        "}",
    ),
    "schedule-dependent": Around("unsigned* count = out + 255; const unsigned value = threadIdx.x;", "", block=128),
    "phase-waited-twice": Around(
        f"{BARRIERS} unsigned parity = 0; if (threadIdx.x == 0) {{ begin(full, 2); begin(empty, 1); }} __syncthreads();"
        "if (threadIdx.x == 32) { arrive(full); arrive(full); wait_for(full, 0);"
        "arrive(full); wait_for(empty, 0); arrive(full); }"
        "if (threadIdx.x == 0) {",
        "}",
    ),
    "read-only": Around(after=""),
    "invalid-operand": Around(FILLED, "out[threadIdx.x] = there;"),
    "invalid-call": Around(
        "const unsigned kind = out[255]; unsigned long long table[2];"
        "table[0] = table[1] = reinterpret_cast<unsigned long long>(&twice);",
        "",
    ),
    "timeout": Around(after="", seconds=0.4, block=32),
}
