// Matrix products on Hopper's tensor cores (wgmma), fed by TMA.
//
//   result[i,j] = Σ_r left[i,r] · right[r,j]      f16 or bf16, sums in f32
//
// A block computes tiles of tile_rows × tile_columns. One warp, the producer, has TMA fill a ring of stages, each with 64 terms of
// both operands. The other warps, in warpgroups that own 64 rows each, multiply:
//
//   producer     full[s] ◄── boxes of left and right ──► stage s ──► empty[s]
//   warpgroup 0              rows  0 … 63  × tile_columns   wgmma, sums in registers ─► staging ─► result
//   warpgroup 1              rows 64 … 127 × tile_columns   wgmma, sums in registers ─► staging ─► result
//
// An operand lies with its terms side by side (reduction-major) or with its rows (left) or columns (right) side by side
// (row-major); the matrix unit reads either, so all three products of a layer are this kernel and no operand is transposed. The result
// may be (`result_transposed`): the planner swaps rows and columns where tiles fit better so.
//
//   stage     left: tile_rows lines of 64 terms, or tile_rows / 64 blocks of 64 terms by 64 rows; right likewise;
//             16-byte groups of a 128-byte line swizzled by its number modulo 8
//   cluster   Blocks share operands: those above each other (`share_rows` of them) the right one, those side by side the left one.
//             Each loads a part of the lines and sends it to all that share. Or (`split`) they share one tile, each summing a part of
//             the terms: split-K.
//   pieces    (`shared_rest`) The last tiles, too few for all clusters, are summed in pieces by several: stream-K for the last
//             round alone. With `split`, all tiles are summed by several clusters, each of which splits its part again.
//   by_rows   TMA takes addresses and strides in multiples of 16 bytes. Where lines begin anywhere, every eighth line forms a
//             matrix whose stride of 8 lines is such a multiple; there are eight such matrices, and the address of each is
//             rounded down. TMA copies 72 elements of each line from there, and further warps, the aligners, move 64 of them
//             into the stage:
//
//               producer     raw_full[r] ◄── boxes ──► raw stage r ──► raw_empty[r]
//               aligners     raw stage r ── shift by the residue's remainder ──► stage s ──► full[s]
//
//             A result whose lines begin anywhere is stored by the warps themselves, element by element.
//
// Cost: 2 · tile_rows · tile_columns · 64 operations and 128 · (tile_rows + tile_columns) bytes from the L2 cache
// per step, less what a cluster shares. docs/kernels/gemm-wgmma.md has the figures.
#pragma once
#include "gemm_wgmma_results.cuh"

