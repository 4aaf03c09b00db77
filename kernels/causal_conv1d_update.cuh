// Causal depthwise conv1d, decode update: new positions per batch entry, the state changed in place.
//
//   row      = conv_state_indices[b], or b                 outside 0 … rows-1: y[b] = 0, no state is touched
//   y[b,c,i] = act(bias[c] + Σ_w weight[c,w] · [history, x[b]][c, i+w])
//   history  = the last width-1 positions of conv_state[row]; with cache_seqlens that row is a ring buffer, into which
//              cache_seqlens[b] positions have been written
//
//   conv_state[row, c]  before   [ s0 s1 s2 s3 ]         ring of 4, cache_seqlens = 6   [ s4 s5 s2 s3 ]
//                       after    [ s1 s2 s3 x  ]                                        [ s4 s5 x  s3 ]
//
// update_vector serves one new position: a thread owns a packet of neighbouring channels of a batch entry. State that is contiguous,
// channel by channel or column by column, moves in wide accesses. A whole ring buffer does too: memory moves whole sectors anyway.
// update_general serves everything else, one channel of one batch entry per thread.
//
// Cost per channel and entry, width 4, state_len 4, bf16: 2 bytes of x, 2 of y, 8 + 8 of state, and 10 of weight and bias from a cache.
// It is bound by latency when the batch is small: all loads but that of the state through conv_state_indices start at once.
#pragma once
#include "causal_conv1d.cuh"

