"""The kernels of the suite: right ones with what they compute, wrong ones with the edge that they lack."""

from pathlib import Path

import numpy as np

from refsim.testing.kernel_files import load_kernel_file

suite = load_kernel_file(Path(__file__).with_name("suite.py"))
Right, Wrong = suite.Right, suite.Wrong
EARLY, EITHER = ("read-before-wait",), ("race", "read-before-wait")  # of a copy that somebody does not wait for
UNWRITTEN, DIVERGENT, MET = ("uninitialised",), ("divergent-sync",), ("ordered-by-convergence",)
UNNAMED, APART, AROUND = (
    "does not name the lane itself",
    "wait at different instructions",
    "went around it and has exited",
)
T32, T64, T96, T128, T256 = (np.arange(count) for count in (32, 64, 96, 128, 256))


# ---- what the kernels compute, where a line does not say it
def nested_masks(x):
    value = x[T32 ^ 15]
    tile = value[:16] * 2
    value[:8] += tile[T32[:8] ^ 1]
    value[:16] += tile[::-1]
    return value


def own_slots(x):
    first, second = x[:32].copy(), x[:32] + 1
    for turn in range(4):
        first += second + turn
        second += first + turn
    return first ^ second


def elected_lane(x):
    wanting = np.flatnonzero(x[:32] % 7 == 0)
    return np.full(32, x[wanting[0]] + sum(1 << int(lane) for lane in wanting) % 11)


def stencil(rounds):
    def expected(x):
        row = x[:64]
        for _ in range(rounds):
            row = np.roll(row, 1) + np.roll(row, -1)
        return row

    return expected


def both_arms(x):
    return np.where(T64 % 2, x[63 - T64] * 2 * 3, x[63 - T64] + 1 - 4)


def exiting_lanes(x):
    return np.where(T64 % 32 < 20, x[(T64 + 32) % 64] + x[np.maximum(19 - T64 % 32, 0)], 0)


def bytes_of(x, count, offset=0):
    return sum(((x[32 * part * (not offset) + T32] + offset * part) & 0xFF) << 8 * part for part in range(count))


def ping_pong(x):
    data = np.uint32(0)
    for turn in range(8):
        data = data * np.uint32(3) + x[turn % 2]
    return data


def tickets(x):
    count = 0
    for word in x[:4]:
        count = count * 2 + int(word)
    return count


def warp_tickets(_):
    line = np.ones(32, np.int64)
    for _ in range(3):
        line = line[::-1] * 2 + T32
    return line


def grid_rounds(x):
    for _ in range(3):
        x = x + np.roll(x, -64)
    return x


def staged(tiles):
    def expected(x):
        total = np.zeros(64, np.uint32)
        for tile in range(tiles):
            total = total * 3 + x[64 * (tile % 4) : 64 * (tile % 4) + 64][::-1]
        return total

    return expected


def as_condition(x):
    turns = x[31 - T32] % 4
    return turns * x[:32] + turns * (turns + 1) // 2


def matched(x):
    return [sum(1 << int(lane) for lane in np.flatnonzero(x[:32] % 4 == word % 4)) for word in x[:32]]


