// Causal conv1d backward where neighbouring channels are neighbours in memory, for large calls without states and boundaries.
//
//              dim →
//   t   ┌────────────────┬────────────────┬──
//   ↓   │ wave 0, rows 0…7                │       a tile: `rows` rows of one entry for each of `waves` waves, and the channels of a wave,
//       │ wave 1, rows 8…15               │       of which a lane has 8 bytes. A block owns the channels of its tiles. The next
//       ├────────────────┼────────────────┼──     tile begins width-1 rows before the end of this one
//       │ next tile      │                │
//
// All blocks of the device work side by side: they have neighbouring tiles, and then the tiles after those. Memory serves blocks that
// read one region of it faster than blocks that read far apart. So a block that gets ahead of the others waits (Pace).
//
// Tiles of x and dy come to shared memory by asynchronous copies of 16 bytes, `stages` - 1 tiles ahead, of which a thread starts a
// few with each pair of rows that it computes. A wave computes pre and g of its rows once, adds g to dweight and dbias, and to the
// unfinished sums of dx. Its first width-1 rows also contribute to the last width-1 rows of dx of the wave above: these halo
// contributions are left in shared memory, and the wave above adds them after the next barrier. The last width-1 rows of a tile are
// computed again, as the first ones of the next tile, which alone counts and stores them.
//
// Gates are copied with x and dy. Taps are products of the tiles of x and B, and both are read a second time when a row of dx and dB is
// finished.
//
// Tiles whose rows all exist are computed without masks.
//
// Cost per element: x, dy and dx once; from the L2 cache, 2 · (width-1) / (rows of a tile) of x once more, and half as much of dy.
// Instructions, width 4, SiLU, 16 bit: 24.5 as in causal_conv1d_backward_channel_last.cuh, and 11 for copies, addresses, shares and
// the rows that are computed twice.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

