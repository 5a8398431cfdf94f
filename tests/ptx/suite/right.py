"""The right kernels of the suite, with what they compute."""

from pathlib import Path

import numpy as np

from refsim.testing.kernel_files import load_kernel_file

Right = load_kernel_file(Path(__file__).with_name("suite.py")).Right
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


def volatile_turns(x):
    data = 0
    for turn in range(6):
        data = data * 3 + int(x[turn % 2])
    return np.full(32, data)


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


def branch_on_a_spare_row(x):
    sums = np.r_[0, x[30::-1] % 4]
    return np.where(np.arange(32) > 0, np.where(sums > 0, 1000 // np.maximum(sums, 1), 1), 0)


def words_of_a_chunk(x):
    rows = np.zeros((4, 32, 4), np.uint32)
    rows[..., :2] = x[:64].reshape(32, 2)
    return rows.ravel()


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
    Right("warp.cu", "volatile_sum", summed(32, 32)),
    Right("warp.cu", "volatile_branch", lambda x: np.array([x[0], 0])),
    Right("warp.cu", "volatile_turns", volatile_turns),
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
    Right("passing_on.cu", "wide_flag", lambda x: x[2], 32, 2),
    Right("passing_on.cu", "short_flag", lambda x: x[7], 32, 2),
    Right("passing_on.cu", "fenced_apart", mirrored(32), 64),
    Right("passing_on.cu", "polled_asleep", mirrored(64), 64, 2),
    Right("passing_on.cu", "added_in_turn", lambda x: 3 * x[:64] + 3, 64, 3),
    Right("passing_on.cu", "early_fence", lambda x: x[0], 32, 2),
    Right("passing_on.cu", "foreign_fence", lambda x: x[0], 64, 2),
    Right("passing_on.cu", "two_paths", lambda x: x[0], 32, 2),
    Right("passing_on.cu", "relay_out", mirrored(32), 96, 2),
    Right("passing_on.cu", "one_slot", lambda x: x[:192].reshape(6, 32)[:, T32 ^ 1].reshape(-1), 32, 2),
    Right("passing_on.cu", "in_turn", lambda x: x[:64] * 4 + x[64:128] * 2 + x[128:192], 64, 3),
    Right("passing_on.cu", "cells", lambda x: np.ones(8), 32, 4),
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
    Right("mbarriers.cu", "phase", mirrored(64), 64),
    Right("mbarriers.cu", "phase_of_a_warp", swapped),
    Right("mbarriers.cu", "phase_global", mirrored(64), 64),
    Right("mbarriers.cu", "elected", mirrored(64), 64),
    Right("mbarriers.cu", "users_alone", lambda x: x[:64], 64),
    Right("mbarriers.cu", "bytes_again", lambda x: np.full(64, x[5]), 64),
    Right("mbarriers.cu", "stages_of_phases", staged(4), 128),
    Right("mbarriers.cu", "copies_come", mirrored(64), 64),
    Right("mbarriers.cu", "copies_counted", mirrored(64), 64),
    Right("mbarriers.cu", "stored_beside_copies", lambda x: 3 * x[63 - T64], 64),
    Right("mbarriers.cu", "own_and_others", lambda x: x[:64] + x[63 - T64], 64),
    Right("mbarriers.cu", "stages_of_copies", lambda x: sum(3 ** (5 - i) * x[32 * i + 31 - T32] for i in range(6)), 64),
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
    Right("uninitialised.cu", "branch_on_a_spare_row", branch_on_a_spare_row),
    Right("uninitialised_hopper.cu", "product_of_own_block", lambda _: np.full(128, 64), 128, 2),
    Right("uninitialised_blackwell.cu", "words_of_a_chunk", words_of_a_chunk, 128),
    Right("warpgroup.cu", "copied_behind_wait", lambda x: np.where(T128 < 32, 192, 128), 128),
    Right("warpgroup.cu", "stored_behind_wait", lambda x: np.full(256, 80), 256),
    Right("warpgroup.cu", "moved_in_flight", lambda x: np.full(128, 48), 128),
    Right("warpgroup.cu", "padding_rows", lambda x: np.full(32, 32), 128),
    Right("warpgroup.cu", "stored_padding_rows", lambda x: np.full(32, 32), 256),
    Right("warpgroup.cu", "padding_rows_in_flight", lambda x: np.full(32, 32), 128),
    Right("warpgroup.cu", "padding_rows_afterwards", lambda x: np.full(32, 32), 256),
    Right("tensor_core.cu", "tensor_padding_rows", lambda x: np.full(32, 16), 128),
    Right("tensor_core.cu", "tensor_padding_rows_in_flight", lambda x: np.full(32, 16), 128),
    Right("tensor_core.cu", "tensor_padding_rows_stored", lambda x: np.full(32, 16), 128),
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
)
