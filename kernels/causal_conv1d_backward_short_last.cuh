// Causal conv1d backward where neighbouring channels are neighbours in memory, for calls too small to fill the device.
//
//             dim →
//   t   ┌──────────────┬──────────────┬──
//   ↓   │ thread 0     │ thread 1     │       a thread owns `channels` neighbouring channels, one packet, of a segment of
//       │  segment 0   │  segment 0   │       `rows` rows; a block is `lanes` × segments threads
//       ├──────────────┼──────────────┼──
//       │ thread 4     │ thread 5     │
//
// Such a call is bound by latency: by the number of steps that wait for each other. So a thread loads all of its few rows, with a
// halo of x on both sides and of dy below, before it computes, and carries nothing from row to row. If there are more segments
// than threads, they are taken in several rounds.
//
// Sums: over the lanes of a wave that share channels, over the waves of a block, over the `parts` blocks of a channel
// group. Where blocks can form a cluster, each sends its sums to the shared memory of the block that adds them. That takes a
// microsecond less than the counter of reduction.cuh.
//
// Cost per element: x (1 + 2·(width-1)/rows) times and dy (1 + (width-1)/rows) times, mostly from the caches; dx once.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

//   struct Tile {
//       static constexpr int threads;        of a block
//       static constexpr int lanes;          threads along dim, a power of two up to a wave
//       static constexpr int channels;       of a packet
//       static constexpr int rows;           of a segment
//       static constexpr int cluster;        blocks of a cluster: `parts` of them, or 1
//       static constexpr int weight_bytes;   see load_parameters
//   };
template <class Problem, class Tile> class ShortLastBackward {
    using X = typename Problem::X;
    static constexpr int THREADS = Tile::threads, LANES = Tile::lanes, CHANNELS = Tile::channels, ROWS = Tile::rows;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1;
    static constexpr int BYTES = CHANNELS * (int)sizeof(X);
    static constexpr int SEGMENTS = THREADS / LANES, WAVES = THREADS / (int)WAVE_SIZE;
    static_assert(!PACKED<Problem> && !Problem::seq_idx, "short segments know no boundaries");
    static_assert(LANES <= (int)WAVE_SIZE, "lanes lie in one wave");

    static constexpr int BLOCK_CHANNELS = LANES * CHANNELS;
    static constexpr int BLOCK_SUMS = BLOCK_CHANNELS * SUMS_OF<Problem>;
    static constexpr int CLUSTER = Tile::cluster;
    using SentSums = ClusterSums<CLUSTER, THREADS, BLOCK_SUMS>;
    // Shared memory: what the blocks of the cluster send, or a flag; the sums of each wave.
    static constexpr u32 SENT_AT = 0, WAVES_AT = CLUSTER > 1 ? SentSums::BYTES : 16;

    struct Rows {
        i32 entry, first;
        Packet<BYTES> x[ROWS + 2 * HALO], dy[ROWS + HALO];
    };

public:
    CAUSEWAY_DEVICE explicit ShortLastBackward(const BackwardArguments& a) : a(a), seqlen((i32)a.seqlen) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        const u32 group = CLUSTER > 1 ? block / CLUSTER : quotient(block, a.parts_divisor);
        const u32 part = block - group * (CLUSTER > 1 ? CLUSTER : a.parts);
        if constexpr (CLUSTER > 1) SentSums(SENT_AT).open();
        channel = ((i64)group * LANES + thread_index() % LANES) * CHANNELS;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int j = 0; j <= WIDTH; ++j) sums[j][c] = 0.0f;
        }
        const u32 segments = (u32)a.batch * a.pieces;
        u32 segment = part * SEGMENTS + thread_index() / LANES;
        if (channel < a.dim && segment < segments) {
            Rows rows = load_rows(segment);
            load_weights();
#pragma unroll 1
            while (true) {
                compute(rows);
                segment += a.parts * SEGMENTS;
                if (segment >= segments) break;
                rows = load_rows(segment);
            }
        }
        reduce(group, part);
    }

