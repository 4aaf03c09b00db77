// Matrix products on Hopper's matrix units.
//
//   result[i,j] = Σ_r left[i,r] · right[r,j]      f16 or bf16, sums in f32
//
// A block computes tiles of tile_rows × tile_columns. One warp, the producer, has the copy engine fill a ring of stages
// with 64 terms of both operands at a time; others, in warpgroups that own 64 rows each, multiply:
//
//   producer     full[s] ◄── boxes of left and right ──► stage s ──► empty[s]
//   warpgroup 0              rows  0 … 63  × tile_columns   wgmma, sums in registers ─► staging ─► result
//   warpgroup 1              rows 64 … 127 × tile_columns   wgmma, sums in registers ─► staging ─► result
//
// An operand lies with its terms side by side (reduction-major) or with its rows (left) or columns (right) side by side
// (row-major); the matrix unit reads either, so all three products of a layer are this kernel and nothing is transposed.
//
//   stage     left: tile_rows lines of 64 terms, or tile_rows / 64 blocks of 64 terms by 64 rows; right likewise;
//             16-byte groups of a 128-byte line swizzled by its number modulo 8
//   cluster   blocks share one operand: each loads its part and sends it to all (`share_left`: blocks side by side;
//             else one above the other). Or (`split`) they share one tile, each summing a part of the terms.
//   by_rows   The copy engine wants addresses in multiples of 16 bytes. Where lines begin anywhere, those of each residue
//             of the line's number modulo 8 are a matrix with a stride of 8 lines, which is such a multiple, and an
//             address that is rounded down. The engine copies 72 elements of a line from there, and further warps, the
//             aligners, move 64 of them to where the stage wants them:
//
//               producer     raw_full[r] ◄── boxes ──► raw stage r ──► raw_empty[r]
//               aligners     raw stage r ── shift by the residue's remainder ──► stage s ──► full[s]
//
//             A result whose lines begin anywhere is stored by the warps themselves, element by element.
//
// Cost: 2 · tile_rows · tile_columns · 64 operations and 128 · (tile_rows + tile_columns) bytes from the last cache level
// per step, less what a cluster shares. docs/kernels/gemm-wgmma.md has the figures.
#pragma once
#include "hopper.cuh"

