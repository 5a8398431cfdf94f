"""Which registers are live: the work list against the plain fixpoint, and one visit a block in chains of either direction."""

from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from refsim.ptx.lowering.liveness import Flow, live_registers, mask_of, registers_in

SETS = st.sets(st.integers(0, 9), max_size=4).map(mask_of)


@st.composite
def graphs(draw: st.DrawFn) -> dict[int, Flow]:
    count = draw(st.integers(1, 8))
    targets = st.lists(st.integers(0, count - 1), max_size=3)
    return {pc: Flow(draw(SETS), draw(SETS), draw(targets)) for pc in range(count)}


@given(flows=graphs())
def test_the_work_list_finds_the_fixpoint(flows: dict[int, Flow]) -> None:
    entering = {pc: flow.reads for pc, flow in flows.items()}
    for _ in range(len(flows) + 1):
        for pc, flow in flows.items():
            behind = 0
            for successor in flow.successors:
                behind |= entering[successor]
            entering[pc] = flow.reads | (behind & ~flow.writes)
    found, leaving = live_registers(flows)
    assert found == entering
    for pc, flow in flows.items():
        behind = 0
        for successor in flow.successors:
            behind |= entering[successor]
        assert leaving[pc] == behind


class Counted(Mapping[int, Flow]):
    """Flows that count how often one is looked at."""

    def __init__(self, flows: dict[int, Flow]) -> None:
        self.flows, self.looks = flows, 0

    def __getitem__(self, pc: int) -> Flow:
        self.looks += 1
        return self.flows[pc]

    def __iter__(self) -> Iterator[int]:
        return iter(self.flows)

    def __len__(self) -> int:
        return len(self.flows)


def test_a_chain_takes_a_few_visits_a_block_whichever_way_it_runs() -> None:
    count = 3000
    forward = {pc: Flow(int(pc == count - 1), 0, [pc + 1] if pc + 1 < count else []) for pc in range(count)}
    backward = {
        count - 1 - pc: Flow(flow.reads, 0, [count - 1 - next for next in flow.successors])
        for pc, flow in forward.items()
    }
    for flows in (forward, backward):
        counted = Counted(flows)
        entering, _ = live_registers(counted)
        assert set(entering.values()) == {1}
        assert counted.looks < 6 * count


@given(registers=st.sets(st.integers(0, 300)))
def test_a_set_of_registers_is_an_integer(registers: set[int]) -> None:
    assert registers_in(mask_of(registers)) == sorted(registers)