private:
    CAUSEWAY_DEVICE Rows load_rows(u32 segment) const {
        Rows rows;
        rows.entry = (i32)quotient(segment, a.pieces_divisor);
        rows.first = (i32)(segment - (u32)rows.entry * a.pieces) * ROWS;
        const char* const x = at(a.x, rows.entry) + (i64)(rows.first - HALO) * a.x_pitch;
        const char* const dy = at(a.dy, rows.entry) + (i64)rows.first * a.dy_pitch;
#pragma unroll
        for (int i = 0; i < ROWS + 2 * HALO; ++i) {
            const i32 t = rows.first - HALO + i;
            rows.x[i] = load_if<BYTES>(i < HALO ? t >= 0 : t < seqlen, x + (i64)i * a.x_pitch);
        }
#pragma unroll
        for (int i = 0; i < ROWS + HALO; ++i) {
            rows.dy[i] = load_if<BYTES>(rows.first + i < seqlen, dy + (i64)i * a.dy_pitch);
        }
        return rows;
    }

    // The thread's channels at the start of a row.
    CAUSEWAY_DEVICE char* at(const Memory& view, i32 entry) const {
        return (char*)view.data + (entry * view.entry + channel) * (i64)sizeof(X);
    }

    CAUSEWAY_DEVICE void load_weights() {
        float weights[CHANNELS][WIDTH];
        load_parameters<Problem, CHANNELS, Tile::weight_bytes>(a.weight, a.weight_strides, a.bias,
                                                               a.bias_stride, channel, weights, bias);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) weight[j][c] = weights[c][WIDTH - 1 - j];
        }
    }

    CAUSEWAY_DEVICE void compute(const Rows& rows) {
        float x[ROWS + 2 * HALO][CHANNELS], g[ROWS + HALO][CHANNELS];
#pragma unroll
        for (int i = 0; i < ROWS + 2 * HALO; ++i) {
            unpack<X>(rows.x[i], x[i]);
            if constexpr (Problem::initial_states) {
                if (i < HALO && rows.first - HALO + i < 0) {
#pragma unroll
                    for (int c = 0; c < CHANNELS; ++c) {
                        x[i][c] = read<X>(a.initial_states, rows.entry, channel + c, rows.first + i);
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS + HALO; ++i) {
            unpack<X>(rows.dy[i], g[i]);
            // Rows past the end have no g. A 0 that is computed would be a NaN where pre overflows, or where a tap reads an infinity.
            const bool exists = rows.first + i < seqlen, counts = i < ROWS && exists;
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                float pre = bias[c];
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j][c], x[HALO + i - j][c], pre);
                g[i][c] = activation_gradient<Problem::silu>(pre, g[i][c]);
                // Not as a choice between two values, of which the compiler makes a branch for every row.
                if (!exists) g[i][c] = 0.0f;
                if (!counts) continue;
                sums[WIDTH][c] += g[i][c];
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) sums[j][c] = multiply_add(g[i][c], x[HALO + i - j][c], sums[j][c]);
            }
        }
        char* const dx = at(a.dx, rows.entry) + (i64)rows.first * a.dx_pitch;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float sum[CHANNELS];
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                sum[c] = 0.0f;
                if constexpr (Problem::dfinal_states) {
                    const i32 k = HALO - (seqlen - rows.first - i);
                    if (k >= 0 && k < HALO) sum[c] = read<X>(a.dfinal_states, rows.entry, channel + c, k);
                }
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) sum[c] = multiply_add(weight[j][c], g[i + j][c], sum[c]);
            }
            store_if<BYTES>(rows.first + i < seqlen, dx + (i64)i * a.dx_pitch, pack<X, BYTES>(sum));
        }
    }

    // ---- sums over the lanes that share channels, the block's waves, then blocks -----------------------------------

    CAUSEWAY_DEVICE void reduce(u32 group, u32 part) {
#pragma unroll
        for (u32 mask = LANES; mask < WAVE_SIZE; mask <<= 1) {
#pragma unroll
            for (int j = 0; j < SUMS_OF<Problem>; ++j) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) sums[j][c] += shuffle_xor(sums[j][c], mask);
            }
        }
        if (lane_index() < (u32)LANES) {
            const u32 at = WAVES_AT + (thread_index() / WAVE_SIZE * BLOCK_SUMS + lane_index() * CHANNELS) * 4;
#pragma unroll
            for (int j = 0; j < SUMS_OF<Problem>; ++j) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) write_shared(at + (j * BLOCK_CHANNELS + c) * 4, sums[j][c]);
            }
        }
        block_barrier();
        const auto block_sum = [](int i) {
            float sum = 0.0f;
#pragma unroll
            for (int wave = 0; wave < WAVES; ++wave) sum += read_shared(WAVES_AT + (wave * BLOCK_SUMS + i) * 4);
            return sum;
        };
        const auto total = [&](int i, float sum) {
            const i64 c = (i64)group * BLOCK_CHANNELS + i % BLOCK_CHANNELS;
            if (c < a.dim) write_sum<Problem>(a, c, i / BLOCK_CHANNELS, sum);
        };
        if constexpr (CLUSTER == 1) {
            sum_over_blocks<THREADS, 1>(
                a, group, part, BLOCK_SUMS, SENT_AT,
                [&](int i, float (&sum)[1]) { sum[0] = block_sum(i); }, [&](int i, const float (&sum)[1]) { total(i, sum[0]); });
        } else {
            SentSums(SENT_AT).add(part, block_sum, total);
        }
    }

    const BackwardArguments& a;
    const i32 seqlen;
    i64 channel;
    float weight[WIDTH][CHANNELS], bias[CHANNELS];
    float sums[WIDTH + 1][CHANNELS];  // dweight of tap j, then dbias
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_short_last(const BackwardArguments& a, u32 block = block_index<0>()) {
    run_or_states<ShortLastBackward<Problem, Tile>, Problem, Tile::threads>(a, block);
}

}  // namespace causal_conv1d
}  // namespace causeway