namespace causeway {
namespace gemm {

constexpr int STEP = 64;           // terms of a stage: 128 bytes
constexpr u32 LINE = STEP * 2;     // bytes of them
constexpr u32 CHUNK = 16 * LINE;   // what a warp stores at a time: 16 rows × 64 columns
constexpr u32 CONSUMERS_MEET = 1;  // named barrier
constexpr u32 RAW_LINE = 144;      // bytes of 72 elements
constexpr u32 RAW_BOX = 8 * RAW_LINE;
constexpr u32 RAW_GROUP = 8 * RAW_BOX;  // 64 lines, by residues

// An operand: one map, or one for each residue of a line's number and the elements between the rounded address and the
// line's own, 4 bits each.
template <bool ByRows> struct Operand { TensorMap map[1]; };
template <> struct Operand<true> {
    TensorMap map[8];
    u32 shifts;
};

template <bool ByRows> struct Result { TensorMap map[1]; };
template <> struct Result<true> {
    u64 address;
    i64 row_stride;  // elements
    i32 rows, columns;
};

template <typename T> struct Arguments {
    Operand<T::left_by_rows> left;
    Operand<T::right_by_rows> right;
    Result<T::result_by_rows> result;
    i32 row_tiles, column_tiles;  // in units of a cluster's tiles
    i32 steps;                    // ⌈terms / 64⌉
    i32 band;                     // rows of tiles that are walked together
};

// The sizes that follow from a choice of tile.
template <typename T> struct Shape {
    static constexpr int GROUPS = T::tile_rows / 64;
    static constexpr int WARPS = GROUPS * 4;  // that multiply
    static constexpr int THREADS = WARPS * 32;
    static constexpr int SHARE_ROWS = T::split || T::share_left ? 1 : T::cluster;  // blocks of a cluster above each other
    static constexpr int SHARE_COLUMNS = T::split || !T::share_left ? 1 : T::cluster;
    static constexpr u32 LEFT = T::tile_rows * LINE;
    static constexpr u32 STAGE = LEFT + T::tile_columns * LINE;
    static constexpr u32 STAGES = STAGE * T::stages;
    // By rows: groups of 64 lines, those of left first.
    static constexpr int LEFT_GROUPS = T::left_by_rows ? T::tile_rows / 64 : 0;
    static constexpr int RAW_GROUPS = LEFT_GROUPS + (T::right_by_rows ? T::tile_columns / 64 : 0);
    static constexpr u32 RAW_STAGE = RAW_GROUPS * RAW_GROUP;
    static constexpr u32 DIRECT = (T::left_by_rows ? 0 : LEFT) + (T::right_by_rows ? 0 : T::tile_columns * LINE);
    static constexpr u32 RAW = STAGES;
    static constexpr u32 STAGING = RAW + RAW_STAGE * T::raw_stages;
    static constexpr u32 WARP_STAGING = CHUNK * T::staging;
    static constexpr u32 BARRIERS = STAGING + WARP_STAGING * WARPS;
    // Split: a block's own sums, in place of the stages. The padding spreads rows over the banks.
    static constexpr u32 SUMS_PITCH = T::tile_columns * 4 + 32;
    static_assert(!T::split || T::tile_rows * SUMS_PITCH <= STAGES, "the sums of a split tile take the stages' place");
    static_assert(!T::split || T::cluster > 1, "a tile is split over a cluster");
    static_assert((RAW_GROUPS > 0) == (T::aligners > 0) && (RAW_GROUPS > 0) == (T::raw_stages > 0), "aligners align");
    static_assert(RAW_GROUPS == 0 || SHARE_ROWS * SHARE_COLUMNS == 1, "lines that begin anywhere are not shared");
};

// The stage that comes next, and the parity of its pass through the ring.
template <int Stages> struct Ring {
    u32 stage = 0, parity = 0;
    CAUSEWAY_DEVICE void next() {
        if (++stage == Stages) stage = 0, parity ^= 1;
    }
};

// Tiles in the order of bands of `band` rows of tiles, column by column within a band: those under way at one time form
// a patch that is about as high as it is wide, and share their operands in the last cache level.
template <typename T> CAUSEWAY_DEVICE void tile_at(const Arguments<T>& a, i32 tile, i32& row, i32& column) {
    const i32 per_band = a.band * a.column_tiles;
    const i32 first = tile / per_band * a.band, rest = tile % per_band;
    const i32 rows = max(1, min(a.row_tiles - first, a.band));  // a tile past the last one is asked for and not used
    column = rest / rows;
    row = first + rest % rows;
}

// Copies this block's part of one operand's stage: `first` is the tile's row (left) or column (right), `term` the first
// term. A part goes to all blocks of the cluster when there are several. For one lane.
template <bool RowMajor, int Extent, int Parts>
CAUSEWAY_DEVICE void load_operand(const TensorMap* map, u32 to, u32 barrier, i32 first, i32 term, u32 part) {
    const auto load = [&](u32 offset, i32 inner, i32 outer) {
        if constexpr (Parts > 1) box_load_to((1 << Parts) - 1, to + offset, map, barrier, inner, outer);
        else box_load(to + offset, map, barrier, inner, outer);
    };
    constexpr int PART = Extent / Parts;
    static_assert(!RowMajor || PART % 64 == 0, "a row-major operand is shared in blocks of 64");
    const i32 begin = Parts > 1 ? (i32)part * PART : 0;
    if constexpr (RowMajor) {
#pragma unroll
        for (i32 i = begin; i < begin + PART; i += 64) load(i * LINE, first + i, term);
    } else {
        load(begin * LINE, term, first + begin);
    }
}

// The same where lines begin anywhere: a box for each residue of each group of 64 lines, dealt to the lanes.
template <bool RowMajor, int Extent>
CAUSEWAY_DEVICE void load_lines(const TensorMap* maps, u32 to, u32 barrier, i32 first, i32 term) {
    for (i32 box = (i32)lane_index(); box < Extent / 8; box += 32) {
        const i32 residue = box & 7, along = first + box / 8 * 64;
        box_load(to + box * RAW_BOX, maps + residue, barrier, RowMajor ? along : term, (RowMajor ? term : along) >> 3);
    }
}

// Where one block stands.
template <typename T> struct Block {
    using S = Shape<T>;
    u32 base;            // of the stages, in shared memory
    u32 rank;            // within the cluster
    i32 tile, tiles;     // the cluster's first tile, and all of them
    i32 tile_step;       // clusters
    i32 begin, end;      // steps of a tile that this block sums

    CAUSEWAY_DEVICE i32 row(i32 tile_row) const {
        return (tile_row * S::SHARE_ROWS + (S::SHARE_ROWS > 1 ? (i32)rank : 0)) * T::tile_rows;
    }
    CAUSEWAY_DEVICE i32 column(i32 tile_column) const {
        return (tile_column * S::SHARE_COLUMNS + (S::SHARE_COLUMNS > 1 ? (i32)rank : 0)) * T::tile_columns;
    }
    CAUSEWAY_DEVICE u32 full(u32 stage) const { return base + S::BARRIERS + 16 * stage; }
    CAUSEWAY_DEVICE u32 empty(u32 stage) const { return full(stage) + 8; }
    CAUSEWAY_DEVICE u32 raw_full(u32 stage) const { return full(T::stages + stage); }
    CAUSEWAY_DEVICE u32 raw_empty(u32 stage) const { return empty(T::stages + stage); }
    CAUSEWAY_DEVICE u32 staging(u32 warp) const { return base + S::STAGING + warp * S::WARP_STAGING; }
};

// The producer: fills stage after stage, for tile after tile.
template <typename T> CAUSEWAY_DEVICE void produce(const Arguments<T>& a, const Block<T>& block, i32 row, i32 column) {
    using S = Shape<T>;
    const bool first_lane = lane_index() == 0;
    if (S::RAW_GROUPS == 0 && !first_lane) return;
    Ring<T::stages> ring;
    Ring<T::raw_stages> raw;
    for (i32 tile = block.tile; tile < block.tiles;) {
        const i32 first_row = block.row(row), first_column = block.column(column);
        for (i32 step = block.begin; step < block.end; ++step) {
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
                    load_operand<T::left_row_major, T::tile_rows, S::SHARE_COLUMNS>(a.left.map, to, full, first_row,
                                                                                    step * STEP, block.rank);
                }
                if constexpr (!T::right_by_rows) {
                    load_operand<T::right_row_major, T::tile_columns, S::SHARE_ROWS>(
                        a.right.map, to + S::LEFT, full, first_column, step * STEP, block.rank);
                }
            }
            ring.next();
        }
        tile += block.tile_step;
        tile_at(a, tile, row, column);
    }
    // Another block's warps arrive at this block's barriers, so it has to outlive them: until every stage has been given
    // back. What others send here has landed by then, since this block's own warps waited for it.
    if constexpr (T::cluster > 1 && !T::split) {
        for (int stage = 0; stage < T::stages; ++stage) {
            barrier_wait(block.empty(ring.stage), ring.parity ^ 1);
            ring.next();
        }
    }
}

