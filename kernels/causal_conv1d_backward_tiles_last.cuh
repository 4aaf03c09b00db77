// Causal conv1d backward where neighbouring channels are neighbours in memory, for plain calls that are large.
//
//              dim →
//   t   ┌────────────────┬────────────────┬──
//   ↓   │ wave 0, rows 0…7                │       a tile: `rows` rows of one entry for each of `waves` waves, and the channels of a wave,
//       │ wave 1, rows 8…15               │       of which a lane has 8 bytes. A block owns the channels of its tiles. The next
//       ├────────────────┼────────────────┼──     tile begins width-1 rows before the end of this one
//       │ next tile      │                │
//
// All blocks of the device work side by side: they have neighbouring tiles, and then the tiles behind those. Memory serves blocks that
// read one region of it faster than blocks that read far apart. So a block that gets ahead of the others waits (Pace).
//
// Tiles of x and dy come to shared memory by asynchronous copies of 16 bytes, `stages` - 1 tiles ahead, of which a thread starts a
// few with each pair of rows that it computes. A wave computes pre and g of its rows once, adds g to dweight and dbias, and to the
// unfinished sums of dx. Its first width-1 rows also contribute to the last width-1 rows of dx of the wave above: such shares are
// left in shared memory, and the wave above adds them behind the next barrier. The last width-1 rows of a tile are computed again,
// as the first ones of the next tile, which alone counts and stores them.
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
    static_assert(!PACKED<Problem> && !Problem::seq_idx && !Problem::B && !Problem::C && !Problem::norm, "plain calls alone");
    static_assert(HAS_ASYNC_COPY, "tiles come by asynchronous copies");

    // A lane's packet of a row, and a line of them: the channels of a block. Rows of x in a stage, and of dy; the rows that a tile stores.
    static constexpr int BYTES = 8, CHANNELS = ELEMENTS<X, BYTES>, LINE = BYTES * (int)WAVE_SIZE, BLOCK_CHANNELS = CHANNELS * (int)WAVE_SIZE;
    static constexpr int DY_ROWS = WAVES * ROWS, X_ROWS = DY_ROWS + HALO, TILE_ROWS = DY_ROWS - HALO;
    // Copies: COPIERS threads copy a row, the block AT_ONCE rows at a time, in so many rounds for a stage.
    static constexpr int COPY = 16, COPIERS = LINE / COPY, AT_ONCE = THREADS / COPIERS;
    static constexpr int TOGETHER = ROWS % 2 == 0 ? 2 : 1;  // rows that are computed together
    static constexpr int X_COPIES = (X_ROWS + AT_ONCE - 1) / AT_ONCE, DY_COPIES = (DY_ROWS + AT_ONCE - 1) / AT_ONCE;
    // Shared memory: stages, in whose place the sums of each wave and a flag lie after the last tile; shares of two tiles.
    static constexpr int SUMS = Problem::dbias ? WIDTH + 1 : WIDTH, BLOCK_SUMS = BLOCK_CHANNELS * SUMS;
    static constexpr u32 STAGE_BYTES = (X_ROWS + DY_ROWS) * LINE, DY_AT = X_ROWS * LINE, SHARES_AT = STAGES * STAGE_BYTES;
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
        dx_at = (char*)a.dx.data + channel * (i64)sizeof(X) + (i64)(wave * ROWS) * a.dx_pitch;
        begin_copies(first_channel);
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            enter_copies(part + s * a.parts, tiles, s);
#pragma unroll
            for (int i = 0; i < X_COPIES + DY_COPIES; ++i) copy<false>(i);
            async_commit();
        }
        load_weights(channel);
        Pace<1> pace(step_counter(), a.sum_blocks, steps);
        u32 stage = 0;
        char* dx_before = nullptr;  // of the tile before
        i32 left_before = 0;
        for (u32 n = 0, tile = part; n < steps; ++n, tile += a.parts) {
            pace.begin(n);
            async_wait<STAGES - 2>();
            block_barrier();  // everybody sees the stage, has left the one before it, and has written its shares
            if (n > 0) finish(n - 1, dx_before, left_before);
            enter_copies(tile + (STAGES - 1) * a.parts, tiles, stage == 0 ? STAGES - 1 : stage - 1);
            const u32 entry = quotient(tile, a.pieces_divisor);
            const i32 first = (i32)(tile - entry * a.pieces) * TILE_ROWS;
            const i32 left = tile < tiles ? seqlen - first - wave * ROWS : 0;  // rows from the wave's first on
            char* const dx = dx_at + ((i64)entry * a.dx.entry * (i64)sizeof(X) + (i64)first * a.dx_pitch);
            if (copies_whole && tile < tiles && first + DY_ROWS <= seqlen) {
                compute<true>(stage, n, dx, left);
            } else {
                compute<false>(stage, n, dx, left);
            }
            async_commit();
            dx_before = dx;
            left_before = left;
            stage = stage == STAGES - 1 ? 0 : stage + 1;
        }
        async_wait<0>();
        block_barrier();
        finish(steps - 1, dx_before, left_before);
        reduce(group, part, first_channel);
    }