//   struct Tile {
//       static constexpr int waves;          of a block
//       static constexpr int rows;           of a wave, `width` - 1 at least
//       static constexpr int stages;         tiles in shared memory
//       static constexpr int weight_bytes;   see load_parameters
//   };
template <class Problem, class Tile> class TilesLastBackward {
    using X = typename Problem::X;
    static constexpr int WAVES = Tile::waves, ROWS = Tile::rows, STAGES = Tile::stages;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1;
    static constexpr int THREADS = WAVES * (int)WAVE_SIZE;
    static_assert(ROWS >= HALO, "shares are for the wave above alone");
    static_assert(!PACKED<Problem> && !Problem::seq_idx && !Problem::norm, "neither boundaries nor norms");
    static_assert(HAS_ASYNC_COPY, "tiles come by asynchronous copies");

    // A lane's packet of a row, and a line of them: the channels of a block. Rows of x in a stage, and of dy; the rows that a tile stores.
    static constexpr int BYTES = 8, CHANNELS = ELEMENTS<X, BYTES>, LINE = BYTES * (int)WAVE_SIZE, BLOCK_CHANNELS = CHANNELS * (int)WAVE_SIZE;
    static constexpr int DY_ROWS = WAVES * ROWS, X_ROWS = DY_ROWS + HALO, TILE_ROWS = DY_ROWS - HALO;
    // Copies: COPIERS threads copy a row, the block AT_ONCE rows at a time, in so many rounds for a stage.
    static constexpr int COPY = 16, COPIERS = LINE / COPY, AT_ONCE = THREADS / COPIERS;
    static constexpr int TOGETHER = ROWS % 2 == 0 ? 2 : 1;  // rows that are computed together
    static constexpr int X_COPIES = (X_ROWS + AT_ONCE - 1) / AT_ONCE, DY_COPIES = (DY_ROWS + AT_ONCE - 1) / AT_ONCE;
    // Tensors that are copied: x, dy, and then the gates. Those of which taps are made, x and B, begin width-1 rows before the tile.
    static constexpr int B_TENSOR = 2, C_TENSOR = Problem::B ? 3 : 2, TENSORS = 2 + Problem::B + Problem::C, OF_TAPS = 1 + Problem::B;
    static constexpr int COPIES = OF_TAPS * X_COPIES + (TENSORS - OF_TAPS) * DY_COPIES;
    // Shared memory: stages, in whose place the sums of each wave and a flag lie after the last tile; shares of two tiles.
    static constexpr int SUMS = SUMS_OF<Problem>, BLOCK_SUMS = BLOCK_CHANNELS * SUMS;
    static constexpr u32 DY_AT = X_ROWS * LINE, B_AT = DY_AT + DY_ROWS * LINE, C_AT = B_AT + (Problem::B ? X_ROWS * LINE : 0);
    static constexpr u32 STAGE_BYTES = C_AT + (Problem::C ? DY_ROWS * LINE : 0), SHARES_AT = STAGES * STAGE_BYTES;
    static constexpr u32 SHARE = BLOCK_CHANNELS * 4, FLAG_AT = WAVES * BLOCK_SUMS * 4;
    static_assert(FLAG_AT + 4 <= SHARES_AT, "sums lie in the place of stages");

public:
    CAUSEWAY_DEVICE explicit TilesLastBackward(const BackwardArguments& a) : a(a), seqlen((i32)a.seqlen) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        const u32 part = quotient(block, a.groups_divisor), group = block - part * a.channel_groups;
        const u32 tiles = (u32)a.batch * a.pieces, steps = quotient(tiles + a.parts - 1, a.parts_divisor);
        const i64 first_channel = (i64)group * BLOCK_CHANNELS;
        wave = (i32)(thread_index() / WAVE_SIZE);
        const i64 channel = first_channel + (i64)lane_index() * CHANNELS;
        stores = channel < a.dim;
        to = places(channel * (i64)sizeof(X), wave * ROWS);
        begin_copies(first_channel);
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            enter_copies(part + s * a.parts, tiles, s);
#pragma unroll
            for (int i = 0; i < COPIES; ++i) copy<false>(i);
            async_commit();
        }
        load_weights(channel);
        Pace<1> pace(step_counter(), a.sum_blocks, steps);
        u32 stage = 0;
        Places before{};  // of the tile before
        i32 left_before = 0;
        for (u32 n = 0, tile = part; n < steps; ++n, tile += a.parts) {
            pace.begin(n);
            async_wait<STAGES - 2>();
            block_barrier();  // everybody sees the stage, has left the one before it, and has written its shares
            if (n > 0) finish(n - 1, before, left_before);
            enter_copies(tile + (STAGES - 1) * a.parts, tiles, stage == 0 ? STAGES - 1 : stage - 1);
            const u32 entry = quotient(tile, a.pieces_divisor);
            const i32 first = (i32)(tile - entry * a.pieces) * TILE_ROWS;
            const i32 left = tile < tiles ? seqlen - first - wave * ROWS : 0;  // rows from the wave's first on
            const Places rows = places_of_tile(entry, first);
            if (copies_whole && tile < tiles && first + DY_ROWS <= seqlen) {
                compute<true>(stage, n, rows, left);
            } else {
                compute<false>(stage, n, rows, left);
            }
            async_commit();
            before = rows;
            left_before = left;
            stage = stage == STAGES - 1 ? 0 : stage + 1;
        }
        async_wait<0>();
        block_barrier();
        finish(steps - 1, before, left_before);
        reduce(group, part, first_channel);
    }