CAUSEWAY_DEVICE uint4 load_group(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}

CAUSEWAY_DEVICE void store_group(u32 address, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
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

// An aligner: moves lines from raw stages to stages. A lane moves one line at a time; lanes of one residue take
// different boxes' lines, so that neither the reads, at distances of 144 bytes, nor the swizzled writes meet in a bank.
template <typename T> CAUSEWAY_DEVICE void align(const Arguments<T>& a, const Block<T>& block, u32 aligner) {
    using S = Shape<T>;
    const u32 lane = lane_index(), residue = lane & 7;
    u32 left_shift = 0, right_shift = 0;
    if constexpr (T::left_by_rows) left_shift = a.left.shifts >> 4 * residue & 7;
    if constexpr (T::right_by_rows) right_shift = a.right.shifts >> 4 * residue & 7;
    Ring<T::stages> ring;
    Ring<T::raw_stages> raw;
    for (i32 tile = block.tile; tile < block.tiles; tile += block.tile_step) {
        for (i32 step = block.begin; step < block.end; ++step) {
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

template <bool Bf16> CAUSEWAY_DEVICE u32 pair(float low, float high) {
    return Bf16 ? pair_bf16(low, high) : pair_f16(low, high);
}

// Stores what one warp has staged: Rows rows of 64 columns.
template <typename T, int Rows>
CAUSEWAY_DEVICE void store_chunk(const Arguments<T>& a, u32 from, i32 row, i32 column) {
    const i32 lane = (i32)lane_index();
    if constexpr (T::result_by_rows) {
        wave_barrier();
        char* line = (char*)a.result.address + ((i64)row * a.result.row_stride + column) * 2;
#pragma unroll 1  // the addresses of several lines at a time would not fit the registers
        for (i32 i = 0; i < Rows; ++i) {
#pragma unroll
            for (i32 at = lane; at < 64; at += 32) {
                u16 value;
                asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(from + i * LINE + ((at / 8 ^ i & 7) << 4) + at % 8 * 2));
                if (row + i < a.result.rows && column + at < a.result.columns) ((u16*)line)[at] = value;
            }
            line += a.result.row_stride * 2;
        }
    } else {
        shared_writes_to_async();
        wave_barrier();
        if (lane == 0) {
            box_store(a.result.map, from, column, row);
            box_store_commit();
        }
    }
}

// Rounds a warp's sums, 16 rows of the tile, and stores them, 64 columns at a time through `staging` buffers.
template <typename T>
CAUSEWAY_DEVICE void store_sums(const Arguments<T>& a, const float (&sums)[T::tile_columns / 2], u32 staging, u32& buffer,
                                i32 row, i32 column) {
    const u32 lane = lane_index(), line = lane & 15, group = lane >> 4;
#pragma unroll
    for (int chunk = 0; chunk < T::tile_columns / 64; ++chunk) {
        const u32 to = staging + buffer * CHUNK;
        buffer = buffer + 1 == T::staging ? 0 : buffer + 1;
        box_store_wait_read<T::staging - 1>();
        wave_barrier();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* const s = sums + chunk * 32 + i * 8;
            matrix_store(to + line * LINE + ((2 * i + group ^ line & 7) << 4), pair<T::bf16>(s[0], s[1]),
                         pair<T::bf16>(s[2], s[3]), pair<T::bf16>(s[4], s[5]), pair<T::bf16>(s[6], s[7]));
        }
        store_chunk<T, 16>(a, to, row, column + chunk * 64);
    }
}

// A consumer: one of the warps that multiply.
template <typename T> CAUSEWAY_DEVICE void consume(const Arguments<T>& a, const Block<T>& block, i32 row, i32 column) {
    using S = Shape<T>;
    const u32 warp = thread_index() / 32, lane = lane_index();
    const u32 left_part = warp / 4 * 64 * LINE;  // the warpgroup's 64 rows, in either layout
    float sums[T::tile_columns / 2];
    Ring<T::stages> ring;
    u32 buffer = 0;
    // This warp will not read the stage again.
    const auto give_back = [&](u32 stage) {
        if constexpr (T::cluster > 1 && !T::split) {
            if (lane < T::cluster) barrier_arrive_at(block.empty(stage), lane);
        } else {
            if (lane == 0) barrier_arrive(block.empty(stage));
        }
    };
    for (i32 tile = block.tile; tile < block.tiles;) {
        u32 before = 0;
        for (i32 step = block.begin; step < block.end; ++step) {
            const u32 stage = block.base + ring.stage * S::STAGE;
            const u64 left = matrix_descriptor<T::left_row_major>(stage + left_part);
            const u64 right = matrix_descriptor<T::right_row_major>(stage + S::LEFT);
            barrier_wait(block.full(ring.stage), ring.parity);
            matrix_fence();
#pragma unroll
            for (int i = 0; i < STEP / 16; ++i) {
                matrix_multiply_add<T::tile_columns, T::bf16, T::left_row_major, T::right_row_major>(
                    sums, left + i * NEXT_TERMS<T::left_row_major>, right + i * NEXT_TERMS<T::right_row_major>,
                    (step - block.begin | i) != 0);
            }
            matrix_commit();
            matrix_wait<1>();
            if (step > block.begin) give_back(before);
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
            store_sums(a, sums, block.staging(warp), buffer, block.row(row) + (i32)warp * 16, block.column(column));
            tile += block.tile_step;
            tile_at(a, tile, row, column);
        }
    }
}

// Adds the sums of a cluster's blocks, in the order of the blocks, and stores them; each warp of the cluster takes some
// of the tile's pieces of 8 rows × 64 columns.
template <typename T> CAUSEWAY_DEVICE void combine(const Arguments<T>& a, const Block<T>& block, i32 row, i32 column) {
    using S = Shape<T>;
    constexpr u32 ACROSS = T::tile_columns / 64, PIECES = T::tile_rows / 8 * ACROSS;
    const u32 warp = thread_index() / 32, lane = lane_index(), group = lane % 8;
    const u32 to = block.staging(warp);
    for (u32 piece = block.rank * S::WARPS + warp; piece < PIECES; piece += T::cluster * S::WARPS) {
        const u32 first_row = piece / ACROSS * 8, first_column = piece % ACROSS * 64;
        float4 parts[T::cluster][4];
#pragma unroll
        for (u32 rank = 0; rank < T::cluster; ++rank) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 from = block.base + (first_row + lane / 8 + i / 2 * 4) * S::SUMS_PITCH +
                                 (first_column + group * 8 + i % 2 * 4) * 4;
                parts[rank][i] = load_of_block(from, rank);
            }
        }
#pragma unroll
        for (u32 rank = 1; rank < T::cluster; ++rank) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                parts[0][i].x += parts[rank][i].x, parts[0][i].y += parts[rank][i].y;
                parts[0][i].z += parts[rank][i].z, parts[0][i].w += parts[rank][i].w;
            }
        }
        box_store_wait_read<0>();
        wave_barrier();
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 line = lane / 8 + half * 4;
            const float4 l = parts[0][half * 2], h = parts[0][half * 2 + 1];
            store_group(to + line * LINE + ((group ^ line) << 4),
                        make_uint4(pair<T::bf16>(l.x, l.y), pair<T::bf16>(l.z, l.w), pair<T::bf16>(h.x, h.y),
                                   pair<T::bf16>(h.z, h.w)));
        }
        store_chunk<T, 8>(a, to, row + (i32)first_row, column + (i32)first_column);
    }
}