namespace causeway {
namespace gemm {

// Copies this block's part of one operand's stage: `first` is the tile's row (left) or column (right), `term` the first
// term. Where there are several parts, each goes to the blocks whose bits are set in `to_blocks`. For one lane.
template <bool RowMajor, int Extent, int Parts>
CAUSEWAY_DEVICE void load_operand(const TensorMap* map, u32 to, u32 barrier, i32 first, i32 term, u32 part, u32 to_blocks) {
    const auto load = [&](u32 offset, i32 inner, i32 outer) {
        if constexpr (Parts > 1) box_load_to((u16)to_blocks, to + offset, map, barrier, inner, outer);
        else box_load(to + offset, map, barrier, inner, outer);
    };
    constexpr int LINES = (RowMajor ? STEP : Extent) / Parts;  // of a box
    static_assert(LINES % 8 == 0, "a part has whole swizzles");
    const i32 begin = Parts > 1 ? (i32)part * LINES : 0;
    if constexpr (RowMajor) {
#pragma unroll
        for (i32 i = 0; i < Extent; i += 64) load((i + begin) * LINE, first + i, term + begin);
    } else {
        load(begin * LINE, term, first + begin);
    }
}

// The same where lines begin anywhere: a box for each residue of each group of 64 lines. The lanes share the boxes.
template <bool RowMajor, int Extent>
CAUSEWAY_DEVICE void load_lines(const TensorMap* maps, u32 to, u32 barrier, i32 first, i32 term) {
    for (i32 box = (i32)lane_index(); box < Extent / 8; box += 32) {
        const i32 residue = box & 7, along = first + box / 8 * 64;
        box_load(to + box * RAW_BOX, maps + residue, barrier, RowMajor ? along : term, (RowMajor ? term : along) >> 3);
    }
}

// The producer: fills stage after stage, for tile after tile.
template <typename T> CAUSEWAY_DEVICE void produce(const Arguments<T>& a, const Block<T>& block, Walk<T> walk, i32 row, i32 column) {
    using S = Shape<T>;
    const bool first_lane = lane_index() == 0;
    if (S::RAW_GROUPS == 0 && !first_lane) return;
    Ring<T::stages> ring;
    Ring<T::raw_stages> raw;
    for (; walk.any(a); walk.next(a), tile_at(a, walk.tile, row, column)) {
        const i32 first_row = block.row(row), first_column = block.column(column);
        for (i32 step = walk.begin; step < walk.end; ++step) {
            if constexpr (S::RAW_GROUPS > 0) {
                const u32 full = block.raw_full(raw.stage), to = block.base + S::RAW + raw.stage * S::RAW_STAGE;
                barrier_wait(block.raw_empty(raw.stage), raw.parity ^ 1);
                if (first_lane) barrier_arrive_expecting(full, S::RAW_STAGE);
                if constexpr (T::left_by_rows) {
                    load_lines<T::left_row_major, T::tile_rows>(a.left.map, to, full, first_row, step * STEP);
                }
                if constexpr (T::right_by_rows) {
                    load_lines<T::right_row_major, T::tile_columns>(a.right.map, to + S::LEFT_GROUPS * RAW_GROUP, full,
                                                                    first_column, step * STEP);
                }
                raw.next();
            }
            if (S::DIRECT > 0 && first_lane) {
                const u32 full = block.full(ring.stage), to = block.base + ring.stage * S::STAGE;
                barrier_wait(block.empty(ring.stage), ring.parity ^ 1);
                barrier_arrive_expecting(full, S::DIRECT);
                if constexpr (!T::left_by_rows) {
                    load_operand<T::left_row_major, T::tile_rows, S::SHARE_COLUMNS>(
                        a.left.map, to, full, first_row, step * STEP, block.across(),
                        S::IN_ROW << block.down() * S::SHARE_COLUMNS);
                }
                if constexpr (!T::right_by_rows) {
                    load_operand<T::right_row_major, T::tile_columns, S::SHARE_ROWS>(
                        a.right.map, to + S::LEFT, full, first_column, step * STEP, block.down(),
                        S::IN_COLUMN << block.across());
                }
            }
            ring.next();
        }
    }
    // Other blocks' warps arrive at this block's barriers, so the block must not end before every stage has been given back. What
    // others send here has arrived by then, since this block's own warps waited for it.
    if constexpr (T::cluster > 1 && !T::split) {
        for (int stage = 0; stage < T::stages; ++stage) {
            barrier_wait(block.empty(ring.stage), ring.parity ^ 1);
            ring.next();
        }
    }
}

// Eight elements of sixteen, from number `shift` (0 … 7) on.
CAUSEWAY_DEVICE uint4 shifted(uint4 low, uint4 high, u32 shift) {
    const bool by_4 = shift & 4, by_2 = shift & 2;
    const u32 bits = (shift & 1) * 16;
    const u32 a0 = by_4 ? low.z : low.x, a1 = by_4 ? low.w : low.y, a2 = by_4 ? high.x : low.z;
    const u32 a3 = by_4 ? high.y : low.w, a4 = by_4 ? high.z : high.x, a5 = by_4 ? high.w : high.y;
    const u32 b0 = by_2 ? a1 : a0, b1 = by_2 ? a2 : a1, b2 = by_2 ? a3 : a2, b3 = by_2 ? a4 : a3, b4 = by_2 ? a5 : a4;
    return make_uint4(__funnelshift_r(b0, b1, bits), __funnelshift_r(b1, b2, bits), __funnelshift_r(b2, b3, bits),
                      __funnelshift_r(b3, b4, bits));
}

// An aligner: moves lines from raw stages to stages, a line per lane at a time. Lanes take residues and lines in such an order
// that neither the reads, 144 bytes apart, nor the swizzled writes conflict in a bank.
template <typename T> CAUSEWAY_DEVICE void align(const Arguments<T>& a, const Block<T>& block, Walk<T> walk, u32 aligner) {
    using S = Shape<T>;
    const u32 lane = lane_index(), residue = lane & 7;
    u32 left_shift = 0, right_shift = 0;
    if constexpr (T::left_by_rows) left_shift = a.left.shifts >> 4 * residue & 7;
    if constexpr (T::right_by_rows) right_shift = a.right.shifts >> 4 * residue & 7;
    Ring<T::stages> ring;
    Ring<T::raw_stages> raw;
    for (; walk.any(a); walk.next(a)) {
        for (i32 step = walk.begin; step < walk.end; ++step) {
            barrier_wait(block.raw_full(raw.stage), raw.parity);
            barrier_wait(block.empty(ring.stage), ring.parity ^ 1);
            for (u32 half = aligner; half < 2 * S::RAW_GROUPS; half += T::aligners) {
                const u32 group = half / 2, line = (residue + half % 2 * 4 + lane / 8) & 7;
                const bool left = group < S::LEFT_GROUPS;
                const u32 shift = left ? left_shift : right_shift;
                const u32 from = block.base + S::RAW + raw.stage * S::RAW_STAGE + group * RAW_GROUP + residue * RAW_BOX +
                                 line * RAW_LINE;
                const u32 to = block.base + ring.stage * S::STAGE + (line * 8 + residue) * LINE +
                               (left ? group * 64 * LINE : S::LEFT + (group - S::LEFT_GROUPS) * 64 * LINE);
                uint4 here = load_group(from);
#pragma unroll
                for (u32 i = 0; i < 8; ++i) {
                    const uint4 next = load_group(from + 16 * i + 16);
                    store_group(to + ((i ^ residue) << 4), shifted(here, next, shift));
                    here = next;
                }
            }
            shared_writes_to_async();
            wave_barrier();
            if (lane == 0) {
                barrier_arrive(block.full(ring.stage));
                barrier_arrive(block.raw_empty(raw.stage));
            }
            ring.next();
            raw.next();
        }
    }
}

// A consumer: one of the warps that multiply.
template <typename T> CAUSEWAY_DEVICE void consume(const Arguments<T>& a, const Block<T>& block, Walk<T> walk, i32 row, i32 column) {
    using S = Shape<T>;
    const u32 warp = thread_index() / 32, lane = lane_index();
    const u32 left_part = warp / 4 * 64 * LINE;  // the warpgroup's 64 rows, in either layout
    const u32 sharer = block.sharer(lane);
    float sums[T::tile_columns / 2];
    Ring<T::stages> ring;
    u32 buffer = 0;
    // This warp will not read the stage again.
    const auto give_back = [&](u32 stage) {
        if constexpr (T::cluster > 1 && !T::split) {
            if (lane < S::SHARERS) barrier_arrive_at(block.empty(stage), sharer);
        } else {
            if (lane == 0) barrier_arrive(block.empty(stage));
        }
    };
    // Issues the products of a stage. The first ones of a tile do not add to what the sums were.
    const auto multiply = [&](bool add) {
        const u32 stage = block.base + ring.stage * S::STAGE;
        const u64 left = matrix_descriptor<T::left_row_major>(stage + left_part);
        const u64 right = matrix_descriptor<T::right_row_major>(stage + S::LEFT);
        barrier_wait(block.full(ring.stage), ring.parity);
        matrix_fence();
#pragma unroll
        for (int i = 0; i < STEP / 16; ++i) {
            matrix_multiply_add<T::tile_columns, T::bf16, T::left_row_major, T::right_row_major>(
                sums, left + i * NEXT_TERMS<T::left_row_major>, right + i * NEXT_TERMS<T::right_row_major>, add || i > 0);
        }
        matrix_commit();
    };
    for (; walk.any(a); walk.next(a), tile_at(a, walk.tile, row, column)) {
        i32 step = walk.begin;
        u32 before = 0;
        // The first step has code of its own. It shows the compiler that sums do not live from tile to tile, so share_sums may use
        // their registers. Without a shared rest that would only be more code to fetch: 2 to 4 % of a small product.
        if constexpr (S::REST) {
            multiply(false);
            before = ring.stage;
            ring.next();
            ++step;
        }
        for (; step < walk.end; ++step) {
            const bool follows = S::REST || step > walk.begin;
            multiply(follows);
            matrix_wait<1>();
            if (follows) give_back(before);
            before = ring.stage;
            ring.next();
        }
        matrix_wait<0>();
        give_back(before);
#pragma unroll
        for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");  // no use of a sum moves before the wait

        if constexpr (T::split) {
            // All warps have read the stages before sums take their place.
            named_barrier(CONSUMERS_MEET, S::THREADS);
            const u32 to = block.base + (warp * 16 + lane / 4) * S::SUMS_PITCH + lane % 4 * 8;
#pragma unroll
            for (int i = 0; i < T::tile_columns / 8; ++i) {
                const float* const s = sums + i * 4;
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + i * 32), "f"(s[0]), "f"(s[1]) : "memory");
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + 8 * S::SUMS_PITCH + i * 32), "f"(s[2]), "f"(s[3])
                             : "memory");
            }
            return;
        } else {
            const i32 first_row = block.row(row) + (i32)warp * 16, first_column = block.column(column);
            if (walk.in_pieces(a)) {
                share_sums(a, walk, block.rank, sums, block.staging(warp), buffer, first_row, first_column);
            } else {
                store_sums(a, sums, block.staging(warp), buffer, first_row, first_column);
            }
        }
    }
}

