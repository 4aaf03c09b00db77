// Causal conv1d backward where neighbouring channels are neighbours in memory.
//
//             dim →
//   t   ┌──────────────┬──────────────┬──
//   ↓   │ thread 0     │ thread 1     │       a thread owns `channels` neighbouring channels (one packet) and walks
//       │  segment 0   │  segment 0   │       down a segment of rows; a block is `lanes` × segments threads
//       ├──────────────┼──────────────┼──
//       │ thread 32    │ thread 33    │
//
// At row t a thread has x[t-W+1 … t] and W unfinished sums of dx in registers. It computes pre and g once, adds g to
// dweight, dbias and to the W sums that g reaches, and stores the one that is finished, dx[t-W+1]. A segment starts by
// reading the W-1 rows of x before it. Its first W-1 rows also reach up to W-1 rows of dx above it: these shares are
// left in shared memory for the thread of the segment above, which adds them to its last sums when the block has
// finished. Only the block's last segment runs W-1 rows past its end.
//
// Rows come in chunks of Rows, a multiple of W, so that every register's place in the rolling windows is known at
// compile time. `stages` chunks are under way in a ring (shared memory filled by asynchronous copies, or registers);
// a thread reads back only what it fetched, so the walk has no barrier. Calls too small to fill the device have a kernel of
// their own (causal_conv1d_backward_short_last.cuh).
//
// A chunk whose rows and prefetches all lie inside the segment and whose window lies in one sequence takes the
// straight path, with no predicates; others take the careful one.
//
// Cost per element: bytes: x, dy and dx once, + (W-1)/segment more reads. Instructions, W = 4, SiLU, 16 bit: 24.5
// (pre 4, g 7, dweight and dbias 5, dx 4, conversion 2.5, memory 2), without SiLU 13.5.
#pragma once
#include "causal_conv1d_backward.cuh"
#include "causal_conv1d_backward_rings.cuh"

namespace causeway {
namespace causal_conv1d {

// Tile: threads of a block; lanes, those of them along dim, a power of two; channels of a packet; stages under way;
// weight_bytes as in load_parameters.
template <class Problem, class Tile> class ChannelLastBackward {
    using X = typename Problem::X;
    static constexpr int THREADS = Tile::threads, LANES = Tile::lanes, CHANNELS = Tile::channels;
    static constexpr int W = Problem::width, H = W - 1;
    static constexpr int ROWS = W < 3 ? 4 : W;
    static constexpr int BYTES = CHANNELS * (int)sizeof(X);
    static constexpr bool PLACES = PACKED<Problem> || Problem::seq_idx;
    using Ring = RowRing<BYTES, ROWS, Tile::stages, THREADS>;

    // Sums of the block's channels; segments whose sums a wave adds up; those sums in shared memory.
    static constexpr int BLOCK_CHANNELS = LANES * CHANNELS;
    static constexpr int COUNT = BLOCK_CHANNELS * (Problem::dbias ? W + 1 : W);
    static constexpr int SEGMENTS = THREADS / LANES;
    static constexpr int SHARERS = LANES < (int)WAVE_SIZE ? (int)WAVE_SIZE / LANES : 1;
    static constexpr int LINES = SEGMENTS / SHARERS;
    // Shared memory: the ring, and over it when it is done the sums and a flag; then the shares of rows above.
    static constexpr u32 FLAG_AT = LINES * COUNT * 4;
    // Behind them, of a segment in which a sequence ends: dfinal_states of that sequence.
    static constexpr bool HOLDS_STATES = PACKED<Problem> && H > 0 && Problem::dfinal_states;
    static constexpr u32 SHARES_AT = Ring::SHARED_BYTES > FLAG_AT + 16 ? Ring::SHARED_BYTES : FLAG_AT + 16;

    static constexpr u32 DFINAL_AT = SHARES_AT + (u32)H * CHANNELS * THREADS * 4;

public:
    CAUSEWAY_DEVICE explicit ChannelLastBackward(const BackwardArguments& a) : a(a) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        const u32 part = a.groups_divisor.quotient(block), group = block - part * a.channel_groups;
        const u32 thread = thread_index(), line = thread / LANES;
        const u32 segment = part * SEGMENTS + line;
        channel = ((i64)group * LANES + thread % LANES) * CHANNELS;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int j = 0; j <= W; ++j) sums[j][c] = 0.0f;
        }
        const bool active = channel < a.dim && segment < (u32)a.batch * a.pieces;
        if (active) {
            enter(segment, line);
            walk();
        }
        block_barrier();  // the ring is free, all shares are there
        if (active && !runs_over) finish_last_rows();
        reduce(group, part);
    }

