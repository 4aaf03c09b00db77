// What a block of gemm_wgmma.cuh works on: its arguments, the sizes that follow from a choice of tile, its places in
// shared memory, and its walk over tiles and terms.
//
//   whole tiles   0 … whole - 1: a cluster takes every (number of clusters)-th of them, all terms of it
//   the rest      fewer tiles than there are clusters. Each is summed in `pieces` pieces, the first one longer than the
//                 others. As many clusters as there are tiles take a first piece each; the others, of which there may be
//                 few, take the other pieces in turns:
//
//                   cluster 0       tile whole       |---- head ----|
//                   cluster 1       tile whole + 1   |---- head ----|
//                   cluster 2       tile whole                      |-part-|   then tile whole + 1   |-part-|
//
//                 So clusters that share rows or columns read the same terms at the same time, and the L2 cache loads
//                 them once.
//
// Without the rest (`shared_rest` is false) all tiles are whole ones. A cluster that splits the terms of its tile has that one only;
// with `shared_rest` it has a part of the terms, as many as there are `pieces`, and splits those.
#pragma once
#include "arguments.cuh"
#include "hopper.cuh"

namespace causeway {
namespace gemm {

constexpr int STEP = 64;           // terms of a stage: 128 bytes
constexpr u32 LINE = STEP * 2;     // bytes of them
constexpr u32 BUFFER_BYTES = 16 * LINE;  // of a staging buffer: 16 rows of at most 64 columns
constexpr u32 CONSUMERS_MEET = 1;  // named barrier
constexpr u32 RAW_LINE = 144;      // bytes of 72 elements
constexpr u32 RAW_BOX = 8 * RAW_LINE;
constexpr u32 RAW_GROUP = 8 * RAW_BOX;  // 64 lines, by residues

// An operand: one map; or, where lines begin anywhere, a map for each residue of the line's number modulo 8, and the distance in
// elements from the rounded address to the line's own, 4 bits for each residue.
template <bool ByRows> struct Operand { TensorMap map[1]; };
template <> struct Operand<true> {
    TensorMap map[8];
    u32 shifts;
};

template <bool ByRows> struct Result { TensorMap map[1]; };
template <> struct Result<true> : ResultByRows {};

// The planner puts it together from the same pieces.
template <typename T> struct Arguments {
    Operand<T::left_by_rows> left;
    Operand<T::right_by_rows> right;
    Result<T::result_by_rows> result;
    Shares shares;
};

// The sizes that follow from a choice of tile.
template <typename T> struct Shape {
    static constexpr int GROUPS = T::tile_rows / 64;
    static constexpr int WARPS = GROUPS * 4;  // that multiply
    static constexpr int THREADS = WARPS * 32;
    // Tiles are summed in pieces: those of the last round by single clusters, or, `split`, all of them by several clusters.
    static constexpr bool REST = T::shared_rest && !T::split, PARTS = T::shared_rest && T::split;
    // Blocks of a cluster that are above each other and share the right operand, and side by side, sharing the left one.
    static constexpr int SHARE_ROWS = T::split ? 1 : T::share_rows, SHARE_COLUMNS = T::split ? 1 : T::cluster / T::share_rows;
    static constexpr u32 SHARERS = SHARE_ROWS + SHARE_COLUMNS - 1;  // blocks that this one's loads go to, itself included
    static constexpr u32 IN_ROW = (1u << SHARE_COLUMNS) - 1;
    static constexpr u32 IN_COLUMN = ((1u << SHARE_ROWS * SHARE_COLUMNS) - 1) / IN_ROW;  // every SHARE_COLUMNS-th bit
    static constexpr u32 LEFT = T::tile_rows * LINE;
    // Row-major, an operand comes in blocks of 64.
    static constexpr u32 RIGHT = (T::right_row_major ? (T::tile_columns + 63) / 64 * 64 : T::tile_columns) * LINE;
    static constexpr u32 STAGE = LEFT + RIGHT;
    // Columns that a warp stores at a time.
    static constexpr int ACROSS =
        T::tile_columns % 64 == 0 ? 64 : T::tile_columns % 48 == 0 ? 48 : T::tile_columns % 32 == 0 ? 32 : 16;
    static_assert(T::tile_columns % ACROSS == 0, "a tile is stored in pieces of one width");
    // Elements of a line that it stores.
    static constexpr int STORED = T::result_transposed ? 16 : ACROSS;
    static_assert(!(T::result_transposed && T::split), "a split tile is stored by its rows");
    static constexpr u32 STAGES = STAGE * T::stages;
    // Of pieces' sums, what a thread asks for before it adds: as many as the registers allow beside what it adds to.
    static constexpr u32 PACKETS_IN_FLIGHT = THREADS > 256 ? 16 : 32;
    // By rows: groups of 64 lines, those of left first.
    static constexpr int LEFT_GROUPS = T::left_by_rows ? T::tile_rows / 64 : 0;
    static constexpr int RAW_GROUPS = LEFT_GROUPS + (T::right_by_rows ? T::tile_columns / 64 : 0);
    static constexpr u32 RAW_STAGE = RAW_GROUPS * RAW_GROUP;
    static constexpr u32 DIRECT = (T::left_by_rows ? 0 : LEFT) + (T::right_by_rows ? 0 : RIGHT);
    static constexpr u32 RAW = STAGES;
    static constexpr u32 STAGING = RAW + RAW_STAGE * T::raw_stages;
    static constexpr u32 WARP_STAGING = BUFFER_BYTES * T::staging;
    static constexpr u32 BARRIERS = STAGING + WARP_STAGING * WARPS;
    // Split: a block's own sums, in place of the stages. The padding spreads rows over the banks.
    static constexpr u32 SUMS_PITCH = T::tile_columns * 4 + 32;
    static_assert(!T::split || T::tile_rows * SUMS_PITCH <= STAGES, "the sums of a split tile take the stages' place");
    static_assert(!T::split || T::cluster > 1, "a tile is split over a cluster");
    static_assert((RAW_GROUPS > 0) == (T::aligners > 0) && (RAW_GROUPS > 0) == (T::raw_stages > 0), "aligners align");
    static_assert(RAW_GROUPS == 0 || SHARE_ROWS * SHARE_COLUMNS == 1, "lines that begin anywhere are not shared");
};

// The stage that comes next, and the parity of this pass through the ring.
template <int Stages> struct Ring {
    u32 stage = 0, parity = 0;
    CAUSEWAY_DEVICE void next() {
        if (++stage == Stages) stage = 0, parity ^= 1;
    }
};

// A block: its rank in the cluster, and its addresses in shared memory.
template <typename T> struct Block {
    using S = Shape<T>;
    u32 base;            // of the stages, in shared memory
    u32 rank;            // within the cluster

    CAUSEWAY_DEVICE i32 row(i32 tile_row) const {
        return (tile_row * S::SHARE_ROWS + (S::SHARE_ROWS > 1 ? (i32)down() : 0)) * T::tile_rows;
    }
    CAUSEWAY_DEVICE i32 column(i32 tile_column) const {
        return (tile_column * S::SHARE_COLUMNS + (S::SHARE_COLUMNS > 1 ? (i32)across() : 0)) * T::tile_columns;
    }
    // Its place among the blocks with its rows, and among those with its columns.
    CAUSEWAY_DEVICE u32 across() const { return rank % S::SHARE_COLUMNS; }
    CAUSEWAY_DEVICE u32 down() const { return rank / S::SHARE_COLUMNS; }
    // Of the blocks with its rows or its columns, the `nth`.
    CAUSEWAY_DEVICE u32 sharer(u32 nth) const {
        if (nth < (u32)S::SHARE_COLUMNS) return down() * S::SHARE_COLUMNS + nth;
        return (down() + 1 + nth - S::SHARE_COLUMNS) % S::SHARE_ROWS * S::SHARE_COLUMNS + across();
    }
    CAUSEWAY_DEVICE u32 full(u32 stage) const { return base + S::BARRIERS + 16 * stage; }
    CAUSEWAY_DEVICE u32 empty(u32 stage) const { return full(stage) + 8; }
    CAUSEWAY_DEVICE u32 raw_full(u32 stage) const { return full(T::stages + stage); }
    CAUSEWAY_DEVICE u32 raw_empty(u32 stage) const { return empty(T::stages + stage); }
    CAUSEWAY_DEVICE u32 staging(u32 warp) const { return base + S::STAGING + warp * S::WARP_STAGING; }
};

// Tiles are walked in bands of `band` rows of tiles, and column by column within a band. So the tiles that are computed at the same
// time form a patch about as high as it is wide, and share their operands in the L2 cache.
template <typename T> CAUSEWAY_DEVICE void tile_at(const Arguments<T>& a, i32 tile, i32& row, i32& column) {
    const i32 per_band = a.shares.band * a.shares.column_tiles;
    const i32 first = tile / per_band * a.shares.band, rest = tile % per_band;
    const i32 rows = max(1, min(a.shares.row_tiles - first, a.shares.band));  // the tile after the last one is located, too, and not used
    column = rest / rows;
    row = first + rest % rows;
}

// A cluster's walk through its tiles. It has few members, since the warps that multiply keep them in registers beside their sums.
template <typename T> struct Walk {
    using S = Shape<T>;
    i32 tile;
    i32 begin, end;  // steps of the tile that this block sums
    u32 ahead;       // REST: the next piece. Pieces are numbered through all first ones, all second ones …  PARTS: this one

    CAUSEWAY_DEVICE Walk(const Arguments<T>& a, u32 rank) {
        tile = (i32)(blockIdx.x / T::cluster);
        ahead = (u32)tile;
        begin = 0, end = a.shares.steps;
        if constexpr (T::split) {
            i32 part = (i32)rank, parts = T::cluster;
            if constexpr (S::PARTS) {
                ahead = (u32)(tile / a.shares.whole), tile %= a.shares.whole;
                part += (i32)ahead * T::cluster, parts *= (i32)a.shares.pieces;
            }
            begin = part * a.shares.steps / parts, end = (part + 1) * a.shares.steps / parts;
        }
        settle(a);
    }

    CAUSEWAY_DEVICE bool any(const Arguments<T>& a) const {
        if constexpr (S::REST) return begin < end;
        else return tile < a.shares.whole;
    }

    CAUSEWAY_DEVICE void next(const Arguments<T>& a) {
        tile += (i32)(gridDim.x / T::cluster);
        settle(a);
    }

    // This block sums a piece of the tile.
    CAUSEWAY_DEVICE bool in_pieces(const Arguments<T>& a) const { return S::REST && end - begin < a.shares.steps; }

private:
    CAUSEWAY_DEVICE void settle(const Arguments<T>& a) {
        if constexpr (S::REST) {
            if (tile < a.shares.whole) return;
            const u32 rest = (u32)(a.shares.row_tiles * a.shares.column_tiles - a.shares.whole), piece = ahead / rest;
            tile = a.shares.whole + (i32)(ahead % rest);
            begin = piece == 0 ? 0 : a.shares.head + (i32)(piece - 1) * a.shares.part;
            end = piece == 0 ? a.shares.head : piece < a.shares.pieces ? begin + a.shares.part : begin;
            // First pieces have clusters of their own.
            ahead = piece == 0 ? a.shares.pieces * rest : ahead + gridDim.x / T::cluster - rest;
        }
    }
};

}  // namespace gemm
}  // namespace causeway
