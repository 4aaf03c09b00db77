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
// reading the W-1 rows before it, and runs W-1 rows past its end to finish its last sums.
//
// Rows come in chunks of Rows, a multiple of W, so that every register's place in the rolling windows is known at
// compile time. `stages` chunks are under way in a ring (shared memory filled by asynchronous copies, or registers);
// a thread reads back only what it fetched, so the walk has no barrier.
//
// A chunk whose rows and prefetches all lie inside the segment and whose window lies in one sequence takes the
// straight path, with no predicates; others take the careful one.
//
// Cost per element: bytes: x, dy and dx once, + (W-1)/segment more reads. Instructions, W = 4, SiLU, 16 bit: 24.5
// (pre 4, g 7, dweight and dbias 5, dx 4, conversion 2.5, memory 2), without SiLU 13.5.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

// Packets of x and dy under way: Stages chunks of Rows rows. In shared memory, row r of thread i lies at
// ((2r + tensor) · Threads + i) · Bytes. In registers there is one stage.
template <int Bytes, int Rows, int WantedStages, int Threads> class RowRing {
public:
    static constexpr bool ASYNC = HAS_ASYNC_COPY && Bytes >= 4;
    static constexpr int STAGES = ASYNC ? WantedStages : 1;

    CAUSEWAY_DEVICE RowRing() : thread_offset_(thread_index() * Bytes) {}

    // Fetches row `row` of the current stage; reads as zero when not valid.
    CAUSEWAY_DEVICE void fetch(int row, const char* x, const char* dy, bool valid) {
        if constexpr (ASYNC) {
            async_copy<Bytes>(offset(row, 0), x, valid);
            async_copy<Bytes>(offset(row, 1), dy, valid);
        } else if (valid) {
            ahead_[row][0] = load<Bytes>(x);
            ahead_[row][1] = load<Bytes>(dy);
        } else {
            ahead_[row][0] = ahead_[row][1] = zero_packet<Bytes>();
        }
    }

    CAUSEWAY_DEVICE Packet<Bytes> read(int row, int tensor) const {
        if constexpr (ASYNC) {
            return load_shared<Bytes>(offset(row, tensor));
        } else {
            return ahead_[row][tensor];
        }
    }

    // Waits for the current stage.
    CAUSEWAY_DEVICE void wait() {
        if constexpr (ASYNC) async_wait<STAGES - 1>();
    }

    // Ends the current stage's fetches and makes the next stage current.
    CAUSEWAY_DEVICE void advance() {
        if constexpr (ASYNC) {
            async_commit();
            stage_offset_ = stage_offset_ + STAGE_BYTES == STAGES * STAGE_BYTES ? 0 : stage_offset_ + STAGE_BYTES;
        }
    }

private:
    static constexpr u32 STAGE_BYTES = (u32)Rows * 2 * Threads * Bytes;
    CAUSEWAY_DEVICE u32 offset(int row, int tensor) const {
        return thread_offset_ + stage_offset_ + (u32)(2 * row + tensor) * Threads * Bytes;
    }

    u32 thread_offset_, stage_offset_ = 0;
    Packet<Bytes> ahead_[ASYNC ? 1 : Rows][2];
};

// Tile: threads of a block; lanes, those of them along dim, a power of two; channels of a packet; stages under way.
template <class Problem, class Tile> class ChannelLastBackward {
    using X = typename Problem::X;
    static constexpr int THREADS = Tile::threads, LANES = Tile::lanes, CHANNELS = Tile::channels;
    static constexpr int W = Problem::width, H = W - 1;
    static constexpr int ROWS = W < 3 ? 4 : W;
    static constexpr int BYTES = CHANNELS * (int)sizeof(X);
    static constexpr bool PLACES = PACKED<Problem> || Problem::seq_idx;
    using Ring = RowRing<BYTES, ROWS, Tile::stages, THREADS>;

public:
    CAUSEWAY_DEVICE explicit ChannelLastBackward(const BackwardArguments& a) : a(a) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        const u32 part = block / a.channel_groups, group = block - part * a.channel_groups;
        const u32 thread = thread_index(), segment = part * (THREADS / LANES) + thread / LANES;
        channel = ((i64)group * LANES + thread % LANES) * CHANNELS;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int j = 0; j <= W; ++j) sums[j][c] = 0.0f;
        }
        const bool active = channel < a.dim && segment < (u32)a.batch * a.pieces;
        if (active) walk(segment);
        reduce(group, part);
    }

