// Causal depthwise conv1d, forward, for any strides and any width.
//
//   a thread has one batch entry, one channel, and a run of RUN positions. Neighbouring threads are neighbours along dim or
//   along seqlen, whichever is nearer in memory
//
//   positions read    t-(width-1) … t …… t+RUN-1
//   sums kept                       [ RUN ]              each position is read once per run, each tap too
//
// Every loop strides over the grid with 64-bit indices, so no size is too large. Per tap and run: one load of x, one of
// weight, RUN FMA and their checks. This is the path for widths past 8 and for strides that the others do not take.
//
//   struct Tile {
//       static constexpr int threads = 128;
//       static constexpr bool dim_fastest = false;   neighbouring threads are neighbouring channels
//   };
#pragma once
#include "causal_conv1d_forward_norm.cuh"

namespace causeway {
namespace causal_conv1d {

template <class Problem, class Tile> CAUSEWAY_DEVICE void forward_of_runs(const ForwardArguments& a, i64 self, i64 threads) {
    using X = typename Problem::X;
    using Weight = typename Problem::Weight;
    constexpr int RUN = 4;
    const i64 states = a.width - 1;
    const i64 runs = (a.seqlen + RUN - 1) / RUN;
    const Boundaries<Problem::cu_seqlens, i64> boundaries{a.cu_seqlens, a.cu_seqlens_stride, a.sequences, a.seqlen};

    for (i64 task = self; task < a.batch * a.dim * runs; task += threads) {
        const i64 inner = Tile::dim_fastest ? a.dim : runs, outer = task / inner, within = task - outer * inner;
        const i64 rest = Tile::dim_fastest ? runs : a.dim, entry = outer / rest, middle = outer - entry * rest;
        const i64 channel = Tile::dim_fastest ? within : middle;
        const i64 t = (Tile::dim_fastest ? middle : within) * RUN;
        const X* x = at<X>(a.x, entry * a.x_strides.batch + channel * a.x_strides.dim);
        const Weight* weight = at<Weight>(a.weight, channel * a.weight_strides.first);
        const i32* indices = at<i32>(a.seq_idx, entry * a.seq_idx_strides.first);

        float sums[RUN], run_weights[RUN];
        i64 starts[RUN];
        i32 index[RUN];
        const float bias = Problem::bias ? load_element(at<Weight>(a.bias, channel * a.bias_stride)) : 0.0f;
        Span<i64> span{entry, 0, a.seqlen};
        if constexpr (Problem::cu_seqlens != 0) span = boundaries.find(t);
#pragma unroll
        for (int r = 0; r < RUN; ++r) {
            const i64 position = minimum(t + r, a.seqlen - 1);
            sums[r] = bias;
            run_weights[r] = 0.0f;
            if constexpr (Problem::cu_seqlens != 0) boundaries.advance(span, position);
            starts[r] = span.start;
            index[r] = 0;
            bool same = true;
            if constexpr (Problem::seq_idx) {
                index[r] = (i32)load<4>(indices + position * a.seq_idx_strides.second).word[0];
                same = (i32)load<4>(indices + minimum(span.start, a.seqlen - 1) * a.seq_idx_strides.second).word[0] ==
                       index[r];
            }
            if constexpr (Problem::initial_states) {
                const X* from = at<X>(a.initial_states, span.sequence * a.initial_strides.batch +
                                                            channel * a.initial_strides.dim);
                const i64 reach = position - span.start;  // positions of the sequence before this one
                for (i64 w = 0; same && reach >= 0 && w + reach < states; ++w) {
                    sums[r] = multiply_add(load_element(weight + w * a.weight_strides.second),
                                           load_element(from + (w + reach) * a.initial_strides.seqlen), sums[r]);
                }
            }
        }
        for (i64 p = t - states; p < minimum(t + RUN, a.seqlen); ++p) {
#pragma unroll
            for (int r = RUN - 1; r > 0; --r) run_weights[r] = run_weights[r - 1];
            const i64 w = p - t + states;  // the tap of position t; that of t + r is r less
            run_weights[0] = w <= states ? load_element(weight + w * a.weight_strides.second) : 0.0f;
            if (p < 0) continue;
            float value = load_element(x + p * a.x_strides.seqlen);
            if constexpr (Problem::B) {
                value = gated<Problem>(load_element(at<X>(a.b, offset_of(a.b_strides, entry, channel, p))), value);
            }
            i32 own = 0;
            if constexpr (Problem::seq_idx) own = (i32)load<4>(indices + p * a.seq_idx_strides.second).word[0];
#pragma unroll
            for (int r = 0; r < RUN; ++r) {
                const bool valid = w - r >= 0 && w - r <= states && (p >= starts[r] || p == t + r) &&
                                   (!Problem::seq_idx || own == index[r]);
                const float next = multiply_add(run_weights[r], value, sums[r]);
                sums[r] = valid ? next : sums[r];
            }
        }
#pragma unroll
        for (int r = 0; r < RUN; ++r) {
            if (t + r >= a.seqlen) break;
            float factor = 1.0f;
            if constexpr (Problem::C) factor = load_element(at<X>(a.c, offset_of(a.c_strides, entry, channel, t + r)));
            float result = activate_gated<Problem>(sums[r], factor);
            if (Problem::seq_idx && index[r] < 0) result = 0.0f;
            if constexpr (Problem::residual) {
                result = add_rn(result, load_element(at<X>(a.residual, offset_of(a.residual_strides, entry, channel, t + r))));
            }
            store_element(at<X>(a.y, offset_of(a.y_strides, entry, channel, t + r)), result);
        }
    }
}

template <class Problem, class Tile>
CAUSEWAY_DEVICE void forward_general(const ForwardArguments& a, u32 block = block_index<0>()) {
    const i64 threads = (i64)Tile::threads * a.blocks;
    const i64 self = (i64)block * Tile::threads + thread_index();
    if constexpr (Problem::norm) {
        forward_of_heads<Problem, Tile>(a, block);
    } else {
        forward_of_runs<Problem, Tile>(a, self, threads);
    }
    const i64 states = a.width - 1;
    const Boundaries<Problem::cu_seqlens, i64> boundaries{a.cu_seqlens, a.cu_seqlens_stride, a.sequences, a.seqlen};
    if constexpr (Problem::final_states) {
        for (i64 task = self; task < a.sequences * a.dim * states; task += threads) {
            const i64 pair = task / states, sequence = pair / a.dim;
            i64 entry = sequence, start = 0, end = a.seqlen;
            if constexpr (Problem::cu_seqlens != 0) {
                entry = 0;
                start = boundaries[sequence];
                end = boundaries[sequence + 1];
            }
            write_final_state<Problem>(a, sequence, entry, pair - sequence * a.dim, start, end, task - pair * states);
        }
    }
}

}  // namespace causal_conv1d
}  // namespace causeway