private:
    CAUSEWAY_DEVICE void enter(u32 segment, u32 line) {
        row = (i32)a.pieces_divisor.quotient(segment);
        first = (i32)((segment - (u32)row * a.pieces) * a.piece);
        const i32 seqlen = (i32)a.seqlen;
        last = seqlen - first < (i32)a.piece ? seqlen : first + (i32)a.piece;
        shares_above = line > 0 && first > 0;
        runs_over = last == seqlen || line == SEGMENTS - 1;
        fetch_end = !runs_over ? last : seqlen - last < H ? seqlen : last + H;
        x = opaque((const char*)a.x.data + (row * a.x.row + channel) * (i64)sizeof(X));
        dy = opaque((const char*)a.dy.data + (row * a.dy.row + channel) * (i64)sizeof(X));
        dx = (char*)a.dx.data + (row * a.dx.row + channel) * (i64)sizeof(X);
    }

    CAUSEWAY_DEVICE void walk() {
        const i32 end = runs_over ? last + H : last;
        Packet<BYTES> before[H + 1];
#pragma unroll
        for (int j = 1; j <= H; ++j) {
            if (first - j >= 0) before[j] = load<BYTES>(x + (i64)(first - j) * a.x_pitch);
        }
        Ring ring;
#pragma unroll
        for (int s = 0; s < Ring::AHEAD; ++s) {
#pragma unroll
            for (int p = 0; p < ROWS; ++p) fetch(ring, p, first + s * ROWS + p, false);
            ring.fetched();
        }
        load_weights();
        if constexpr (PLACES) enter_places();
        if constexpr (HOLDS_STATES) hold_states();
#pragma unroll
        for (int j = 1; j <= H; ++j) {
            const i32 start = PACKED<Problem> ? sequence_now.start : 0;
            if (first - j >= start) {
                unpack<X>(before[j], history[(W - j) % W]);
            } else {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    history[(W - j) % W][c] =
                        initial(PACKED<Problem> ? sequence_now.sequence : row, c, H + first - j - start);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < W; ++i) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) unfinished[i][c] = 0.0f;
        }

        for (i32 t = first; t < end; t += ROWS) {
            if constexpr (PLACES) load_places(t);
            const bool inside = t > first && t + (Ring::AHEAD + 1) * ROWS <= fetch_end;
            if (inside && (!PLACES || one_sequence(t))) {
                chunk<true>(ring, t);
            } else {
                chunk<false>(ring, t);
            }
            if constexpr (PLACES) shift_places();
        }
        if constexpr (Ring::ASYNC) async_wait<0>();
    }

    CAUSEWAY_DEVICE void fetch(Ring& ring, int p, i32 t, bool inside) const {
        ring.fetch(p, x + (i64)t * a.x_pitch, dy + (i64)t * a.dy_pitch, inside || t < fetch_end);
    }

    CAUSEWAY_DEVICE void load_weights() {
        float taps[CHANNELS][W];
        load_parameters<Problem, CHANNELS, Tile::weight_bytes>(a.weight, {a.weight_channel, a.weight_tap}, a.bias,
                                                               a.bias_channel, channel, taps, bias);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            // Left alone, 16-bit weights stay packed and are unpacked again in every row.
            for (int j = 0; j < W; ++j) weight[j][c] = opaque(taps[c][W - 1 - j]);
        }
    }

    // Element k of a sequence's initial states; 0 where there are none.
    CAUSEWAY_DEVICE float initial(i64 sequence, int c, int k) const {
        if constexpr (!Problem::initial_states) return 0.0f;
        return read<X>(a.initial_states, sequence, channel + c, k);
    }

    // ROWS rows from t on. Inside: every row, store and prefetch lies in the segment, every tap in one sequence.
    template <bool Inside> CAUSEWAY_DEVICE void chunk(Ring& ring, i32 t) {
        // Copies to shared memory are issued together, before the chunk's reads: alternating with them costs extra
        // instructions, and each copy would hold back the reads after it.
        ring.template wait<Ring::AHEAD>();
        if constexpr (Ring::ASYNC) {
#pragma unroll
            for (int p = 0; p < ROWS; ++p) fetch(ring, p, t + Ring::AHEAD * ROWS + p, Inside);
            ring.fetched();
        }
#pragma unroll
        for (int p = 0; p < ROWS; ++p) {
            const Packet<BYTES> x_packet = ring.read(p, 0), dy_packet = ring.read(p, 1);
            if constexpr (!Ring::ASYNC) fetch(ring, p, t + ROWS + p, Inside);
            if (!Inside && t + p >= last + H) continue;
            float d[CHANNELS];
            unpack<X>(x_packet, history[p % W]);
            unpack<X>(dy_packet, d);
            if constexpr (Inside) {
                straight_row(p, d);
            } else {
                careful_row(t + p, p, d);
            }
            const i32 finished = t + p - H;
            if (Inside || (finished >= first && finished < last)) {
                store(dx + (i64)finished * a.dx_pitch, pack<X, BYTES>(unfinished[(p + 1) % W]));
            } else if (finished < first && shares_above) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) write_shared(share_at(thread_index(), p, c), unfinished[(p + 1) % W][c]);
            }
        }
        ring.was_read();
    }

    // Where a thread leaves its share of dx[first - H + i].
    static CAUSEWAY_DEVICE u32 share_at(u32 thread, int i, int c) {
        return SHARES_AT + ((u32)(i * CHANNELS + c) * THREADS + thread) * 4;
    }

    // The last H rows of a segment, with the shares from the segment below. Such a segment has whole chunks, so the
    // windows are back where they started.
    CAUSEWAY_DEVICE void finish_last_rows() const {
#pragma unroll
        for (int i = 0; i < H; ++i) {
            float sums_of_row[CHANNELS];
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                sums_of_row[c] = unfinished[i + 1][c] + read_shared(share_at(thread_index() + LANES, i, c));
            }
            store(dx + (i64)(last - H + i) * a.dx_pitch, pack<X, BYTES>(sums_of_row));
        }
    }

    CAUSEWAY_DEVICE void straight_row(int p, const float (&d)[CHANNELS]) {
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            float pre = bias[c];
            if constexpr (Problem::silu) {
#pragma unroll
                for (int j = 0; j < W; ++j) pre = multiply_add(weight[j][c], history[(p + W - j) % W][c], pre);
            }
            const float g = activation_gradient<Problem::silu>(pre, d[c]);
            if constexpr (Problem::dbias) sums[W][c] += g;
#pragma unroll
            for (int j = 0; j < W; ++j) {
                sums[j][c] = multiply_add(g, history[(p + W - j) % W][c], sums[j][c]);
                float& sum = unfinished[(p + W - j) % W][c];
                sum = j == 0 ? weight[0][c] * g : multiply_add(weight[j][c], g, sum);
            }
        }
    }

    CAUSEWAY_DEVICE void careful_row(i32 t, int p, const float (&d)[CHANNELS]) {
        Span<i32> sequence = {row, 0, (i32)a.seqlen};
        i32 index = 0;
        if constexpr (PACKED<Problem>) {
            if (t >= sequence_now.end) enter_sequence(t, p);
            sequence = sequence_now;
        }
        if constexpr (Problem::seq_idx) index = indices[H + p];
        const i32 reach = t - sequence.start;  // rows that this one can look back within its sequence
        const i32 left = sequence.end - t;
        float begun[CHANNELS];
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) begun[c] = 0.0f;
        if constexpr (Problem::dfinal_states) {
            if (t < last && left > 0 && left <= H && index >= 0) {
                if (HOLDS_STATES && sequence.sequence == held_sequence) {
                    unpack<X>(load_shared<BYTES>(held_at(H - left)), begun);
                } else {
#pragma unroll
                    for (int c = 0; c < CHANNELS; ++c) {
                        begun[c] = read<X>(a.dfinal_states, sequence.sequence, channel + c, H - left);
                    }
                }
            }
        }
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            float taps[W];
#pragma unroll
            for (int j = 0; j < W; ++j) {
                taps[j] = history[(p + W - j) % W][c];
                if constexpr (Problem::seq_idx) {
                    // What stands at padding is selected away: 0 · NaN would be NaN.
                    if (index < 0 || indices[H + p - j] != index) taps[j] = 0.0f;
                }
            }
            float pre = bias[c];
            if constexpr (Problem::silu) {
#pragma unroll
                for (int j = 0; j < W; ++j) pre = multiply_add(weight[j][c], taps[j], pre);
            }
            float g = activation_gradient<Problem::silu>(pre, d[c]);
            // Behind the row, pre may overflow, and a dy of 0 makes a NaN of that.
            if (index < 0 || (Problem::silu && t >= (i32)a.seqlen)) g = 0.0f;
            if (t < last) {
                if constexpr (Problem::dbias) sums[W][c] += g;
#pragma unroll
                for (int j = 0; j < W; ++j) sums[j][c] = multiply_add(g, taps[j], sums[j][c]);
            }
            unfinished[p % W][c] = multiply_add(weight[0][c], g, begun[c]);