namespace causeway {
namespace causal_conv1d {

// How update_vector finds the state of a packet of channels.
enum class StateLayout {
    channels,  // stride 1 along positions, channels follow each other: one run of channels · state_len elements
    columns,   // stride 1 along dim: one packet per position, of a ring those of the history
    elements,  // any strides: the history of a ring, element by element
};

// The state row of a batch entry, or -1.
template <bool Indexed> CAUSEWAY_DEVICE i64 state_row(const UpdateArguments& a, i64 entry) {
    if constexpr (!Indexed) return entry;
    const i64 row = (i32)load<4>(at<i32>(a.conv_state_indices, entry * a.indices_stride)).word[0];
    return row < a.rows ? row : -1;
}

// The slot of the ring buffer that holds the position `back` before the next one.
CAUSEWAY_DEVICE i64 ring_slot(const UpdateArguments& a, i64 next_slot, i64 back) {
    const i64 slot = next_slot - back;
    return slot < 0 ? slot + a.state_len : slot;
}

// Slot `slot` of a channel, where all slots are in registers.
template <int Slots, int Channels>
CAUSEWAY_DEVICE float select_slot(const float (&slots)[Slots][Channels], int channel, i64 slot) {
    float value = slots[0][channel];
#pragma unroll
    for (int k = 1; k < Slots; ++k) {
        if (slot == k) value = slots[k][channel];
    }
    return value;
}

// The slot of the next position. A count below 0 has no meaning; it is read modulo 2^32, which stays within the ring.
CAUSEWAY_DEVICE i64 next_ring_slot(const UpdateArguments& a, i64 entry) {
    const u32 count = load<4>(at<i32>(a.cache_seqlens, entry * a.cache_seqlens_stride)).word[0];
    return a.state_len == 0 ? 0 : (i64)(count % (u32)a.state_len);
}

// The update's `Problem` has X, Weight, width, silu and bias of causal_conv1d.cuh, and
//     static constexpr bool cache_seqlens, conv_state_indices;     which are given; with cache_seqlens the state is a ring
//
//   struct Tile {
//       static constexpr int bytes = 16;         of a packet of x and y
//       static constexpr int lanes = 32;         threads along dim
//       static constexpr int entries = 4;        threads along the batch
//       static constexpr StateLayout layout = StateLayout::channels;
//       static constexpr int state_len = 4;      0: not known when compiled (ring, columns or elements)
//       static constexpr int state_bytes = 16;   of an access to the state
//       static constexpr int weight_bytes = 16;  see load_parameters
//       static constexpr bool all_have_states = true;   whether it is known that each entry has one, and nothing has to branch
//       static constexpr int head_lanes = 8;     with a norm: threads that have a head's channels, a power of two
//   };
template <class Problem, class Tile>
CAUSEWAY_DEVICE void update_vector(const UpdateArguments& a, u32 block = block_index<0>()) {
    using X = typename Problem::X;
    constexpr int WIDTH = Problem::width, HALO = WIDTH - 1, BYTES = Tile::bytes;
    constexpr int CHANNELS = ELEMENTS<X, BYTES>;
    constexpr bool RUNS = Tile::layout == StateLayout::channels, RING = Problem::cache_seqlens;
    // What is loaded: all slots, or those of a ring that hold the history, oldest first.
    constexpr int COLUMNS = RING && !RUNS ? HALO : Tile::state_len;
    constexpr int ROOM = COLUMNS > 0 ? COLUMNS : 1;

    const u32 lane = thread_index() % Tile::lanes;
    const i64 channel = ((i64)block * Tile::lanes + lane) * CHANNELS;
    const i64 entry = layered_block(a.blocks_per_layer) * Tile::entries + thread_index() / Tile::lanes;
    // With a norm, the lanes of a wave meet.
    const bool active = channel < a.dim && entry < a.batch;
    if (!Problem::norm && !active) return;

    Packet<BYTES> input = zero_packet<BYTES>(), b, gate;
    i64 row = -1;
    if (!Problem::norm || active) {
        row = state_row<Problem::conv_state_indices>(a, entry);
        input = load<BYTES>(at<X>(a.x, entry * a.x_strides.batch + channel));
        if constexpr (Problem::B) b = load<BYTES>(at<X>(a.b, entry * a.b_strides.batch + channel));
        if constexpr (Problem::C) gate = load<BYTES>(at<X>(a.c, entry * a.c_strides.batch + channel));
    }
    float weight[CHANNELS][WIDTH], bias[CHANNELS];
    load_parameters<Problem, CHANNELS, Tile::weight_bytes>(a.weight, a.weight_strides, a.bias, a.bias_stride,
                                                           Problem::norm && !active ? 0 : channel, weight, bias);

    // Beside a branch, the loads before it and those after it wait for each other.
    const bool has_state = Tile::all_have_states || row >= 0;
    float state[ROOM][CHANNELS];
    if constexpr (Problem::norm) {
        // Lanes without a state compute with it.
#pragma unroll
        for (int j = 0; j < ROOM; ++j) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) state[j][c] = 0.0f;
        }
    }
    i64 next_slot = 0;
    if (has_state) {
        if constexpr (RING) next_slot = next_ring_slot(a, entry);
        const X* from = at<X>((const void*)a.conv_state, row * a.state_strides.batch + channel * a.state_strides.dim);
        if constexpr (RUNS && COLUMNS > 0) {
            float run[CHANNELS * ROOM];
            load_run<X, Tile::state_bytes, true>(from, run);
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) state[j][c] = run[c * COLUMNS + j];
            }
        } else {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                const i64 slot = RING ? ring_slot(a, next_slot, HALO - j) : j;
                const X* column = from + slot * a.state_strides.seqlen;
                if constexpr (Tile::layout == StateLayout::columns) {
                    unpack<X>(load_mutable<BYTES>(column), state[j]);
                } else {
#pragma unroll
                    for (int c = 0; c < CHANNELS; ++c) state[j][c] = load_mutable_element(column + c * a.state_strides.dim);
                }
            }
        }
    }

    X* y = at<X>(a.y, entry * a.y_strides.batch + channel);
    if (!Problem::norm && !has_state) return store<BYTES>(y, zero_packet<BYTES>());
    float newest[CHANNELS], sum[CHANNELS], factors[CHANNELS] = {};
    unpack<X>(input, newest);
    if constexpr (Problem::B) {
        unpack<X>(b, factors);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) newest[c] = gated<Problem>(factors[c], newest[c]);
        input = pack<X, BYTES>(newest);  // what the state holds
    }
    if constexpr (Problem::C) unpack<X>(gate, factors);
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        sum[c] = bias[c];
#pragma unroll
        for (int w = 0; w < HALO; ++w) {
            const float value =
                RING && RUNS ? select_slot(state, c, ring_slot(a, next_slot, HALO - w)) : state[COLUMNS - HALO + w][c];
            sum[c] = multiply_add(weight[c][w], value, sum[c]);
        }
        sum[c] = activate_gated<Problem>(multiply_add(weight[c][HALO], newest[c], sum[c]), factors[c]);
    }
    if constexpr (Problem::norm) {
        divide_by_norm<Tile::head_lanes>(sum, a.norm);
        if (!active) return;
        if (!has_state) return store<BYTES>(y, zero_packet<BYTES>());
    }
    store<BYTES>(y, pack<X, BYTES>(sum));

    X* to = at<X>(a.conv_state, row * a.state_strides.batch + channel * a.state_strides.dim);
    if constexpr (RUNS && COLUMNS > 0) {
        float run[CHANNELS * ROOM];
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                const bool changes = RING ? next_slot == j : j + 1 == COLUMNS;
                const float value = state[RING || j + 1 == COLUMNS ? j : j + 1][c];
                run[c * COLUMNS + j] = changes ? newest[c] : value;
            }
        }
        store_run<X, Tile::state_bytes>(to, run);
    } else if constexpr (RING) {
        if (a.state_len == 0) return;
        X* column = to + next_slot * a.state_strides.seqlen;
        if constexpr (Tile::layout == StateLayout::columns) {
            store<BYTES>(column, input);
        } else {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) store_element(column + c * a.state_strides.dim, newest[c]);
        }
    } else if constexpr (Tile::layout == StateLayout::columns) {
#pragma unroll
        for (int j = 0; j + 1 < COLUMNS; ++j) {
            store<BYTES>(to + j * a.state_strides.seqlen, pack<X, BYTES>(state[j + 1]));
        }
        if constexpr (COLUMNS > 0) store<BYTES>(to + (COLUMNS - 1) * a.state_strides.seqlen, input);
    }
}

