// The last state_len positions of every sequence of a packed batch, zero in front.
//
//   states[i, c, state_len - k] = x[cu_seqlens[i+1] - k, c]   for 1 ≤ k ≤ min(state_len, length of i), else 0
//
//   x (total, dim)                       states (n, dim, state_len)
//     …                                    c0:  [  0   x1  x2  x3 ]
//     x1  of c0 c1 c2 …   ┐ the last        c1:  [  0   x1  x2  x3 ]
//     x2                  │ positions       …
//     x3                  ┘ of sequence i
//
// varlen_states_vector: a thread reads a packet of neighbouring channels from each of the positions and writes them
// channel by channel, both in wide accesses. varlen_states_general: one element per thread and step, any strides.
//
// Cost: each state element is read once and written once; nothing is computed.
#pragma once
#include "causal_conv1d.cuh"

namespace causeway {
namespace causal_conv1d {

// `Problem` has X and cu_seqlens of causal_conv1d.cuh.
//
//   struct Tile {
//       static constexpr int bytes = 16;         of a packet of x
//       static constexpr int threads = 64;       along dim
//       static constexpr int state_len = 4;
//       static constexpr int state_bytes = 16;   of an access to a run of channels · state_len elements
//   };
template <class Problem, class Tile> CAUSEWAY_DEVICE void varlen_states_vector(const VarlenStatesArguments& a) {
    using X = typename Problem::X;
    constexpr int CHANNELS = ELEMENTS<X, Tile::bytes>, COLUMNS = Tile::state_len;
    const i64 sequence = layered_block(a.blocks_per_layer);
    const i64 channel = ((i64)block_index<0>() * Tile::threads + thread_index()) * CHANNELS;
    if (sequence >= a.sequences || channel >= a.dim) return;
    const Boundaries<Problem::cu_seqlens, i64> boundaries{a.cu_seqlens, a.cu_seqlens_stride, a.sequences, a.total};
    const i64 start = boundaries[sequence], end = boundaries[sequence + 1];

    Packet<Tile::bytes> packets[COLUMNS];
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
        const i64 position = end - COLUMNS + j;
        packets[j] = position >= start ? load<Tile::bytes>(at<X>(a.x, position * a.x_strides.first + channel))
                                       : zero_packet<Tile::bytes>();
    }
    float run[CHANNELS * COLUMNS];
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
        float column[CHANNELS];
        unpack<X>(packets[j], column);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) run[c * COLUMNS + j] = column[c];
    }
    store_run<X, Tile::state_bytes>(
        at<X>(a.states, sequence * a.states_strides.batch + channel * a.states_strides.dim), run);
}

//   struct Tile { static constexpr int threads = 128; };
template <class Problem, class Tile> CAUSEWAY_DEVICE void varlen_states_general(const VarlenStatesArguments& a) {
    using X = typename Problem::X;
    const Boundaries<Problem::cu_seqlens, i64> boundaries{a.cu_seqlens, a.cu_seqlens_stride, a.sequences, a.total};
    const i64 threads = (i64)Tile::threads * a.blocks, tasks = a.sequences * a.dim * a.state_len;
    for (i64 task = (i64)block_index<0>() * Tile::threads + thread_index(); task < tasks; task += threads) {
        const i64 pair = task / a.state_len, column = task - pair * a.state_len;
        const i64 sequence = pair / a.dim, channel = pair - sequence * a.dim;
        const i64 position = boundaries[sequence + 1] - a.state_len + column;
        Packet<sizeof(X)> value = zero_packet<sizeof(X)>();
        if (position >= boundaries[sequence]) {
            value = load<sizeof(X)>(at<X>(a.x, position * a.x_strides.first + channel * a.x_strides.second));
        }
        store<sizeof(X)>(at<X>(a.states, offset_of(a.states_strides, sequence, channel, column)), value);
    }
}

}  // namespace causal_conv1d
}  // namespace causeway