private:
    // ---- copies ----------------------------------------------------------------------------------------------------

    // A thread's copies of a tensor: where its first row of a tile is at row 0 of entry 0, where the next copy is from, and how far the one
    // after it is.
    struct Copies {
        const char *first, *next;
        i64 step;

        CAUSEWAY_DEVICE void begin(const Memory& memory, i64 bytes, i32 row, i32 pitch) {
            first = opaque((const char*)memory.data + bytes + (i64)row * pitch);
            step = (i64)AT_ONCE * pitch;
        }
        CAUSEWAY_DEVICE void enter(const Memory& memory, u32 entry, i32 row, i32 pitch) {
            next = first + ((i64)entry * memory.entry * (i64)sizeof(X) + (i64)row * pitch);
        }
    };

    CAUSEWAY_DEVICE void begin_copies(i64 first_channel) {
        const i32 thread = (i32)thread_index(), column = thread % COPIERS;
        row_of_thread = thread / COPIERS;
        // Threads past the last channel copy the row's first ones, which nobody reads. Many copies of one packet would take far longer.
        const i64 own = first_channel * (i64)sizeof(X) + column * COPY, row = a.dim * (i64)sizeof(X);
        const i64 bytes = own < row ? own : minimum<i64>(own - row, row - COPY);
        x_copies.begin(a.x, bytes, row_of_thread - HALO, a.x_pitch);
        dy_copies.begin(a.dy, bytes, row_of_thread, a.dy_pitch);
        if constexpr (Problem::B) b_copies.begin(a.b, bytes, row_of_thread - HALO, a.b_pitch);
        if constexpr (Problem::C) c_copies.begin(a.c, bytes, row_of_thread, a.c_pitch);
        copy_at = thread * COPY;
    }

    // Sets what copy() copies next, and to which stage; from tile number `tiles` on, zeros.
    CAUSEWAY_DEVICE void enter_copies(u32 tile, u32 tiles, u32 stage) {
        const bool there = tile < tiles;
        if (!there) tile = 0;
        const u32 entry = quotient(tile, a.pieces_divisor);
        const i32 first = (i32)(tile - entry * a.pieces) * TILE_ROWS;
        copies_whole = there && first >= HALO && first + DY_ROWS <= seqlen;
        copied_row = there ? first + row_of_thread : seqlen + HALO;
        x_copies.enter(a.x, entry, first, a.x_pitch);
        dy_copies.enter(a.dy, entry, first, a.dy_pitch);
        if constexpr (Problem::B) b_copies.enter(a.b, entry, first, a.b_pitch);
        if constexpr (Problem::C) c_copies.enter(a.c, entry, first, a.c_pitch);
        copy_to = copy_at + stage * STAGE_BYTES;
    }

    // Starts copy number i of a stage: those of all tensors in turns. Whole: all rows of the tile exist.
    template <bool Whole> CAUSEWAY_DEVICE void copy(int i) {
        const bool in_turns = i < TENSORS * DY_COPIES;
        const int more = i - TENSORS * DY_COPIES;
        const int tensor = in_turns ? i % TENSORS : more % OF_TAPS * B_TENSOR;
        const int k = in_turns ? i / TENSORS : DY_COPIES + more / OF_TAPS;
        // Not an array of copies: the compiler would keep it in memory.
        if (tensor == 0) {
            copy_rows<Whole, X_ROWS, HALO>(x_copies, k, 0);
        } else if (tensor == 1) {
            copy_rows<Whole, DY_ROWS, 0>(dy_copies, k, DY_AT);
        } else if (Problem::B && tensor == B_TENSOR) {
            copy_rows<Whole, X_ROWS, HALO>(b_copies, k, B_AT);
        } else {
            copy_rows<Whole, DY_ROWS, 0>(c_copies, k, C_AT);
        }
    }

    // Rows of one tensor that the block copies at once, a packet for each thread.
    template <bool Whole, int Rows, int Before> CAUSEWAY_DEVICE void copy_rows(Copies& copies, int k, u32 place) {
        const bool exists = Whole || (u32)(copied_row + k * AT_ONCE - Before) < (u32)seqlen;
        if ((k + 1) * AT_ONCE <= Rows || row_of_thread + k * AT_ONCE < Rows) {
            async_copy<COPY>(copy_to + k * AT_ONCE * LINE + place, exists ? copies.next : (const char*)a.x.data, exists);
        }
        copies.next += copies.step;
    }

    // ---- where results go ------------------------------------------------------------------------------------------

    struct Places {
        char *dx, *db, *dc;
    };

    CAUSEWAY_DEVICE Places places(i64 bytes, i32 row) const {
        Places places{};
        places.dx = (char*)a.dx.data + bytes + (i64)row * a.dx_pitch;
        if constexpr (Problem::dB) places.db = (char*)a.db.data + bytes + (i64)row * a.db_pitch;
        if constexpr (Problem::dC) places.dc = (char*)a.dc.data + bytes + (i64)row * a.dc_pitch;
        return places;
    }

    // The wave's first row of a tile whose first row is `first`.
    CAUSEWAY_DEVICE Places places_of_tile(u32 entry, i32 first) const {
        const auto from = [&](char* start, i64 stride, i32 pitch) { return start + ((i64)entry * stride * (i64)sizeof(X) + (i64)first * pitch); };
        Places places{};
        places.dx = from(to.dx, a.dx.entry, a.dx_pitch);
        if constexpr (Problem::dB) places.db = from(to.db, a.db.entry, a.db_pitch);
        if constexpr (Problem::dC) places.dc = from(to.dc, a.dc.entry, a.dc_pitch);
        return places;
    }

    // Stores a finished row of dx; with a gate, of dx and dB, from the gradient of the product and what it was made of.
    CAUSEWAY_DEVICE void store_finished(bool wanted, char* dx, char* db, const float (&finished)[CHANNELS], const Packet<BYTES> (&factors)[2]) const {
        if constexpr (!Problem::B) {
            store_if<BYTES>(wanted, dx, pack<X, BYTES>(finished));
        } else {
            float dx_row[CHANNELS], db_row[CHANNELS];
            gradients_of_factors<Problem>(finished, factors[0], factors[1], dx_row, db_row);
            store_if<BYTES>(wanted, dx, pack<X, BYTES>(dx_row));
            if constexpr (Problem::dB) store_if<BYTES>(wanted, db, pack<X, BYTES>(db_row));
        }
    }

    // ---- a tile ----------------------------------------------------------------------------------------------------

    // Whole: all rows of this tile exist, and of the tile that is copied meanwhile.
    template <bool Whole> CAUSEWAY_DEVICE void compute(u32 stage, u32 n, const Places& places, i32 left) {
        const u32 at = stage * STAGE_BYTES + (u32)(wave * ROWS * LINE) + lane_index() * BYTES;
        const u32 share_at = shares_of(n, wave);
        float before[WIDTH][CHANNELS];  // the rows of x before those that are computed
#pragma unroll
        for (int i = 0; i < HALO; ++i) read_taps(at, i, before[i]);
#pragma unroll
        for (int k = 0; k <= HALO; ++k) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) unfinished[k][c] = 0.0f;
        }
        char *row = places.dx, *db_row = places.db, *dc_row = places.dc;