// What taps read of new position i of a channel, of which x is the first; the state holds it rounded.
template <class Problem>
CAUSEWAY_DEVICE float new_position(const UpdateArguments& a, const typename Problem::X* x, i64 entry, i64 channel, i64 i) {
    if constexpr (!Problem::B) {
        return load_element(x + i * a.x_strides.seqlen);
    } else {
        const i64 offset = offset_of(a.b_strides, entry, channel, i);
        return gated<Problem>(load_element(at<typename Problem::X>(a.b, offset)), load_element(x + i * a.x_strides.seqlen));
    }
}

// A channel of an entry, for any strides, any width and any number of new positions.
template <class Problem> struct ChannelOfUpdate {
    using X = typename Problem::X;
    using Weight = typename Problem::Weight;
    const UpdateArguments& a;
    i64 entry, channel, row, next_slot;

    CAUSEWAY_DEVICE ChannelOfUpdate(const UpdateArguments& a, i64 entry, i64 channel, i64 row)
        : a(a), entry(entry), channel(channel), row(row), next_slot(0) {
        if constexpr (Problem::cache_seqlens) next_slot = next_ring_slot(a, entry);
    }

    CAUSEWAY_DEVICE const X* x() const { return at<X>(a.x, entry * a.x_strides.batch + channel * a.x_strides.dim); }
    CAUSEWAY_DEVICE X* y() const { return at<X>(a.y, entry * a.y_strides.batch + channel * a.y_strides.dim); }
    CAUSEWAY_DEVICE X* state() const {
        return at<X>(a.conv_state, row * a.state_strides.batch + channel * a.state_strides.dim);
    }

    // The activation of new position i.
    CAUSEWAY_DEVICE float activated(i64 i) const {
        const i64 history = a.width - 1;
        const Weight* weight = at<Weight>(a.weight, channel * a.weight_strides.first);
        float sum = Problem::bias ? load_element(at<Weight>(a.bias, channel * a.bias_stride)) : 0.0f;
        for (i64 w = 0; w <= history; ++w) {
            const i64 q = i - history + w;  // among the new positions; before them, in the state
            float value;
            if (q >= 0) {
                value = new_position<Problem>(a, x(), entry, channel, q);
            } else {
                // A slot is overwritten by the position state_len later, and no output from there on reads the old one.
                const i64 slot = Problem::cache_seqlens ? ring_slot(a, next_slot, -q) : a.state_len + q;
                value = load_mutable_element(state() + slot * a.state_strides.seqlen);
            }
            sum = multiply_add(load_element(weight + w * a.weight_strides.second), value, sum);
        }
        float factor = 1.0f;
        if constexpr (Problem::C) factor = load_element(at<X>(a.c, offset_of(a.c_strides, entry, channel, i)));
        return activate_gated<Problem>(sum, factor);
    }

    CAUSEWAY_DEVICE void write(i64 i, float value) const { store_element(y() + i * a.y_strides.seqlen, value); }

    // Puts new position i into the ring.
    CAUSEWAY_DEVICE void enter(i64 i) const {
        if (!Problem::cache_seqlens || a.state_len == 0) return;
        const i64 slot = (next_slot + i) % a.state_len;
        store_element(state() + slot * a.state_strides.seqlen, new_position<Problem>(a, x(), entry, channel, i));
    }

    // Shifts the state, and appends the new positions.
    CAUSEWAY_DEVICE void shift() const {
        for (i64 j = 0; !Problem::cache_seqlens && j < a.state_len; ++j) {
            const i64 q = j + a.seqlen - a.state_len;  // the position that comes to lie in slot j
            const float value = q >= 0 ? new_position<Problem>(a, x(), entry, channel, q)
                                       : load_mutable_element(state() + (j + a.seqlen) * a.state_strides.seqlen);
            store_element(state() + j * a.state_strides.seqlen, value);
        }
    }
};