def matrices(x):
    """Matrix i of a warp lies in the rows whose addresses lanes 8 i to 8 i + 7 give; lane l holds word l % 4 of row l // 4."""
    tile, total = x.reshape(64, 4), np.zeros(64, np.uint32)
    for thread in range(64):
        warp, lane = divmod(thread, 32)
        total[thread] = sum((i + 1) * tile[63 - (32 * warp + 8 * i + lane // 4), lane % 4] for i in range(4))
    return total


def mirrored(count):
    return lambda x: x[:count][::-1]


def swapped(x):
    return x[T32 ^ 1]


def summed(count, lanes):
    return lambda x: np.full(lanes, x[:count].sum())


BF16_PRODUCT = np.where(T64 % 8 < 6, 24, 0)

RIGHT = (
    Right("warp.cu", "neighbour", swapped),
    Right("warp.cu", "rotate_in_place", lambda x: np.roll(x[:32], -1) + 5),
    Right("warp.cu", "half_mask", lambda x: np.where(T32 < 16, x[(15 - T32) % 16], 7)),
    Right("warp.cu", "both_arms", lambda x: np.where(T32 % 2, x[T32 ^ 1] * 6, x[T32 ^ 1] - 3)),
    Right("warp.cu", "across_quarters", lambda x: np.roll(x[:32], -8)),
    Right("warp.cu", "within_quarters", lambda x: x[T32 ^ 7]),
    Right("warp.cu", "one_writer", lambda x: x[9] + T32),
    Right("warp.cu", "one_writer_global", lambda x: x[9] + T32),
    Right("warp.cu", "one_value", lambda x: np.ones(32)),
    Right("warp.cu", "tree_sum", summed(32, 32)),
    Right("warp.cu", "scan_two_buffers", lambda x: x[:32].cumsum()),
    Right("warp.cu", "neighbour_global", swapped),
    Right("warp.cu", "rotate_global", lambda x: np.roll(x[:32], -1) + 5),
    Right("warp.cu", "lane_bytes", lambda x: np.roll(x[:32] & 0xFF, -1)),
    Right("warp.cu", "lane_lock", lambda x: np.full(32, x[0] + 32)),
    Right("warp.cu", "lane_flag", lambda x: x[5]),
    Right("warp.cu", "lane_atomics", summed(32, 32)),
    Right("warp.cu", "lane_atomics_global", summed(32, 32)),
    Right("warp.cu", "zeroed_by_one_lane", lambda x: np.full(32, x[31])),
    Right("warp.cu", "exited_lanes", lambda x: np.roll(x[:24][::-1] + 1, -5)),
    Right("warp.cu", "elected_lane", elected_lane),
    Right("warp.cu", "counted_mask", lambda x: np.where(x[:32] < 50, x[0] + x[16], 0)),
    Right("warp.cu", "nested_masks", nested_masks),
    Right("warp.cu", "own_slots", own_slots),
    Right("warp.cu", "rendezvous", lambda x: swapped(x) + 4),
    Right("warp.cu", "loaded_matrix", lambda x: x[:32].reshape(8, 4)[::-1].reshape(-1)),
    Right("warp.cu", "shuffled_sum", summed(32, 32)),
    Right("warp.cu", "shuffled_halves", lambda x: np.r_[x[:16][::-1], x[16:32][::-1] * 2]),
    Right("barriers.cu", "reverse", mirrored(64), 64),
    Right("barriers.cu", "reverse_global", mirrored(64), 64),
    Right("barriers.cu", "reverse_in_place", lambda x: x[:64] + 1, 64),
    Right("barriers.cu", "reuse", lambda x: x[:64][::-1] * 6, 64),
    Right("barriers.cu", "block_sum", summed(128, 128), 128),
    Right("barriers.cu", "handover", mirrored(32), 64),
    Right("barriers.cu", "two_producers", lambda x: x[:32] + x[32:64], 96),
    Right("barriers.cu", "ring", lambda x: x[:32][::-1] * 21, 64),
    Right("barriers.cu", "relay", mirrored(32), 96),
    Right("barriers.cu", "relay_global", mirrored(32), 96),
    Right("barriers.cu", "pairs", lambda x: x[T128 ^ 32], 128),
    Right("barriers.cu", "stencil_two_buffers", stencil(4), 64),
    Right("barriers.cu", "stencil_global", stencil(3), 64),
    Right("barriers.cu", "transpose", lambda x: x[32 * (T256 % 8) + T256 // 8], (32, 8)),
    Right("barriers.cu", "voted", lambda x: x[:64][::-1] + 1 + (x[:64] > 40).sum(), 64),
    Right("barriers.cu", "histogram", lambda x: 100 + np.bincount(x[:64] % 16, minlength=16), 64),
    Right("barriers.cu", "counted_global", lambda x: np.tile(np.roll(x[:64].reshape(16, 4).sum(0), -1), 16), 64),
    Right("barriers.cu", "any_seen", lambda x: np.ones(64), 64),
    Right("barriers.cu", "warp_bytes", lambda x: np.tile(bytes_of(x, 4), 4), 128),
    Right("barriers.cu", "exiting_warps", lambda x: np.r_[x[:64][::-1], np.zeros(32)], 96),
    Right("barriers.cu", "exiting_lanes", exiting_lanes, 64),
    Right("barriers.cu", "exit_after_arrival", lambda x: np.tile(x[:32][::-1], 2), 96),
    Right("barriers.cu", "volatile_between", mirrored(64), 64),
    Right("barriers.cu", "scan", lambda x: x[:128].cumsum(), 128),
    Right("barriers.cu", "unaligned", both_arms, 64),
    Right("barriers.cu", "pipeline", lambda x: x[:128].reshape(4, 32).sum(0) * 2, 96),
    Right("barriers.cu", "wide_store", lambda x: (x[:32, None] + np.arange(4)).reshape(-1)[::-1], 128),
    Right("barriers.cu", "rewritten", lambda x: np.tile(x[:32][::-1], 2), 64),
    Right("barriers.cu", "matrices", matrices, 64),
    Right("barriers.cu", "broadcast", lambda x: x[0] * 4 + x[1] * 2 + x[2] + T64, 64),
    Right("flags.cu", "fenced_flag", mirrored(32), 64),
    Right("flags.cu", "released_flag", mirrored(32), 64),
    Right("flags.cu", "strong_flag", lambda x: 1 + x[3], 64),
    Right("flags.cu", "seen_flag", lambda x: np.full(64, x[2]), 64),
    Right("flags.cu", "released_twice", lambda x: x[5], 32, 2),
    Right("flags.cu", "chained_flag", lambda x: x[4], 96),
    Right("flags.cu", "global_flag", lambda x: np.r_[x[:32][::-1], x[:32][::-1] + 1], 64, 2),
    Right("flags.cu", "global_flag_fenced", lambda x: np.r_[x[:32][::-1], x[:32][::-1] + 1], 64, 2),
    Right("flags.cu", "block_scope", lambda x: np.r_[x[:32][::-1], x[:32][::-1] + 1], 64, 2),
    Right("flags.cu", "blocks_fenced", mirrored(32), 32, 2),
    Right("flags.cu", "blocks_released", mirrored(32), 32, 2),
    Right("flags.cu", "passed_on", mirrored(32), 32, 3),
    Right("flags.cu", "whole_blocks", mirrored(64), 64, 2),
    Right("flags.cu", "chain_of_blocks", lambda x: x[4], 32, 3),
    Right("flags.cu", "made_once", lambda x: x[6] + np.arange(4), 32, 4),
    Right("flags.cu", "ping_pong", ping_pong, 32, 2),
    Right("flags.cu", "last_seen", lambda x: np.ones(64), 32, 2),
    Right("locks.cu", "shared_lock", lambda x: np.full(128, x[0] + 4), 128),
    Right("locks.cu", "shared_lock_global_data", lambda x: [4 * x[3], 0, 4 * x[3]], 128, 2),
    Right("locks.cu", "global_lock_shared_data", lambda x: np.full(128, x[1] + 4), 64, 2),
    Right("locks.cu", "block_lock", lambda x: 3 * x[2], 32, 4),
    Right("locks.cu", "acquired_lock", lambda x: 3 * x[2], 32, 4),
    Right("locks.cu", "ticket_lock", tickets, 32, 4),
    Right("locks.cu", "warp_tickets", warp_tickets, 96),
    Right("atomics.cu", "last_block", lambda x: 3 * x[:64][::-1] + 3, 64, 3),
    Right("atomics.cu", "counter_set_back", lambda x: 3 * x[:64][::-1] + 3, 64, 3),
    Right("atomics.cu", "fenced_by_all", lambda x: 3 * x[:64][::-1] + 3, 64, 3),
    Right("atomics.cu", "last_block_acq_rel", lambda x: (x[:4] * np.arange(1, 5)).sum(), 32, 4),
    Right("atomics.cu", "total_of_blocks", lambda x: 1, 32, 4),
    Right("atomics.cu", "counter_barrier", mirrored(128), 128),
    Right("atomics.cu", "polled_by_atomics", mirrored(64), 64),
    Right("atomics.cu", "mailbox", lambda x: x[9], 32, 2),
    Right("atomics.cu", "work_queue", lambda x: np.tile(x[:32], 8) + T256 // 32, 64, 2),
    Right("atomics.cu", "extremes", lambda x: np.full(64, 2 * x[63] - x[0]), 64),
    Right("atomics.cu", "last_warp", lambda x: (x[:128:32] * np.arange(1, 5)).sum(), 128),
    Right("atomics.cu", "swapped_sum", lambda x: 5, 64, 3),
    Right("atomics.cu", "swapped_sum_shared", lambda x: np.full(128, x[:128:32].sum()), 128),
    Right("atomics.cu", "places_taken", lambda x: np.ones(64), 64, 2),
    Right("grid.cu", "grid_barrier", mirrored(256), 64, 4),
    Right("grid.cu", "grid_rounds", grid_rounds, 64, 4),
    Right("grid.cu", "fenced_grid_barrier", lambda x: x[::-1] * 2, 64, 4),
    Right("grid.cu", "look_back_word", lambda x: x[:6].cumsum(), 32, 6),
    Right("grid.cu", "look_back_released", lambda x: x[:6].cumsum(), 32, 6),
    Right("grid.cu", "look_back_fenced", lambda x: x[:6].cumsum(), 32, 6),
    Right("grid.cu", "own_element", lambda x: x[:128] * 3 + 1, 32, 4),
    Right("grid.cu", "found_flag", lambda x: x[:128] + 1, 32, 4),
    Right("grid.cu", "in_place", lambda x: x[:128] * 3 + 3, 64, 2),
    Right("grid.cu", "block_bytes", lambda x: bytes_of(x, 4, offset=1), 32, 4),
    Right("grid.cu", "many_blocks", lambda x: sum(int(x[b % 128]) + b for b in range(300)), 128, 300),
    Right("standard.cu", "standard_flag", mirrored(32), 32, 2),
    Right("standard.cu", "sequential_flag", lambda x: x[:32][::-1] + 2, 32, 2),
    Right("standard.cu", "standard_fences", mirrored(32), 64),
    Right("standard.cu", "standard_lock", lambda x: 3 * x[2], 32, 4),
    Right("standard.cu", "standard_counter", lambda x: (x[:4] * np.arange(1, 5)).sum(), 32, 4),
    Right("standard.cu", "standard_wait", lambda x: x[7] + T32, 32, 2),
    Right("copies.cu", "copied_own", lambda x: x[:64], 64),
    Right("copies.cu", "copied_neighbour", swapped),
    Right("copies.cu", "copied_reverse", mirrored(64), 64),
    Right("copies.cu", "two_stages", staged(4), 64),
    Right("copies.cu", "three_stages", staged(6), 64),
    Right("copies.cu", "refilled_by_lanes", lambda x: swapped(x) + x[63 - T32]),
    Right("copies.cu", "stored_after_wait", lambda x: x[63 - T64] + 7, 64),
    Right("copies.cu", "source_of_another_warp", lambda x: x[63 - T64] + 1, 64),
    Right("copies.cu", "source_of_another_lane", lambda x: x[31 - T32] + 1),
    Right("copies.cu", "source_of_another_block", lambda x: x[31 - T32] + 1, 32, 2),
    Right("copies.cu", "own_places", mirrored(64), 64),
    Right("copies.cu", "zero_filled", lambda x: np.where(T64 > 13, x[63 - T64], 0), 64),
    Right("copies.cu", "copying_warp", lambda x: x[95 - T96] + x[T96 + 32], 128),
    Right("copies.cu", "side_by_side", lambda x: x[:64].reshape(2, 32).T.reshape(-1)[::-1], 64),
    Right("uninitialised.cu", "every_slot", mirrored(32)),
    Right("uninitialised.cu", "slots_of_warps", mirrored(64), 64),
    Right("uninitialised.cu", "as_address", lambda x: x[x[31 - T32] % 32]),
    Right("uninitialised.cu", "as_condition", as_condition),
    Right("uninitialised.cu", "low_bytes", lambda x: x[:32] & 0xFF),
    Right("uninitialised.cu", "shifted_out", lambda x: x[:32] << 16),
    Right("uninitialised.cu", "permuted", lambda x: (x[:32] + 1) % 256 + x[:32] % 256 * 256 + 0x88770000),
    Right("uninitialised.cu", "forced_ones", lambda x: np.where(T32 < 16, x[:32], 0xFFFFFFFF)),
    Right("uninitialised.cu", "selected", lambda x: np.where(T32 < 16, 0, x[31 - T32])),
    Right("uninitialised.cu", "prefetched", lambda x: (x[:32].reshape(4, 8) * (T32[:8] + 1)).sum(1).repeat(8)),
    Right("uninitialised.cu", "absent_lanes", lambda x: np.r_[x[:8] + x[8:16], np.zeros(24)]),
    Right("uninitialised.cu", "reduced_halves", lambda x: x[:16].sum()),
    Right("uninitialised.cu", "lanes_that_left", lambda x: np.r_[x[4:20], np.zeros(4)]),
    Right("uninitialised.cu", "local_array", lambda x: x[:32] + (x[:32] - T32) % 8),
    Right("uninitialised.cu", "global_words", lambda x: x[:64] * 2, 32, 2, is_work_written=False),
    Right("uninitialised.cu", "global_counter", lambda x: x[:32].sum(), is_work_written=False),
    Right("uninitialised.cu", "float_partials", summed(32, 32)),
    Right("uninitialised.cu", "passed_through", lambda x: np.where(T64 < 20, x[:64], 0), 64),
    Right("uninitialised.cu", "unwritten_rows", lambda x: BF16_PRODUCT),
    Right("uninitialised.cu", "short_lists", lambda x: x[:32] + (x[:32] % 2) * (x[:32] + 1)),
    Right("misuse.cu", "barrier_in_both_arms", both_arms, 64),
    Right("misuse.cu", "barrier_for_all_lanes", mirrored(64), 64),
    Right("misuse.cu", "barrier_in_uniform_loop", lambda x: np.roll(x[:64], -3), 64),
    Right("misuse.cu", "named_lane_shuffle", swapped),
    Right("misuse.cu", "named_lane_vote", lambda x: np.full(32, 0x55555555)),
    Right("misuse.cu", "named_lane_barrier", swapped),
    Right("misuse.cu", "named_lane_match", matched),
    Right("misuse.cu", "named_lane_reduction", summed(32, 32)),
    Right("misuse.cu", "all_named_lanes_come", lambda x: np.where(T32 < 16, swapped(x), x[:32])),
    Right("misuse.cu", "masks_agree", swapped),
    Right("misuse.cu", "whole_warp_multiplies", lambda x: np.full(32, 16)),
    Right("misuse.cu", "whole_warps_counted", mirrored(64), 64),
    Right("misuse.cu", "counts_agree", mirrored(96), 96),
    Right("misuse.cu", "all_counted_warps_come", mirrored(64), 64),
)  # fmt: skip
RIGHT_BY_NAME = {kernel.name: kernel for kernel in RIGHT}

WRONG = (
    # lanes of one warp
    Wrong("neighbour", 1, "shared", "lanes", "__syncwarp between write and read"),
    Wrong("rotate_in_place", 1, "shared", "lanes", "__syncwarp between read and overwrite"),
    Wrong("half_mask", 1, "shared", "lanes", "a lane that the mask of __syncwarp leaves out"),
    Wrong("both_arms", 1, "shared", "lanes", "__syncwarp in both arms of a branch"),
    Wrong("across_quarters", 1, "shared", "lanes", "a mask over both quarters"),
    Wrong("one_writer", 1, "shared", "lanes", "one writer of a word"),
    Wrong("one_writer_global", 1, "global", "lanes", "one writer of a word"),
    Wrong("tree_sum", 1, "shared", "lanes", "__syncwarp between rounds of a reduction"),
    Wrong("scan_two_buffers", 1, "shared", "lanes", "second buffer of a scan"),
    Wrong("neighbour_global", 1, "global", "lanes", "__syncwarp between write and read"),
    Wrong("rotate_global", 1, "global", "lanes", "__syncwarp between read and overwrite"),
    Wrong("lane_bytes", 1, "shared", "lanes", "a store no wider than one's own byte"),
    Wrong("lane_lock", 1, "shared", "lanes", "fence behind taking a lock"),
    Wrong("lane_lock", 2, "shared", "lanes", "fence before giving a lock back"),
    Wrong("lane_flag", 1, "shared", "lanes", "release of a flag"),
    Wrong("lane_flag", 2, "shared", "lanes", "acquire of a flag"),
    Wrong("lane_atomics", 1, "shared", "lanes", "__syncwarp between atomics and a plain read"),
    Wrong("lane_atomics_global", 1, "global", "lanes", "__syncwarp between atomics and a plain read"),
    Wrong("zeroed_by_one_lane", 1, "global", "lanes", "__syncwarp between a plain write and atomics"),
    Wrong("nested_masks", 1, "shared", "lanes", "__syncwarp of the inner branch"),
    Wrong("loaded_matrix", 1, "shared", "lanes", "__syncwarp before ldmatrix"),
    Wrong("rendezvous", 1, "shared", "lanes", "__syncwarp beside a shuffle", MET, warned=True),
    Wrong("rendezvous", 2, "shared", "lanes", "__syncwarp beside a vote", MET, warned=True),
    Wrong("rendezvous", 3, "shared", "lanes", "__syncwarp beside a match", MET, warned=True),
    Wrong("rendezvous", 4, "shared", "lanes", "__syncwarp beside a reduction", MET, warned=True),
    # warps of one block
    Wrong("reverse", 1, "shared", "warps", "barrier between write and read"),
    Wrong("reverse", 2, "shared", "warps", "barrier, where a vote of each warp stands"),
    Wrong("reverse_global", 1, "global", "warps", "barrier between write and read"),
    Wrong("reverse_in_place", 1, "global", "warps", "barrier between read and overwrite"),
    Wrong("reuse", 1, "shared", "warps", "barrier between read and overwrite"),
    Wrong("block_sum", 1, "shared", "warps", "barrier before a reduction"),
    Wrong("block_sum", 2, "shared", "warps", "barrier between rounds of a reduction"),
    Wrong("block_sum", 3, "shared", "warps", "barrier behind a reduction"),
    Wrong("handover", 1, "shared", "warps", "the number that both sides of a barrier name"),
    Wrong("handover", 2, "shared", "warps", "a wait, where bar.arrive stands"),
    Wrong("handover", 3, "shared", "warps", "write before bar.arrive"),
    Wrong("two_producers", 1, "shared", "warps", "arrival of the second producer"),
    Wrong("ring", 1, "shared", "warps", "read before the buffer is given back"),
    Wrong("ring", 2, "shared", "warps", "second buffer of a ring"),
    Wrong("relay", 1, "shared", "warps", "wait of the warp in the middle"),
    Wrong("relay_global", 1, "global", "warps", "arrival of the warp in the middle"),
    Wrong("pairs", 1, "shared", "warps", "a barrier of both pairs"),
    Wrong("stencil_two_buffers", 1, "shared", "warps", "second buffer of a stencil"),
    Wrong("stencil_two_buffers", 2, "shared", "warps", "barrier of one round"),
    Wrong("stencil_global", 1, "global", "warps", "barrier of one round"),
    Wrong("histogram", 1, "shared", "warps", "barrier between zeroing and atomics"),
    Wrong("histogram", 2, "shared", "warps", "barrier between atomics and a plain read"),
    Wrong("histogram", 3, "shared", "lanes", "atomicity of an increment"),
    Wrong("counted_global", 1, "global", "warps", "barrier between atomics and a plain read"),
    Wrong("any_seen", 1, "shared", "warps", "one value of all writers"),
    Wrong("warp_bytes", 1, "shared", "warps", "a store no wider than one's own byte"),
    Wrong("exit_after_arrival", 1, "shared", "warps", "write before the last arrival of a warp that exits"),
    Wrong("volatile_between", 1, "shared", "warps", "barrier, where an unrelated volatile access stands"),
    Wrong("pipeline", 1, "shared", "warps", "one beat between two stages"),
    Wrong("wide_store", 1, "shared", "warps", "barrier behind a store of 16 bytes"),
    Wrong("rewritten", 1, "shared", "warps", "the value that is there already"),
    Wrong("matrices", 1, "shared", "warps", "barrier before ldmatrix"),
    Wrong("fenced_flag", 1, "shared", "warps", "fence before a volatile flag"),
    Wrong("fenced_flag", 2, "shared", "warps", "fence behind a volatile flag"),
    Wrong("fenced_flag", 3, "shared", "warps", "both fences of a volatile flag"),
    Wrong("released_flag", 1, "shared", "warps", "release of a flag"),
    Wrong("released_flag", 2, "shared", "warps", "acquire of a flag"),
    Wrong("released_flag", 3, "shared", "warps", "acquire of that flag, where another is acquired"),
    Wrong("released_flag", 4, "shared", "warps", "__syncwarp before the releasing lane"),
    Wrong("released_flag", 5, "shared", "warps", "__syncwarp behind the acquiring lane"),
    Wrong("strong_flag", 1, "shared", "warps", "a strong store of the flag"),
    Wrong("seen_flag", 1, "shared", "warps", "a strong read of the flag before a plain store to it"),
    Wrong("released_twice", 1, "global", "blocks", "release before a second store of the flag"),
    Wrong("chained_flag", 1, "shared", "warps", "chain of read-modify-writes"),
    Wrong("global_flag", 1, "shared", "warps", "release of a flag in global memory"),
    Wrong("global_flag", 2, "shared", "warps", "acquire of a flag in global memory"),
    Wrong("global_flag_fenced", 1, "shared", "warps", "fence before a flag in global memory"),
    Wrong("global_flag_fenced", 2, "shared", "warps", "fence behind a flag in global memory"),
    Wrong("block_scope", 1, "global", "warps", "release of a flag"),
    Wrong("block_scope", 2, "global", "warps", "acquire of a flag"),
    Wrong("shared_lock", 1, "shared", "warps", "fence behind taking a lock"),
    Wrong("shared_lock", 2, "shared", "warps", "fence before giving a lock back"),
    Wrong("shared_lock_global_data", 1, "global", "warps", "fence behind taking a lock"),
    Wrong("shared_lock_global_data", 2, "global", "warps", "fence before giving a lock back"),
    Wrong("global_lock_shared_data", 1, "shared", "warps", "acquire of a lock in global memory"),
    Wrong("global_lock_shared_data", 2, "shared", "warps", "release of a lock in global memory"),
    Wrong("last_block", 3, "global", "blocks", "barrier before the atomic of the block"),
    Wrong("last_block", 4, "shared", "warps", "barrier behind the flag of the last block"),
    Wrong("counter_barrier", 1, "shared", "warps", "release of a counter"),
    Wrong("counter_barrier", 2, "shared", "warps", "acquire of a counter"),
    Wrong("counter_barrier", 3, "shared", "warps", "both orders of a counter"),
    Wrong("polled_by_atomics", 1, "global", "warps", "fences around relaxed atomics"),
    Wrong("swapped_sum_shared", 1, "shared", "warps", "an atomic first read of a compare-and-swap loop"),
    Wrong("last_warp", 1, "shared", "warps", "fence before the counter of the last warp"),
    Wrong("last_warp", 2, "shared", "warps", "fence behind the counter of the last warp"),
    # blocks of a grid
    Wrong("blocks_fenced", 1, "global", "blocks", "fence before a volatile flag"),
    Wrong("blocks_fenced", 2, "global", "blocks", "fence behind a volatile flag"),
    Wrong("blocks_fenced", 3, "global", "blocks", "scope of the fence before a flag"),
    Wrong("blocks_fenced", 4, "global", "blocks", "scope of the fence behind a flag"),
    Wrong("blocks_fenced", 5, "global", "blocks", "both fences of a volatile flag"),
    Wrong("blocks_fenced", 6, "global", "blocks", "a strong store of the flag"),
    Wrong("blocks_fenced", 7, "global", "blocks", "a strong load of the flag"),
    Wrong("blocks_released", 1, "global", "blocks", "release of a flag"),
    Wrong("blocks_released", 2, "global", "blocks", "acquire of a flag"),
    Wrong("blocks_released", 3, "global", "blocks", "scope of a release"),
    Wrong("blocks_released", 4, "global", "blocks", "scope of an acquire"),
    Wrong("blocks_released", 5, "global", "blocks", "acquire of that flag, where another is acquired"),
    Wrong("blocks_released", 6, "global", "blocks", "a flag, where unrelated volatile accesses stand"),
    Wrong("blocks_released", 7, "global", "blocks", "__syncwarp before the releasing lane"),
    Wrong("blocks_released", 8, "global", "blocks", "__syncwarp behind the acquiring lane"),
    Wrong("passed_on", 1, "global", "blocks", "acquire of the block in the middle"),
    Wrong("whole_blocks", 1, "global", "blocks", "barrier before the releasing thread"),
    Wrong("whole_blocks", 2, "global", "blocks", "barrier behind the acquiring thread"),
    Wrong("chain_of_blocks", 1, "global", "blocks", "chain of read-modify-writes"),
    Wrong("chain_of_blocks", 2, "global", "blocks", "acquire at the end of a chain"),
    Wrong("chain_of_blocks", 3, "global", "blocks", "release at the start of a chain"),
    Wrong("made_once", 1, "global", "blocks", "acquire on the fast path"),
    Wrong("made_once", 2, "global", "blocks", "release of what was made once"),
    Wrong("ping_pong", 1, "global", "blocks", "release of the way back"),
    Wrong("last_seen", 1, "global", "blocks", "scope of a relaxed load", says="scope"),
    Wrong("block_lock", 1, "global", "blocks", "fence behind taking a lock"),
    Wrong("block_lock", 2, "global", "blocks", "fence before giving a lock back"),
    Wrong("acquired_lock", 1, "global", "blocks", "acquire of a lock"),
    Wrong("acquired_lock", 2, "global", "blocks", "release of a lock"),
    Wrong("acquired_lock", 3, "global", "blocks", "one lock of all"),
    Wrong("acquired_lock", 4, "global", "blocks", "scope of the acquire of a lock"),
    Wrong("ticket_lock", 1, "global", "blocks", "acquire of a ticket"),
    Wrong("ticket_lock", 2, "global", "blocks", "release of a ticket"),
    Wrong("last_block", 1, "global", "blocks", "fence before the counter of the last block"),
    Wrong("last_block", 2, "global", "blocks", "fence behind the counter of the last block"),
    Wrong("last_block_acq_rel", 1, "global", "blocks", "both orders of the counter of the last block"),
    Wrong("last_block_acq_rel", 2, "global", "blocks", "acquire of the counter of the last block"),
    Wrong("last_block_acq_rel", 3, "global", "blocks", "release of the counter of the last block"),
    Wrong("last_block_acq_rel", 4, "global", "blocks", "scope of the counter of the last block"),
    Wrong("total_of_blocks", 1, "global", "blocks", "scope of an atomic", says="scope"),
    Wrong("total_of_blocks", 2, "global", "blocks", "atomicity of a sum"),
    Wrong("total_of_blocks", 3, "global", "blocks", "a strong read beside atomics"),
    Wrong("mailbox", 1, "global", "blocks", "release of an exchange"),
    Wrong("mailbox", 2, "global", "blocks", "acquire of an exchange"),
    Wrong("swapped_sum", 1, "global", "blocks", "a strong first load of a compare-and-swap loop"),
    Wrong("grid_barrier", 1, "global", "blocks", "release of a grid barrier"),
    Wrong("grid_barrier", 2, "global", "blocks", "acquire of a grid barrier"),
    Wrong("grid_barrier", 3, "global", "blocks", "barrier of the block before a grid barrier"),
    Wrong("grid_barrier", 4, "global", "blocks", "barrier of the block behind a grid barrier"),
    Wrong("grid_barrier", 5, "global", "blocks", "scope of a grid barrier"),
    Wrong("grid_barrier", 6, "global", "blocks", "grid barrier between write and read"),
    Wrong("grid_rounds", 1, "global", "blocks", "grid barrier between read and overwrite"),
    Wrong("fenced_grid_barrier", 1, "global", "blocks", "fence before a grid barrier"),
    Wrong("fenced_grid_barrier", 2, "global", "blocks", "fence behind a grid barrier"),
    Wrong("fenced_grid_barrier", 3, "global", "blocks", "a strong poll of a grid barrier"),
    Wrong("look_back_word", 1, "global", "blocks", "a strong read of status and value"),
    Wrong("look_back_released", 1, "global", "blocks", "release of a status"),
    Wrong("look_back_released", 2, "global", "blocks", "acquire of a status"),
    Wrong("look_back_fenced", 1, "global", "blocks", "fence before a status"),
    Wrong("look_back_fenced", 2, "global", "blocks", "fence behind a status"),
    Wrong("own_element", 1, "global", "blocks", "an element of one's own to write"),
    Wrong("own_element", 2, "global", "blocks", "an element of one's own to read"),
    Wrong("found_flag", 1, "global", "blocks", "one value of all writers"),
    Wrong("block_bytes", 1, "global", "blocks", "a store no wider than one's own byte"),
    Wrong("many_blocks", 1, "global", "blocks", "a barrier, where one block often ends before the other begins"),
    # asynchronous copies
    Wrong("copied_own", 1, "shared", "lanes", "wait for one's own copy", EARLY),
    Wrong("copied_own", 2, "shared", "lanes", "commit before the wait", EARLY),
    Wrong("copied_neighbour", 1, "shared", "lanes", "__syncwarp behind the wait", EITHER),
    Wrong("copied_reverse", 1, "shared", "warps", "barrier behind the wait", EITHER),
    Wrong("copied_reverse", 2, "shared", "warps", "wait before the barrier", EARLY),
    Wrong("copied_reverse", 3, "shared", "warps", "wait and barrier in that order", EITHER),
    Wrong("two_stages", 1, "shared", "warps", "a wait for the oldest group", EITHER),
    Wrong("two_stages", 2, "shared", "warps", "barrier between reading a stage and filling it again"),
    Wrong("two_stages", 3, "shared", "warps", "barrier between the wait and a stage", EITHER),
    Wrong("three_stages", 1, "shared", "warps", "third stage", EITHER),
    Wrong("refilled_by_lanes", 1, "shared", "lanes", "__syncwarp between read and copy"),
    Wrong("stored_after_wait", 1, "shared", "lanes", "wait between copy and store", says="still writes them"),
    Wrong("source_of_another_warp", 1, "global", "warps", "barrier between writing and copying a source"),
    Wrong("source_of_another_lane", 1, "global", "lanes", "__syncwarp between writing and copying a source"),
    Wrong("source_of_another_block", 1, "global", "blocks", "release of the source of a copy"),
    Wrong("own_places", 1, "shared", "warps", "a place for each copy"),
    Wrong("copying_warp", 1, "shared", "warps", "wait before bar.arrive", EITHER),
    # bits that nobody wrote
    Wrong("every_slot", 1, "shared", "lanes", "write of a slot", UNWRITTEN),
    Wrong("slots_of_warps", 1, "shared", "warps", "write of a warp that exits", UNWRITTEN),
    Wrong("as_address", 1, "shared", "lanes", "write of an index", UNWRITTEN, "reached an address"),
    Wrong("as_condition", 1, "shared", "lanes", "write of a bound", UNWRITTEN, "reached a branch"),
    Wrong("low_bytes", 1, "shared", "lanes", "a mask as wide as what was written", UNWRITTEN),
    Wrong("shifted_out", 1, "shared", "lanes", "a shift as far as what was written", UNWRITTEN),
    Wrong("permuted", 1, "shared", "lanes", "a selector of written bytes", UNWRITTEN),
    Wrong("forced_ones", 1, "shared", "lanes", "ones over all unwritten bits", UNWRITTEN),
    Wrong("selected", 1, "shared", "lanes", "a selection of written words", UNWRITTEN),
    Wrong("prefetched", 1, "shared", "lanes", "a loop that ends before what was fetched ahead", UNWRITTEN),
    Wrong("absent_lanes", 1, "register", "lanes", "a guard of lanes whose source is in the mask", UNWRITTEN),
    Wrong("lanes_that_left", 1, "register", "lanes", "a guard of lanes whose source has not exited", UNWRITTEN),
    Wrong("local_array", 1, "local", "lanes", "write of an element", UNWRITTEN),
    Wrong("global_words", 1, "global", "lanes", "write of a word", UNWRITTEN),
    Wrong("global_counter", 1, "global", "warps", "zeroing of a counter", UNWRITTEN),
    Wrong("float_partials", 1, "shared", "lanes", "write of a partial sum", UNWRITTEN),
    Wrong("passed_through", 1, "shared", "warps", "write of a word that is handed on", UNWRITTEN),
    Wrong("unwritten_rows", 1, "shared", "lanes", "a store of rows that were written", UNWRITTEN),
    Wrong("unwritten_rows", 2, "shared", "lanes", "a store of columns that were written", UNWRITTEN),
    Wrong("short_lists", 1, "shared", "lanes", "the length of a list", UNWRITTEN),
    # barriers and masks against their rules
    Wrong("barrier_in_both_arms", 1, "shared", "lanes", "one barrier of both arms", DIVERGENT, APART),
    Wrong("barrier_for_all_lanes", 1, "global", "lanes", "half a warp at a barrier", DIVERGENT, AROUND),
    Wrong("barrier_in_uniform_loop", 1, "shared", "lanes", "one number of turns", DIVERGENT, AROUND),
    Wrong("named_lane_shuffle", 1, "register", "lanes", "the lane in its mask of a shuffle", DIVERGENT, UNNAMED),
    Wrong("named_lane_vote", 1, "register", "lanes", "the lane in its mask of a vote", DIVERGENT, UNNAMED),
    Wrong("named_lane_barrier", 1, "register", "lanes", "the lane in its mask of a __syncwarp", DIVERGENT, UNNAMED),
    Wrong("named_lane_match", 1, "register", "lanes", "the lane in its mask of a match", DIVERGENT, UNNAMED),
    Wrong("named_lane_reduction", 1, "register", "lanes", "the lane in its mask of a reduction", DIVERGENT, UNNAMED),
    Wrong("all_named_lanes_come", 1, "register", "lanes", "a mask of the lanes that come", DIVERGENT, APART),
    Wrong("masks_agree", 1, "register", "lanes", "masks that agree", DIVERGENT, "comes with another mask"),
    Wrong("whole_warp_multiplies", 1, "register", "lanes", "the whole warp", DIVERGENT, "of the warp's 32 threads are here"),
    Wrong("whole_warps_counted", 1, "shared", "warps", "a count of whole warps", ("barrier-misuse",), "a thread count of 48"),
    Wrong("counts_agree", 1, "shared", "warps", "counts that agree", ("barrier-misuse",), "while others wait there"),
    Wrong("all_counted_warps_come", 1, "shared", "warps", "a count of the warps that come", ("deadlock",), "no thread can go on"),
)  # fmt: skip