#pragma unroll
        for (int first = 0; first < ROWS; first += TOGETHER) {
            // A few copies at a time: memory takes them worse in a burst.
#pragma unroll
            for (int k = first * COPIES / ROWS; k < (first + TOGETHER) * COPIES / ROWS; ++k) copy<Whole>(k);
            // Rows whose special functions are under way at the same time.
            float x[TOGETHER + HALO][CHANNELS], g[TOGETHER][CHANNELS];
#pragma unroll
            for (int i = 0; i < TOGETHER + HALO; ++i) {
                if (i < HALO) {
#pragma unroll
                    for (int c = 0; c < CHANNELS; ++c) x[i][c] = before[i][c];
                } else {
                    read_taps(at, first + i, x[i]);
                }
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) unpack<X>(load_shared<BYTES>(at, (int)DY_AT + (first + i) * LINE), g[i]);
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                float gate[CHANNELS], dc[CHANNELS];
                if constexpr (Problem::C) unpack<X>(load_shared<BYTES>(at, (int)C_AT + (first + i) * LINE), gate);
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    float pre = bias[c], forward_pre = bias[c];
#pragma unroll
                    for (int j = 0; j < WIDTH; ++j) {
                        pre = multiply_add(weight[j][c], x[i + HALO - j][c], pre);
                        if constexpr (Problem::dC) forward_pre = multiply_add(weight[HALO - j][c], x[i + j][c], forward_pre);
                    }
                    if constexpr (Problem::C) {
                        g[i][c] = gated_gradient<Problem>(pre, forward_pre, g[i][c], gate[c], dc[c]);
                    } else {
                        g[i][c] = activation_gradient<Problem::silu>(pre, g[i][c]);
                    }
                    // Rows past the end have no g. A 0 that is computed would be a NaN where pre overflows, or where a tap reads an infinity.
                    if (!Whole && first + i >= left) g[i][c] = 0.0f;
                }
                if constexpr (Problem::dC) {
                    store_if<BYTES>(stores && is_counted(first + i) && (Whole || first + i < left), dc_row, pack<X, BYTES>(dc));
                    dc_row += a.dc_pitch;
                }
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                float finished[CHANNELS];
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    finished[c] = multiply_add(weight[HALO][c], g[i][c], HALO > 0 ? unfinished[HALO - 1][c] : 0.0f);
#pragma unroll
                    for (int k = HALO - 1; k >= 0; --k) {
                        unfinished[k][c] = multiply_add(weight[k][c], g[i][c], k > 0 ? unfinished[k - 1][c] : 0.0f);
                    }
                }
                // The tile's last rows are counted by the next tile, and rows past the end by nobody: 0 times an infinite tap would be a NaN.
                if (is_counted(first + i) && (Whole || first + i < left)) {
#pragma unroll
                    for (int c = 0; c < CHANNELS; ++c) {
                        sums[WIDTH][c] += g[i][c];
#pragma unroll
                        for (int j = 0; j < WIDTH; ++j) sums[j][c] = multiply_add(g[i][c], x[i + HALO - j][c], sums[j][c]);
                    }
                }
                if (first + i < HALO) {
                    store_shared<CHANNELS * 4>(share_at + (first + i) * SHARE, pack<float, CHANNELS * 4>(finished));
                } else {
                    Packet<BYTES> factors[2];
                    if constexpr (Problem::B) read_factors(at, first + i, factors);
                    store_finished(stores && (Whole || first + i - HALO < left), row, db_row, finished, factors);
                    row += a.dx_pitch;
                    if constexpr (Problem::dB) db_row += a.db_pitch;
                }
            }