private:
    CAUSEWAY_DEVICE void walk(u32 segment) {
        row = segment / a.pieces;
        first = (i32)((segment - (u32)row * a.pieces) * a.piece);
        const i32 seqlen = (i32)a.seqlen;
        last = seqlen - first < (i32)a.piece ? seqlen : first + (i32)a.piece;
        fetch_end = seqlen - last < H ? seqlen : last + H;
        x = (const char*)a.x.data + (row * a.x.row + channel) * (i64)sizeof(X);
        dy = (const char*)a.dy.data + (row * a.dy.row + channel) * (i64)sizeof(X);
        dx = (char*)a.dx.data + (row * a.dx.row + channel) * (i64)sizeof(X);
        x_pitch = (i32)(a.x.position * (i64)sizeof(X));
        dy_pitch = (i32)(a.dy.position * (i64)sizeof(X));
        dx_pitch = (i32)(a.dx.position * (i64)sizeof(X));

        Packet<BYTES> before[H + 1];
#pragma unroll
        for (int j = 1; j <= H; ++j) {
            if (first - j >= 0) before[j] = load<BYTES>(x + (i64)(first - j) * x_pitch);
        }
        Ring ring;
#pragma unroll
        for (int s = 0; s < Ring::STAGES; ++s) {
#pragma unroll
            for (int p = 0; p < ROWS; ++p) fetch(ring, p, first + s * ROWS + p, false);
            ring.advance();
        }
        load_parameters();
#pragma unroll
        for (int j = 1; j <= H; ++j) {
            if (first - j >= 0) {
                unpack<X>(before[j], history[(W - j) % W]);
            } else {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) history[(W - j) % W][c] = initial(row, c, H + first - j);
            }
        }
#pragma unroll
        for (int i = 0; i < W; ++i) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) unfinished[i][c] = 0.0f;
        }
        if constexpr (PLACES) enter_places();

        for (i32 t = first; t < last + H; t += ROWS) {
            if constexpr (PLACES) load_places(t);
            const bool inside = t > first && t + (Ring::STAGES + 1) * ROWS <= fetch_end;
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
        ring.fetch(p, x + (i64)t * x_pitch, dy + (i64)t * dy_pitch, inside || t < fetch_end);
    }

    CAUSEWAY_DEVICE void load_parameters() {
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            bias[c] = read_bias<Problem>(a, channel + c);
#pragma unroll
            for (int j = 0; j < W; ++j) weight[j][c] = read_weight<Problem>(a, channel + c, j);
        }
    }

    // Element k of a sequence's initial states; 0 where there are none.
    CAUSEWAY_DEVICE float initial(i64 sequence, int c, int k) const {
        if constexpr (!Problem::initial_states) return 0.0f;
        return read<X>(a.initial_states, sequence, channel + c, k);
    }

    // ROWS rows from t on. Inside: every row, store and prefetch lies in the segment, every tap in one sequence.
    template <bool Inside> CAUSEWAY_DEVICE void chunk(Ring& ring, i32 t) {
        ring.wait();
#pragma unroll
        for (int p = 0; p < ROWS; ++p) {
            const Packet<BYTES> x_packet = ring.read(p, 0), dy_packet = ring.read(p, 1);
            fetch(ring, p, t + Ring::STAGES * ROWS + p, Inside);
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
                store(dx + (i64)finished * dx_pitch, pack<X, BYTES>(unfinished[(p + 1) % W]));
            }
        }
        ring.advance();
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
        Span<i32> sequence = {(i32)row, 0, (i32)a.seqlen};
        i32 index = 0, first_index = 0;
        if constexpr (PACKED<Problem>) sequence = advance_sequence(t);
        if constexpr (Problem::seq_idx) {
            index = indices[H + p];
            first_index = sequence_first_index;
        }
        const i32 reach = t - sequence.start;  // rows that this one can look back within its sequence
        const i32 left = sequence.end - t;
        const bool adds = t < last;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            float taps[W];