#pragma unroll
            for (int j = 1; j < W; ++j) {
                bool reaches = true;
                if constexpr (PACKED<Problem>) reaches = j <= reach;
                if constexpr (Problem::seq_idx) reaches = reaches && indices[H + p - j] == index;
                float& sum = unfinished[(p + W - j) % W][c];
                if (reaches) sum = multiply_add(weight[j][c], g, sum);
            }
        }
    }

    // ---- places: which sequence a row is in, and the index it carries ----------------------------------------------

    CAUSEWAY_DEVICE i32 index_at(i32 t) const {
        // Rows before a sequence carry the index of its first row: initial_states do, and without them they are zero.
        const i32 start = PACKED<Problem> ? sequence_now.start : 0;
        return position_index<Problem>(a, row, maximum(t, start));
    }

    CAUSEWAY_DEVICE void enter_places() {
        if constexpr (PACKED<Problem>) {
            sequence_now = sequence_at<Problem, i32>(a, row, first);
        }
        if constexpr (Problem::seq_idx) {
#pragma unroll
            for (int j = 1; j <= H; ++j) indices[H - j] = index_at(first - j);
#pragma unroll
            for (int p = 0; p < ROWS; ++p) next_indices[p] = first + p < fetch_end ? index_at(first + p) : -1;
        }
    }

    // Indices of the chunk at t become current; those of the next chunk are fetched.
    CAUSEWAY_DEVICE void load_places(i32 t) {
        if constexpr (Problem::seq_idx) {
#pragma unroll
            for (int p = 0; p < ROWS; ++p) {
                indices[H + p] = next_indices[p];
                const i32 next = t + ROWS + p;
                next_indices[p] = next < fetch_end ? index_at(next) : -1;
            }
        }
    }

    CAUSEWAY_DEVICE void shift_places() {
        if constexpr (Problem::seq_idx) {
#pragma unroll
            for (int j = 0; j < H; ++j) indices[j] = indices[ROWS + j];
        }
    }

    // True when the chunk at t and the H rows before it carry one index and lie in one sequence, away from rows
    // that dfinal_states is added to.
    CAUSEWAY_DEVICE bool one_sequence(i32 t) const {
        bool same = true;
        if constexpr (Problem::seq_idx) {
            same = indices[0] >= 0;
#pragma unroll
            for (int i = 1; i < H + ROWS; ++i) same = same && indices[i] == indices[0];
        }
        if constexpr (PACKED<Problem>) {
            const i32 end = t + ROWS + (Problem::dfinal_states ? H : 0);
            same = same && t - H >= sequence_now.start && end <= sequence_now.end;
        }
        return same;
    }

    // A sequence begins at row t (or, where cu_seqlens does not ascend to seqlen, the last one goes on). What lies
    // before it is now its initial states, so that the window holds what the taps of its rows read.
    CAUSEWAY_DEVICE void enter_sequence(i32 t, int p) {
        boundaries<Problem, i32>(a).advance(sequence_now, t);
        if (t < sequence_now.end) {
            sequence_now.start = t;
        } else {
            sequence_now.end = (i32)a.seqlen;
        }
#pragma unroll
        for (int j = 1; j < W; ++j) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                history[(p + W - j) % W][c] = initial(sequence_now.sequence, c, H - j);
            }
            if constexpr (Problem::seq_idx) indices[H + p - j] = indices[H + p];
        }
    }

    // dfinal_states of the segment's first sequence, if that ends in the segment: a load for each row would wait for the copies
    // that are under way.
    CAUSEWAY_DEVICE void hold_states() {
        const bool ends = sequence_now.end - H < last;
        held_sequence = ends ? sequence_now.sequence : -1;
        if (!ends) return;
        float values[H + 1][CHANNELS];
#pragma unroll
        for (int k = 0; k < H; ++k) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) values[k][c] = read<X>(a.dfinal_states, held_sequence, channel + c, k);
        }