// The kernel. Threads: 128 for each 64 rows of the tile, 32, and 32 for each aligner.
template <typename T> CAUSEWAY_DEVICE void gemm_wgmma(const Arguments<T>& a) {
    using S = Shape<T>;
    Block<T> block;
    block.base = shared_window();
    block.rank = T::cluster > 1 ? cluster_rank() : 0;
    const u32 warp = thread_index() / 32;

    if (thread_index() == 0) {
        for (u32 stage = 0; stage < T::stages; ++stage) {
            barrier_init(block.full(stage), (S::DIRECT > 0) + T::aligners);
            barrier_init(block.empty(stage), S::WARPS * S::SHARERS);
        }
        for (u32 stage = 0; stage < T::raw_stages; ++stage) {
            barrier_init(block.raw_full(stage), 1);
            barrier_init(block.raw_empty(stage), T::aligners);
        }
        barrier_init_publish();
    } else if (thread_index() == S::THREADS) {
        prefetch(a.left.map), prefetch(a.right.map);
        if constexpr (!T::result_by_rows) prefetch(a.result.map);
    }
    if constexpr (T::cluster > 1) cluster_arrive_relaxed();
    const Walk<T> walk(a, block.rank);
    i32 row, column;
    tile_at(a, walk.tile, row, column);  // its divisions overlap the barrier
    asm volatile("" : "+r"(row), "+r"(column));
    if constexpr (T::cluster > 1) cluster_wait();
    else block_barrier();
    grid_dependency_wait();  // not sooner: what comes before it overlaps the launch before

    if (warp == S::WARPS) {
        produce(a, block, walk, row, column);
        wave_barrier();
    } else if (warp < S::WARPS) {
        consume(a, block, walk, row, column);
    } else {
        align(a, block, walk, warp - S::WARPS - 1);
    }
    if constexpr (T::split) {
        cluster_arrive();
        cluster_wait();
        if (warp < S::WARPS) combine(a, block, walk, block.row(row), block.column(column));
        // No block leaves while others read its sums.
        wave_barrier();
        cluster_arrive();
        cluster_wait();
    }
    // Shared memory has to last until TMA has read it.
    box_store_wait_read<0>();
}

}  // namespace gemm
}  // namespace causeway
