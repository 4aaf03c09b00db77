// Causal conv1d backward for any strides and any width.
//
// A block takes a tile of `tile_channels` channels × T = `piece` positions, and every parts-th tile of its channels after that.
// With halos of H = width-1, a tile needs x from H positions before it, and g up to H positions after it:
//
//   position            t0-H ……… t0 ………………… t0+T ……… t0+T+H
//   x in shared memory  [   halo   |    tile    |   halo   ]      span = T + 2H per channel
//   g in shared memory             [    tile    |   halo   ]
//   dx written                     [    tile    ]
//
// Four tables in shared memory tell of each position: `reach`, the positions of its sequence before it (H at most); `left`,
// those from it to the sequence's end (width at most); the sequence's number; and its index of seq_idx.
//
// dweight: thread (slice, channel, j) adds g[t] · x[t-j] over its slice of each tile's positions. The sums stay in shared memory
// until the block's last tile; then slices, and then blocks, are added in order.
//
// Cost per element: (3 + 2H/T) · width multiply-adds, each with two reads of shared memory; x and dy are read
// (1 + 2H/T) and (1 + HALO/T) times.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

//   struct Tile {
//       static constexpr int threads;
//       static constexpr bool dim_fastest;   neighbouring channels are nearer in memory than neighbouring positions
//   };
template <class Problem, class Tile> class GeneralBackward {
    using X = typename Problem::X;
    static constexpr int THREADS = Tile::threads;

public:
    CAUSEWAY_DEVICE explicit GeneralBackward(const BackwardArguments& a)
        : a(a), width((int)a.width), states(width - 1), channels((int)a.tile_channels), tile((int)a.piece),
          span(tile + 2 * states), pitch(span | 1), slices((int)a.slices), thread((int)thread_index()) {
        x_at = 0;
        g_at = x_at + channels * pitch * 4;
        weight_at = g_at + channels * pitch * 4;
        sum_at = weight_at + channels * width * 4;
        reach_at = sum_at + slices * channels * (width + 1) * 4;
        left_at = reach_at + span * 4;
        index_at = left_at + span * 4;
        sequence_at_ = index_at + span * 4;
        flag_at = sequence_at_ + span * 4;
    }

    CAUSEWAY_DEVICE void run(u32 block) {
        const u32 group = block / a.parts, part = block - group * a.parts;
        first_channel = (i64)group * channels;
        const int sums = channels * (width + 1);
        for (int i = thread; i < slices * sums; i += THREADS) write_shared(sum_at + i * 4, 0.0f);
        for (int i = thread; i < channels * width; i += THREADS) {
            const int c = i / width, j = i - c * width;
            const bool valid = first_channel + c < a.dim;
            write_shared(weight_at + i * 4, valid ? read_weight<Problem>(a, first_channel + c, j) : 0.0f);
        }
        const i64 tiles = a.batch * a.pieces;
        for (i64 i = part; i < tiles; i += a.parts) {
            entry = i / a.pieces;
            start = (i - entry * a.pieces) * tile;
            block_barrier();
            load_tables();
            load_x();
            block_barrier();
            if constexpr (Problem::norm) {
                compute_g_of_heads();
            } else {
                compute_g();
            }
            block_barrier();
            write_dx();
            add_sums();
        }
        block_barrier();
        sum_over_blocks<THREADS, 1>(
            a, group, part, sums, flag_at,
            [&](int i, float (&sum)[1]) {
                sum[0] = 0.0f;
                for (int s = 0; s < slices; ++s) sum[0] += read_shared(sum_at + (s * sums + i) * 4);
            },
            [&](int i, const float (&sum)[1]) {
                const int c = i / (width + 1);
                if (first_channel + c < a.dim) write_sum<Problem>(a, first_channel + c, i - c * (width + 1), sum[0]);
            });
    }

private:
    // The position, within the entry, that is number i of the span.
    CAUSEWAY_DEVICE i64 position(int i) const { return start - states + i; }
    CAUSEWAY_DEVICE int look_up(u32 table, int i) const { return (int)load_shared<4>(table + i * 4).word[0]; }
    CAUSEWAY_DEVICE void set(u32 table, int i, int value) const {
        store_shared<4>(table + i * 4, Packet<4>{{(u32)value}});
    }

    CAUSEWAY_DEVICE void load_tables() const {
        for (int i = thread; i < span; i += THREADS) {
            const i64 p = position(i);
            int reach = 0, left = 0, index = -1, number = 0;
            if (p >= 0 && p < a.seqlen) {
                const Span<i64> sequence = sequence_at<Problem, i64>(a, entry, p);
                reach = p - sequence.start < states ? (int)(p - sequence.start) : states;
                left = sequence.end - p < width ? (int)(sequence.end - p) : width;
                index = position_index<Problem>(a, entry, p);
                number = (int)sequence.sequence;
            }
            set(reach_at, i, reach);
            set(left_at, i, left);
            set(index_at, i, index);
            set(sequence_at_, i, number);
        }
    }

    // Splits item n of `channels` × `count` positions into channel and position: neighbouring items are neighbours in memory.
    CAUSEWAY_DEVICE void split(int n, int count, int& channel, int& i) const {
        if constexpr (Tile::dim_fastest) {
            i = n / channels;
            channel = n - i * channels;
        } else {
            channel = n / count;
            i = n - channel * count;
        }
    }

    CAUSEWAY_DEVICE void load_x() const {
        for (int n = thread; n < channels * span; n += THREADS) {
            int c, i;
            split(n, span, c, i);
            const i64 p = position(i);
            const bool valid = p >= 0 && p < a.seqlen && first_channel + c < a.dim;
            if constexpr (!Problem::B) {
                write_shared(x_at + (c * pitch + i) * 4, valid ? read<X>(a.x, entry, first_channel + c, p) : 0.0f);
            } else {
                float value = 0.0f;
                if (valid) {
                    value = gated<Problem>(read<X>(a.b, entry, first_channel + c, p), read<X>(a.x, entry, first_channel + c, p));
                }
                write_shared(x_at + (c * pitch + i) * 4, value);
            }
        }
    }

    // What tap j of position i reads.
    CAUSEWAY_DEVICE float tap(int c, int i, int j) const {
        const int reach = look_up(reach_at, i);
        if (j <= reach) {
            if (Problem::seq_idx && look_up(index_at, i - j) != look_up(index_at, i)) return 0.0f;
            return read_shared(x_at + (c * pitch + i - j) * 4);
        }
        if constexpr (Problem::initial_states) {
            if (Problem::seq_idx && look_up(index_at, i - reach) != look_up(index_at, i)) return 0.0f;
            return read<X>(a.initial_states, look_up(sequence_at_, i), first_channel + c, states + reach - j);
        }
        return 0.0f;
    }

    template <bool OldestFirst> CAUSEWAY_DEVICE float sum_of_taps(int c, int i) const {
        float sum = read_bias<Problem>(a, first_channel + c);
        for (int n = 0; n < width; ++n) {
            const int j = OldestFirst ? width - 1 - n : n;
            sum = multiply_add(read_shared(weight_at + (c * width + j) * 4), tap(c, i, j), sum);
        }
        return sum;
    }

    CAUSEWAY_DEVICE void compute_g() const {
        const int count = tile + states;
        for (int n = thread; n < channels * count; n += THREADS) {
            int c, i;
            split(n, count, c, i);
            i += states;
            float g = 0.0f, dc = 0.0f;
            // Positions outside the sequence count as padding.
            if (look_up(index_at, i) >= 0 && first_channel + c < a.dim) {
                float pre = 0.0f;
                if constexpr (Problem::silu) pre = sum_of_taps<FORWARD_ORDER<Problem>>(c, i);
                if constexpr (!Problem::C) {
                    g = activation_gradient<Problem::silu>(pre, read<X>(a.dy, entry, first_channel + c, position(i)));
                } else {
                    const float dy = read<X>(a.dy, entry, first_channel + c, position(i));
                    const float factor = read<X>(a.c, entry, first_channel + c, position(i));
                    if constexpr (Problem::dC) dc = multiply_rn(dy, kept<Problem>(activate<Problem>(sum_of_taps<true>(c, i))));
                    g = activation_gradient<Problem::silu>(pre, gated<Problem>(factor, dy));
                }
            }
            if constexpr (Problem::dC) {
                const bool own = i < states + tile && position(i) < a.seqlen && first_channel + c < a.dim;
                if (own) write<X>(a.dc, entry, first_channel + c, position(i), dc);
            }
            write_shared(g_at + (c * pitch + i) * 4, g);
        }
    }

    // The same of a call with a norm: a wave has a head at a position. It reads all of its channels from memory, and computes g
    // of those that are the block's.
    CAUSEWAY_DEVICE void compute_g_of_heads() const {
        const int count = tile + states, head_dim = (int)minimum<i64>(a.norm.head_dim, a.dim), lane = (int)lane_index();
        const int own = (int)minimum<i64>(channels, a.dim - first_channel);
        const i64 first_head = first_channel / head_dim, heads = (first_channel + own - 1) / head_dim - first_head + 1;
        for (i64 n = thread / (int)WAVE_SIZE; n < heads * count; n += THREADS / (int)WAVE_SIZE) {
            const i64 number = n / count, first = (first_head + number) * head_dim;
            const int i = states + (int)(n - number * count), index = look_up(index_at, i);
            HeadAt head{0.0f, 0.0f};
            // Positions outside the sequence count as padding.
            if (index >= 0) {
                const Span<i64> sequence = sequence_at<Problem, i64>(a, entry, position(i));
                head = head_at<Problem, true>(a, sequence, entry, first, position(i), index);
            }
            for (int k = lane; k < head_dim; k += (int)WAVE_SIZE) {
                const i64 c = first + k - first_channel;
                if (c < 0 || c >= own) continue;
                float g = 0.0f;
                if (index >= 0) {
                    const float dy = read<X>(a.dy, entry, first + k, position(i));
                    g = head.template gradient<Problem>(a, sum_of_taps<false>((int)c, i), dy);
                }
                write_shared(g_at + ((int)c * pitch + i) * 4, g);
            }
        }
    }

    CAUSEWAY_DEVICE void write_dx() const {
        for (int n = thread; n < channels * tile; n += THREADS) {
            int c, i;
            split(n, tile, c, i);
            i += states;
            if (position(i) >= a.seqlen || first_channel + c >= a.dim) continue;
            const int left = look_up(left_at, i), index = look_up(index_at, i);
            float sum = 0.0f;
            for (int j = 0; j < left; ++j) {
                if (Problem::seq_idx && look_up(index_at, i + j) != index) continue;
                const float g = read_shared(g_at + (c * pitch + i + j) * 4);
                sum = multiply_add(read_shared(weight_at + (c * width + j) * 4), g, sum);
            }
            if constexpr (Problem::dfinal_states) {
                if (left <= states && index >= 0) {
                    sum += read<X>(a.dfinal_states, look_up(sequence_at_, i), first_channel + c, states - left);
                }
            }
            if constexpr (Problem::B) {
                // Padding takes no gradient, whatever the gate holds there.
                const bool counts = !Problem::seq_idx || index >= 0;
                const float product = kept<Problem>(sum);
                sum = counts ? multiply_rn(read<X>(a.b, entry, first_channel + c, position(i)), product) : 0.0f;
                if constexpr (Problem::dB) {
                    const float x = counts ? read<X>(a.x, entry, first_channel + c, position(i)) : 0.0f;
                    write<X>(a.db, entry, first_channel + c, position(i), counts ? multiply_rn(x, product) : 0.0f);
                }
            }
            write<X>(a.dx, entry, first_channel + c, position(i), sum);
        }
    }

    CAUSEWAY_DEVICE void add_sums() const {
        const int sums = channels * (width + 1), slice_length = (tile + slices - 1) / slices;
        for (int n = thread; n < slices * sums; n += THREADS) {
            const int slice = n / sums, c = (n - slice * sums) / (width + 1), j = n - slice * sums - c * (width + 1);
            // The last group may have channels past the end, whose initial states must not be read.
            if (first_channel + c >= a.dim) continue;
            const int begin = slice * slice_length, end = begin + slice_length < tile ? begin + slice_length : tile;
            float sum = read_shared(sum_at + n * 4);
            for (int i = states + begin; i < states + end; ++i) {
                // g is 0 at padding, and a tap beside it must not turn 0 into a NaN.
                if (look_up(index_at, i) < 0) continue;
                const float g = read_shared(g_at + (c * pitch + i) * 4);
                sum = j < width ? multiply_add(g, tap(c, i, j), sum) : sum + g;
            }
            write_shared(sum_at + n * 4, sum);
        }
    }

    const BackwardArguments& a;
    const int width, states, channels, tile, span, pitch, slices, thread;
    u32 x_at, g_at, weight_at, sum_at, reach_at, left_at, index_at, sequence_at_, flag_at;
    i64 first_channel, entry, start;
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_general(const BackwardArguments& a, u32 block = block_index<0>()) {
    if constexpr (Problem::dinitial_states) {
        if (block >= a.sum_blocks) {
            const int pairs = Tile::threads / (a.width - 1);
            const i64 groups = (a.sequences * a.dim + pairs - 1) / pairs;
            for (i64 group = block - a.sum_blocks; group < groups; group += a.state_blocks) {
                initial_states_gradient<Problem, Tile::threads>(a, group);
                block_barrier();
            }
            return;
        }
    }
    GeneralBackward<Problem, Tile>(a).run(block);
}

}  // namespace causal_conv1d
}  // namespace causeway
