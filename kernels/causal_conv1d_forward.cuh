// Causal depthwise conv1d, forward.
//
//   pre[b,c,t] = bias[c] + Σ_w weight[c,w] · x[b,c, t-(width-1)+w]
//   y[b,c,t]   = act(pre[b,c,t]) + residual[b,c,t]          with gates B ⊙ x for x, and C ⊙ act(pre) for act(pre)
//
// Four kernels share the argument block, and all but the last the final states of this file:
//
//   causal_conv1d_forward_channel_last.cuh    x[b, t, c] with stride 1 along dim
//   causal_conv1d_forward_channel_first.cuh   x[b, c, t] with stride 1 along seqlen
//   causal_conv1d_forward_general.cuh         any strides, any width, 64-bit indices
//   causal_conv1d_forward_halo.cuh            the first outputs of a slice, after a halo with indices
//
// Cost: each element of x is read once from memory and y written once: 4 bytes per element at 16 bits, 8 at 32.
// Positions shared by neighbouring tiles come from a cache.
//
// final_states are written by blocks of their own in the same launch, the first ones of the grid. The main loops carry nothing
// for them.
#pragma once
#include "causal_conv1d.cuh"

namespace causeway {
namespace causal_conv1d {

// One column of the final states of one channel of one sequence. The final states are the last width-1 positions of
// [initial_states, x]; where there are fewer, zeros stand in front. Padding counts as zero. Initial states carry the index of
// the sequence's first position, so they are padding if that position is.
template <class Problem>
CAUSEWAY_DEVICE void write_final_state(const ForwardArguments& a, i64 sequence, i64 entry, i64 channel, i64 start,
                                       i64 end, i64 column) {
    using X = typename Problem::X;
    const i64 states = a.width - 1;
    const i64 length = end > start ? end - start : 0;
    const i64 position = length - states + column;  // within the sequence; negative: among its initial states
    Packet<sizeof(X)> value = zero_packet<sizeof(X)>();
    bool padded = false;
    if constexpr (Problem::seq_idx) {
        if (Problem::initial_states ? length > 0 : position >= 0) {
            const i64 carries = start + maximum<i64>(position, 0);
            const i64 offset = entry * a.seq_idx_strides.first + carries * a.seq_idx_strides.second;
            padded = (i32)load<4>(at<i32>(a.seq_idx, offset)).word[0] < 0;
        }
    }
    if (!padded && position >= 0) {
        value = load<sizeof(X)>(at<X>(a.x, entry * a.x_strides.batch + channel * a.x_strides.dim +
                                               (start + position) * a.x_strides.seqlen));
        if constexpr (Problem::B) {
            const i64 offset = entry * a.b_strides.batch + channel * a.b_strides.dim +
                               (start + position) * a.b_strides.seqlen;
            const float product[1] = {multiply_rn(load_element(at<X>(a.b, offset)), element<X, 0>(value))};
            value = pack<X, (int)sizeof(X)>(product);
        }
    } else if (Problem::initial_states && !padded && position + states >= 0) {
        value = load<sizeof(X)>(at<X>(a.initial_states, sequence * a.initial_strides.batch +
                                                            channel * a.initial_strides.dim +
                                                            (position + states) * a.initial_strides.seqlen));
    }
    store<sizeof(X)>(at<X>(a.final_states, sequence * a.final_strides.batch + channel * a.final_strides.dim +
                                               column * a.final_strides.seqlen),
                     value);
}

// The final states that one block writes: one channel per thread, all columns.
template <class Problem, int Threads>
CAUSEWAY_DEVICE void write_final_states(const ForwardArguments& a, i64 entry, u32 block) {
    i64 sequence = entry, start = 0, end = a.seqlen;
    u32 part = block;
    if constexpr (Problem::cu_seqlens != 0) {
        const u32 index = quotient(block, a.state_divisor);
        part = block - index * a.state_divisor.value;
        const Boundaries<Problem::cu_seqlens, i64> boundaries{a.cu_seqlens, a.cu_seqlens_stride, a.sequences, a.seqlen};
        sequence = index;
        start = boundaries[sequence];
        end = boundaries[sequence + 1];
    }
    const i64 channel = (i64)part * Threads + thread_index();
    if (channel >= a.dim) return;
    for (i64 column = 0; column < a.width - 1; ++column) {
        write_final_state<Problem>(a, sequence, entry, channel, start, end, column);
    }
}

}  // namespace causal_conv1d
}  // namespace causeway