private:
    // ---- copies ----------------------------------------------------------------------------------------------------

    CAUSEWAY_DEVICE void begin_copies(i64 first_channel) {
        const i32 thread = (i32)thread_index(), column = thread % COPIERS;
        row_of_thread = thread / COPIERS;
        // Threads behind the last channel copy the row's first ones, which nobody reads. Many copies of one packet would take far longer.
        const i64 own = first_channel * (i64)sizeof(X) + column * COPY, row = a.dim * (i64)sizeof(X);
        const i64 bytes = own < row ? own : minimum<i64>(own - row, row - COPY);
        x_at = opaque((const char*)a.x.data + bytes + (i64)(row_of_thread - HALO) * a.x_pitch);
        dy_at = opaque((const char*)a.dy.data + bytes + (i64)row_of_thread * a.dy_pitch);
        x_step = (i64)AT_ONCE * a.x_pitch;
        dy_step = (i64)AT_ONCE * a.dy_pitch;
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
        x_next = x_at + ((i64)entry * a.x.entry * (i64)sizeof(X) + (i64)first * a.x_pitch);
        dy_next = dy_at + ((i64)entry * a.dy.entry * (i64)sizeof(X) + (i64)first * a.dy_pitch);
        copy_to = copy_at + stage * STAGE_BYTES;
    }

    // Starts copy number i of a stage: those of x and dy in turns. Whole: all rows of the tile exist.
    template <bool Whole> CAUSEWAY_DEVICE void copy(int i) {
        const bool is_dy = i < 2 * DY_COPIES && i % 2 == 1;
        const int k = i < 2 * DY_COPIES ? i / 2 : i - DY_COPIES;
        const int rows = is_dy ? DY_ROWS : X_ROWS;
        const i32 row = copied_row + k * AT_ONCE - (is_dy ? 0 : HALO);
        const bool exists = Whole || (u32)row < (u32)seqlen;
        if ((k + 1) * AT_ONCE <= rows || row_of_thread + k * AT_ONCE < rows) {
            const char* const from = is_dy ? dy_next : x_next;
            async_copy<COPY>(copy_to + k * AT_ONCE * LINE + (is_dy ? DY_AT : 0), exists ? from : (const char*)a.x.data, exists);
        }
        if (is_dy) {
            dy_next += dy_step;
        } else {
            x_next += x_step;
        }
    }

    // ---- a tile ----------------------------------------------------------------------------------------------------

    // Whole: all rows of this tile exist, and of the tile that is copied meanwhile.
    template <bool Whole> CAUSEWAY_DEVICE void compute(u32 stage, u32 n, char* dx, i32 left) {
        const u32 at = stage * STAGE_BYTES + (u32)(wave * ROWS * LINE) + lane_index() * BYTES;
        const u32 share_at = shares_of(n, wave);
        float before[WIDTH][CHANNELS];  // the rows of x before those that are computed
#pragma unroll
        for (int i = 0; i < HALO; ++i) unpack<X>(load_shared<BYTES>(at, i * LINE), before[i]);
#pragma unroll
        for (int k = 0; k <= HALO; ++k) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) unfinished[k][c] = 0.0f;
        }
        char* row = dx;
#pragma unroll
        for (int first = 0; first < ROWS; first += TOGETHER) {
            // A few copies at a time: memory takes them worse in a burst.
            constexpr int COPIES = X_COPIES + DY_COPIES;
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
                    unpack<X>(load_shared<BYTES>(at, (first + i) * LINE), x[i]);
                }
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) unpack<X>(load_shared<BYTES>(at, (int)DY_AT + (first + i) * LINE), g[i]);
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    float pre = bias[c];
#pragma unroll
                    for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j][c], x[i + HALO - j][c], pre);
                    g[i][c] = activation_gradient<Problem::silu>(pre, g[i][c]);
                    // Rows past the end have no g. A 0 that is computed would be a NaN where pre overflows, or where a tap reads an infinity.
                    if (!Whole && first + i >= left) g[i][c] = 0.0f;
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
                if ((first + i < ROWS - HALO || wave != WAVES - 1) && (Whole || first + i < left)) {
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
                    store_if<BYTES>(stores && (Whole || first + i - HALO < left), row, pack<X, BYTES>(finished));
                    row += a.dx_pitch;
                }
            }
#pragma unroll
            for (int i = 0; i < HALO; ++i) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) before[i][c] = x[TOGETHER + i][c];
            }
        }
    }

    // Stores the last rows of a wave: what it has of their sums, and the shares of the wave below.
    CAUSEWAY_DEVICE void finish(u32 n, char* dx, i32 left) const {
        if (wave == WAVES - 1) return;
        const u32 share_at = shares_of(n, wave + 1);
#pragma unroll
        for (int i = 0; i < HALO; ++i) {
            const Packet<CHANNELS * 4> share = load_shared<CHANNELS * 4>(share_at + i * SHARE);
            float finished[CHANNELS];
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) finished[c] = unfinished[HALO - 1 - i][c] + as_float(share.word[c]);
            const int row = ROWS - HALO + i;
            store_if<BYTES>(stores && row < left, dx + (i64)row * a.dx_pitch, pack<X, BYTES>(finished));
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

    // Behind the counters of sum_over_blocks.
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
    char* dx_at;  // the wave's first row of a tile at row 0 of entry 0
    // Copies: where the thread's first row of a tile is at row 0 of entry 0, and in a stage; where the next copies are from and to.
    const char *x_at, *dy_at, *x_next, *dy_next;
    i64 x_step, dy_step;
    i32 row_of_thread, copied_row;
    u32 copy_at, copy_to;
    bool copies_whole;
    float weight[WIDTH][CHANNELS], bias[CHANNELS];
    float unfinished[WIDTH][CHANNELS];  // sums of dx[t-k]
    float sums[WIDTH + 1][CHANNELS];    // dweight of tap j, then dbias
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_tiles_last(const BackwardArguments& a, u32 block = block_index<0>()) {
    TilesLastBackward<Problem, Tile>(a).run(block);
}

}  // namespace causal_conv1d
}  // namespace causeway
