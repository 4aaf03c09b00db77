// Causal depthwise conv1d, forward, divided by the norm of each head: any strides, any width, any number of channels in a head.
//
//   u[c, t] = act(pre[c, t])        y[c, t] = scale · u[c, t] / √(Σ_head u² + eps)
//
// A wave has one head at one position; its lanes are channels (divide_by_wave).
//
// Every loop strides over the grid with 64-bit indices. Per element: `width` loads of x and of weight, as many FMA, and their
// checks.
#pragma once
#include "causal_conv1d_forward.cuh"

namespace causeway {
namespace causal_conv1d {

// A position of an entry, and the sequence that it belongs to.
template <class Problem> struct PositionOfForward {
    using X = typename Problem::X;
    const ForwardArguments& a;
    i64 entry, t;
    Span<i64> span;
    i32 index;
    bool meets_states;

    CAUSEWAY_DEVICE PositionOfForward(const ForwardArguments& a, i64 entry, i64 t)
        : a(a), entry(entry), t(t), span{entry, 0, a.seqlen}, index(0), meets_states(true) {
        if constexpr (Problem::cu_seqlens != 0) {
            span = Boundaries<Problem::cu_seqlens, i64>{a.cu_seqlens, a.cu_seqlens_stride, a.sequences, a.seqlen}.find(t);
        }
        if constexpr (Problem::seq_idx) {
            index = index_at(t);
            meets_states = index_at(minimum(span.start, a.seqlen - 1)) == index;
        }
        meets_states = meets_states && t >= span.start;
    }

    CAUSEWAY_DEVICE i32 index_at(i64 position) const {
        const i64 offset = entry * a.seq_idx_strides.first + position * a.seq_idx_strides.second;
        return (i32)load<4>(at<i32>(a.seq_idx, offset)).word[0];
    }

    // The convolution of a channel, oldest tap first.
    CAUSEWAY_DEVICE float pre(i64 channel) const {
        using Weight = typename Problem::Weight;
        const i64 states = a.width - 1, start = maximum<i64>(span.start, 0);
        const X* x = at<X>(a.x, entry * a.x_strides.batch + channel * a.x_strides.dim);
        const X* from = at<X>(a.initial_states, span.sequence * a.initial_strides.batch + channel * a.initial_strides.dim);
        const Weight* weight = at<Weight>(a.weight, channel * a.weight_strides.first);
        float sum = Problem::bias ? load_element(at<Weight>(a.bias, channel * a.bias_stride)) : 0.0f;
        for (i64 w = 0; w <= states; ++w) {
            const i64 p = t - states + w;
            float value = 0.0f;
            bool counts = false;
            if (p >= start || p == t) {
                counts = !Problem::seq_idx || p == t || index_at(p) == index;
                if (counts) value = load_element(x + p * a.x_strides.seqlen);
            } else if constexpr (Problem::initial_states) {
                const i64 column = p - span.start + states;
                counts = meets_states && column >= 0;
                if (counts) value = load_element(from + column * a.initial_strides.seqlen);
            }
            // A masked tap is left out, not multiplied by 0: its weight may be infinite.
            if (counts) sum = multiply_add(load_element(weight + w * a.weight_strides.second), value, sum);
        }
        return sum;
    }

    CAUSEWAY_DEVICE void write(i64 channel, float value) const {
        store_element(at<X>(a.y, offset_of(a.y_strides, entry, channel, t)), value);
    }
};

template <class Problem, class Tile> CAUSEWAY_DEVICE void forward_of_heads(const ForwardArguments& a, u32 block) {
    constexpr u32 WAVES = Tile::threads / WAVE_SIZE;
    const i64 waves = (i64)WAVES * a.blocks, heads = a.dim / a.norm.head_dim, lane = lane_index();
    const i64 inner = Tile::dim_fastest ? heads : a.seqlen;
    for (i64 task = (i64)block * WAVES + thread_index() / WAVE_SIZE; task < a.batch * a.seqlen * heads; task += waves) {
        const i64 outer = task / inner, within = task - outer * inner;
        const i64 rest = Tile::dim_fastest ? a.seqlen : heads, entry = outer / rest, middle = outer - entry * rest;
        const i64 first = (Tile::dim_fastest ? within : middle) * a.norm.head_dim;
        const PositionOfForward<Problem> position(a, entry, Tile::dim_fastest ? middle : within);
        const bool is_padding = Problem::seq_idx && position.index < 0;
        divide_by_wave(
            a.norm, [&](i64 c) { return is_padding ? 0.0f : activate<Problem>(position.pre(first + c)); },
            [&](i64 c, float y) { position.write(first + c, is_padding ? 0.0f : y); });
    }
}

}  // namespace causal_conv1d
}  // namespace causeway