#pragma unroll
            for (int i = 0; i < HALO; ++i) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) before[i][c] = x[TOGETHER + i][c];
            }
        }
        // The wave's last rows are finished after the next barrier, when other waves may already be copying to this stage.
        if constexpr (Problem::B) {
#pragma unroll
            for (int i = 0; i < HALO; ++i) read_factors(at, ROWS + i, last_factors[i]);
        }
    }

    // Whether this tile counts a row of the wave: the tile's last rows are the next one's first.
    CAUSEWAY_DEVICE bool is_counted(int row) const { return row < ROWS - HALO || wave != WAVES - 1; }

    // What taps read of row i of those that a wave has of x.
    static CAUSEWAY_DEVICE void read_taps(u32 at, int i, float (&values)[CHANNELS]) {
        if constexpr (Problem::B) {
            unpack_product<Problem>(load_shared<BYTES>(at, i * LINE), load_shared<BYTES>(at, (int)B_AT + i * LINE), values);
        } else {
            unpack<X>(load_shared<BYTES>(at, i * LINE), values);
        }
    }

    // The same, as it was made of x and B.
    static CAUSEWAY_DEVICE void read_factors(u32 at, int i, Packet<BYTES> (&factors)[2]) {
        factors[0] = load_shared<BYTES>(at, i * LINE);
        factors[1] = load_shared<BYTES>(at, (int)B_AT + i * LINE);
    }

    // Stores the last rows of a wave: what it has of their sums, and the shares of the wave below.
    CAUSEWAY_DEVICE void finish(u32 n, const Places& places, i32 left) const {
        if (wave == WAVES - 1) return;
        const u32 share_at = shares_of(n, wave + 1);
#pragma unroll
        for (int i = 0; i < HALO; ++i) {
            const Packet<CHANNELS * 4> share = load_shared<CHANNELS * 4>(share_at + i * SHARE);
            float finished[CHANNELS];
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) finished[c] = unfinished[HALO - 1 - i][c] + as_float(share.word[c]);
            const int row = ROWS - HALO + i;
            char* const db = Problem::dB ? places.db + (i64)row * a.db_pitch : nullptr;
            store_finished(stores && row < left, places.dx + (i64)row * a.dx_pitch, db, finished, last_factors[i]);
        }
    }

    // What a wave leaves for the one above, of tile number n of the block.
    static CAUSEWAY_DEVICE u32 shares_of(u32 n, i32 wave) {
        return SHARES_AT + ((n % 2 * WAVES + (u32)wave) * HALO * BLOCK_CHANNELS + lane_index() * CHANNELS) * 4;
    }

    CAUSEWAY_DEVICE void load_weights(i64 channel) {
        float weights[CHANNELS][WIDTH] = {};
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) bias[c] = 0.0f;
        if (stores) {
            load_parameters<Problem, CHANNELS, Tile::weight_bytes>(a.weight, a.weight_strides, a.bias, a.bias_stride, channel, weights,
                                                                   bias);
        }
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                weight[j][c] = weights[c][WIDTH - 1 - j];
                sums[j][c] = 0.0f;
            }
            sums[WIDTH][c] = 0.0f;
        }
    }

    // ---- sums over the block's waves, then over blocks -------------------------------------------------------------

    // The step counter follows the counters of sum_over_blocks.
    CAUSEWAY_DEVICE u32* step_counter() const {
        const u32 teams = a.team == 0 ? 0 : (a.parts + a.team - 1) / a.team;
        return a.counters + a.channel_groups * (a.parts == 1 ? 0 : 1 + teams);
    }

    CAUSEWAY_DEVICE void reduce(u32 group, u32 part, i64 first_channel) {
        // Everybody has left the stages: a barrier was passed after the last tile.
        const u32 own = ((u32)wave * BLOCK_SUMS + lane_index() * CHANNELS) * 4;
#pragma unroll
        for (int j = 0; j < SUMS; ++j) store_shared<CHANNELS * 4>(own + j * SHARE, pack<float, CHANNELS * 4>(sums[j]));
        block_barrier();
        sum_over_blocks<THREADS, CHANNELS>(
            a, group, part, BLOCK_SUMS, FLAG_AT,
            [&](int i, float (&values)[CHANNELS]) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) values[c] = 0.0f;
#pragma unroll 4
                for (int w = 0; w < WAVES; ++w) {
                    const Packet<CHANNELS * 4> packet = load_shared<CHANNELS * 4>((w * BLOCK_SUMS + i) * 4);
#pragma unroll
                    for (int c = 0; c < CHANNELS; ++c) values[c] += as_float(packet.word[c]);
                }
            },
            [&](int i, const float (&values)[CHANNELS]) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    const i64 channel = first_channel + i % BLOCK_CHANNELS + c;
                    if (channel < a.dim) write_sum<Problem>(a, channel, i / BLOCK_CHANNELS, values[c]);
                }
            });
    }

    const BackwardArguments& a;
    const i32 seqlen;
    i32 wave;
    bool stores;  // the lane has channels
    Places to;    // the wave's first row of a tile at row 0 of entry 0
    Copies x_copies, dy_copies, b_copies, c_copies;
    i32 row_of_thread, copied_row;
    u32 copy_at, copy_to;  // where the thread's first row of a tile is in a stage, and in that of the next copies
    bool copies_whole;
    float weight[WIDTH][CHANNELS], bias[CHANNELS];
    float unfinished[WIDTH][CHANNELS];  // sums of dx[t-k]
    float sums[WIDTH + 1][CHANNELS];    // dweight of tap j, then dbias
    Packet<BYTES> last_factors[HALO + 1][2];  // x and B of the wave's last rows
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_tiles_last(const BackwardArguments& a, u32 block = block_index<0>()) {
    TilesLastBackward<Problem, Tile>(a).run(block);
}

}  // namespace causal_conv1d
}  // namespace causeway