#pragma unroll
            for (int j = 0; j < W; ++j) {
                taps[j] = history[(p + W - j) % W][c];
                if constexpr (PACKED<Problem>) {
                    if (j > reach) taps[j] = index == first_index ? initial(sequence.sequence, c, H + reach - j) : 0.0f;
                }
                if constexpr (Problem::seq_idx) {
                    if ((!PACKED<Problem> || j <= reach) && indices[H + p - j] != index) taps[j] = 0.0f;
                }
            }
            float pre = bias[c];
            if constexpr (Problem::silu) {
#pragma unroll
                for (int j = 0; j < W; ++j) pre = multiply_add(weight[j][c], taps[j], pre);
            }
            float g = activation_gradient<Problem::silu>(pre, d[c]);
            if (index < 0) g = 0.0f;
            if (adds) {
                if constexpr (Problem::dbias) sums[W][c] += g;
#pragma unroll
                for (int j = 0; j < W; ++j) sums[j][c] = multiply_add(g, taps[j], sums[j][c]);
            }
            float begun = 0.0f;
            if constexpr (Problem::dfinal_states) {
                if (t < last && left > 0 && left <= H && index >= 0) {
                    begun = read<X>(a.dfinal_states, sequence.sequence, channel + c, H - left);
                }
            }
            unfinished[p % W][c] = multiply_add(weight[0][c], g, begun);
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
        // Rows before the first carry its index: initial_states do, and without them they are zero.
        return position_index<Problem>(a, row, t < 0 ? 0 : t);
    }

    CAUSEWAY_DEVICE void enter_places() {
        if constexpr (PACKED<Problem>) {
            sequence_now = sequence_at<Problem, i32>(a, (i32)row, first);
            if constexpr (Problem::seq_idx) sequence_first_index = index_at(sequence_now.start);
        } else if constexpr (Problem::seq_idx) {
            sequence_first_index = index_at(0);
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

    // The sequence of row t; rows come in ascending order.
    CAUSEWAY_DEVICE Span<i32> advance_sequence(i32 t) {
        const i32 before = sequence_now.sequence;
        boundaries<Problem, i32>(a).advance(sequence_now, t);
        if constexpr (Problem::seq_idx) {
            if (sequence_now.sequence != before) sequence_first_index = index_at(sequence_now.start);
        }
        return sequence_now;
    }

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
        constexpr int BLOCK_CHANNELS = LANES * CHANNELS;
        constexpr int COUNT = BLOCK_CHANNELS * (Problem::dbias ? W + 1 : W);
        constexpr int SHARERS = LANES < (int)WAVE_SIZE ? (int)WAVE_SIZE / LANES : 1;
        constexpr int LINES = THREADS / LANES / SHARERS;
        const u32 thread = thread_index(), line = thread / LANES;
        block_barrier();  // the ring is free now
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
        sum_over_blocks<THREADS>(
            a.workspace, a.counters, group, part, a.parts, COUNT, LINES * COUNT * 4,
            [&](int i) {
                float sum = read_shared(i * 4);
#pragma unroll 4
                for (int line = 1; line < LINES; ++line) sum += read_shared((line * COUNT + i) * 4);
                return sum;
            },
            [&](int i, float sum) {
                const i64 c = first_channel + i % BLOCK_CHANNELS;
                if (c < a.dim) write_sum<Problem>(a, c, i / BLOCK_CHANNELS, sum);
            });
    }

    const BackwardArguments& a;
    i64 channel, row;
    i32 first, last, fetch_end;  // rows of the segment; rows that may be read after it
    const char *x, *dy;
    char* dx;
    i32 x_pitch, dy_pitch, dx_pitch;  // bytes from row to row
    float weight[W][CHANNELS], bias[CHANNELS];
    float history[W][CHANNELS];     // x[t-j] at (t-first-j) mod W
    float unfinished[W][CHANNELS];  // dx[t-j] likewise
    float sums[W + 1][CHANNELS];    // dweight by tap, dbias
    i32 indices[H + ROWS], next_indices[ROWS], sequence_first_index;
    Span<i32> sequence_now;
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