// The kernel. Threads: 128 for each 64 rows of the tile, 32, and 32 for each aligner.
template <typename T> CAUSEWAY_DEVICE void gemm_wgmma(const Arguments<T>& a) {
    using S = Shape<T>;
    Block<T> block;
    block.base = shared_window();
    block.rank = T::cluster > 1 ? cluster_rank() : 0;
    block.tile = (i32)(blockIdx.x / T::cluster);
    block.tile_step = (i32)(gridDim.x / T::cluster);
    block.tiles = a.row_tiles * a.column_tiles;
    block.begin = T::split ? (i32)block.rank * a.steps / T::cluster : 0;
    block.end = T::split ? ((i32)block.rank + 1) * a.steps / T::cluster : a.steps;
    const u32 warp = thread_index() / 32;

    if (thread_index() == 0) {
        for (u32 stage = 0; stage < T::stages; ++stage) {
            barrier_init(block.full(stage), (S::DIRECT > 0) + T::aligners);
            barrier_init(block.empty(stage), S::WARPS * (T::split ? 1 : T::cluster));
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
    i32 row, column;
    tile_at(a, block.tile, row, column);  // its divisions overlap the barrier
    asm volatile("" : "+r"(row), "+r"(column));
    if constexpr (T::cluster > 1) cluster_wait();
    else block_barrier();
    previous_launch_wait();
    next_launch_allow();

    if (warp == S::WARPS) {
        produce(a, block, row, column);
        wave_barrier();
    } else if (warp < S::WARPS) {
        consume(a, block, row, column);
    } else {
        align(a, block, warp - S::WARPS - 1);
    }
    if constexpr (T::split) {
        cluster_arrive();
        cluster_wait();
        if (warp < S::WARPS) combine(a, block, block.row(row), block.column(column));
        // No block leaves while others read its sums.
        wave_barrier();
        cluster_arrive();
        cluster_wait();
    }
    // Shared memory has to last until the copy engine has read it.
    box_store_wait_read<0>();
}

}  // namespace gemm
}  // namespace causeway