#pragma unroll
        for (int k = 0; k < H; ++k) store_shared<BYTES>(held_at(k), pack<X, BYTES>(values[k]));
    }

    static CAUSEWAY_DEVICE u32 held_at(i32 k) { return DFINAL_AT + ((u32)k * THREADS + thread_index()) * BYTES; }

    // ---- sums over the block's segments, then over blocks ----------------------------------------------------------

    CAUSEWAY_DEVICE void reduce(u32 group, u32 part) {
        // Lanes of a wave that share channels first add up: always the same pairs, so always the same sum.
#pragma unroll
        for (u32 mask = LANES; mask < WAVE_SIZE; mask <<= 1) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
                for (int j = 0; j <= W; ++j) {
                    if (j < W || Problem::dbias) sums[j][c] += shuffle_xor(sums[j][c], mask);
                }
            }
        }
        const u32 thread = thread_index(), line = thread / LANES;
        if (line % SHARERS == 0) {
            const u32 at = (line / SHARERS * COUNT + thread % LANES * CHANNELS) * 4;
#pragma unroll
            for (int j = 0; j <= W; ++j) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    if (j < W || Problem::dbias) write_shared(at + (j * BLOCK_CHANNELS + c) * 4, sums[j][c]);
                }
            }
        }
        block_barrier();
        const i64 first_channel = (i64)group * BLOCK_CHANNELS;
        // Several sums at a time; fewer where the walk gets by with few registers.
        constexpr int VECTOR = CHANNELS % 4 == 0 ? 4 : BLOCK_CHANNELS % 2 == 0 ? 2 : 1;
        sum_over_blocks<THREADS, VECTOR>(
            a.workspace, a.counters, group, part, a.parts, COUNT, FLAG_AT,
            [&](int i, float (&values)[VECTOR]) {
#pragma unroll
                for (int k = 0; k < VECTOR; ++k) values[k] = 0.0f;
#pragma unroll 4
                for (int line = 0; line < LINES; ++line) {
                    const Packet<VECTOR * 4> packet = load_shared<VECTOR * 4>((line * COUNT + i) * 4);
#pragma unroll
                    for (int k = 0; k < VECTOR; ++k) values[k] += as_float(packet.word[k]);
                }
            },
            [&](int i, const float (&values)[VECTOR]) {
#pragma unroll
                for (int k = 0; k < VECTOR; ++k) {
                    const i64 c = first_channel + i % BLOCK_CHANNELS + k;
                    if (c < a.dim) write_sum<Problem>(a, c, i / BLOCK_CHANNELS, values[k]);
                }
            });
    }

    const BackwardArguments& a;
    i64 channel;
    i32 row;
    i32 first, last, fetch_end;  // rows of the segment; end of those that are read
    bool shares_above, runs_over = true;
    const char *x, *dy;
    char* dx;
    float weight[W][CHANNELS], bias[CHANNELS];
    float history[W][CHANNELS];     // x[t-j] at (t-first-j) mod W
    float unfinished[W][CHANNELS];  // dx[t-j] likewise
    float sums[W + 1][CHANNELS];    // dweight by tap, dbias
    i32 indices[H + ROWS], next_indices[ROWS];
    Span<i32> sequence_now;
    i32 held_sequence;  // whose dfinal_states are in shared memory
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_channel_last(const BackwardArguments& a) {
    const u32 block = block_index<0>();
    if constexpr (Problem::dinitial_states) {
        if (block >= a.sum_blocks) return initial_states_gradient<Problem, Tile::threads>(a, block - a.sum_blocks);
    }
    ChannelLastBackward<Problem, Tile>(a).run(block);
}

}  // namespace causal_conv1d
}  // namespace causeway