// One channel of one batch entry per thread, in order.
template <class Problem, class Tile> CAUSEWAY_DEVICE void update_of_channels(const UpdateArguments& a, u32 block) {
    const i64 threads = (i64)Tile::threads * a.blocks;
    for (i64 task = (i64)block * Tile::threads + thread_index(); task < a.batch * a.dim; task += threads) {
        const i64 entry = task / a.dim;
        const i64 row = state_row<Problem::conv_state_indices>(a, entry);
        const ChannelOfUpdate<Problem> channel(a, entry, task - entry * a.dim, row);
        for (i64 i = 0; i < a.seqlen; ++i) {
            channel.write(i, row < 0 ? 0.0f : channel.activated(i));
            if (row >= 0) channel.enter(i);
        }
        if (row >= 0) channel.shift();
    }
}

// With a norm: one head of one batch entry per wave, whose lanes are channels. The state changes when all of y is there.
template <class Problem, class Tile> CAUSEWAY_DEVICE void update_of_heads(const UpdateArguments& a, u32 block) {
    constexpr u32 WAVES = Tile::threads / WAVE_SIZE;
    const i64 waves = (i64)WAVES * a.blocks, heads = a.dim / a.norm.head_dim;
    for (i64 task = (i64)block * WAVES + thread_index() / WAVE_SIZE; task < a.batch * heads; task += waves) {
        const i64 entry = task / heads, first = (task - entry * heads) * a.norm.head_dim;
        const i64 row = state_row<Problem::conv_state_indices>(a, entry);
        const auto channel = [&](i64 c) { return ChannelOfUpdate<Problem>(a, entry, first + c, row); };
        for (i64 i = 0; i < a.seqlen; ++i) {
            divide_by_wave(
                a.norm, [&](i64 c) { return row < 0 ? 0.0f : channel(c).activated(i); },
                [&](i64 c, float y) { channel(c).write(i, row < 0 ? 0.0f : y); });
        }
        if (row < 0) continue;
        for (i64 c = lane_index(); c < a.norm.head_dim; c += WAVE_SIZE) {
            for (i64 i = 0; i < a.seqlen; ++i) channel(c).enter(i);
            channel(c).shift();
        }
    }
}

// Any strides, any width, any number of new positions.
//
//   struct Tile { static constexpr int threads = 128; };
template <class Problem, class Tile>
CAUSEWAY_DEVICE void update_general(const UpdateArguments& a, u32 block = block_index<0>()) {
    if constexpr (Problem::norm) {
        update_of_heads<Problem, Tile>(a, block);
    } else {
        update_of_channels<Problem, Tile>(a, block);
    }
}

}  // namespace causal_conv1d
}  // namespace causeway
