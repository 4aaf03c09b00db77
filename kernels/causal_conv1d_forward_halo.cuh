// The first outputs of a slice of a sequence, where rows with seq_idx go on from GPU to GPU.
//
//   y[t]     0 ≤ t < width-1     of taps that reach into the halo: the last width-1 positions of the slice before, with their indices
//
// An index may come back after another one. Then positions with different indices each see the halo elements of their own index, but
// initial states have a single index. So the slice is computed without the halo, and this kernel recomputes its first positions;
// `initial_states` of its call is the halo. A sum takes its taps in the order that it has in every kernel, so y has the bits of a row
// that is not cut. A slice has 2 · (width-1) positions at least.
//
// Cost: a thread for each output, with width loads. They are few, and latency is what it takes.
//
//   struct Tile {
//       static constexpr int threads = 128;
//   };
#pragma once
#include "causal_conv1d_forward.cuh"

namespace causeway {
namespace causal_conv1d {

template <class Problem, class Tile>
CAUSEWAY_DEVICE void forward_halo(const ForwardHaloArguments& arguments, u32 block = block_index<0>()) {
    using X = typename Problem::X;
    using Weight = typename Problem::Weight;
    const ForwardArguments& a = arguments.call;
    const i64 states = a.width - 1;
    for (i64 task = (i64)block * Tile::threads + thread_index(); task < a.batch * a.dim * states; task += (i64)Tile::threads * a.blocks) {
        const i64 row = task / states, t = task - row * states, entry = row / a.dim, channel = row - entry * a.dim;
        const i32* indices = at<i32>(a.seq_idx, entry * a.seq_idx_strides.first);
        const auto index_at = [&](i64 position) { return (i32)load<4>(indices + position * a.seq_idx_strides.second).word[0]; };
        const i32 index = index_at(t);
        float pre = Problem::bias ? load_element(at<Weight>(a.bias, channel * a.bias_stride)) : 0.0f;
#pragma unroll 1
        for (i64 w = 0; w <= states; ++w) {
            const i64 from = t - states + w;
            const i32 own = from < 0 ? halo_index(arguments.halo, entry, from, a.width) : index_at(from);
            if (own != index) continue;
            const X* value = from < 0 ? at<X>(a.initial_states, offset_of(a.initial_strides, entry, channel, from + states))
                                      : at<X>(a.x, offset_of(a.x_strides, entry, channel, from));
            const i64 tap = channel * a.weight_strides.first + w * a.weight_strides.second;
            pre = multiply_add(load_element(at<Weight>(a.weight, tap)), load_element(value), pre);
        }
        float result = index < 0 ? 0.0f : activate<Problem>(pre);
        if constexpr (Problem::residual) {
            result = add_rn(result, load_element(at<X>(a.residual, offset_of(a.residual_strides, entry, channel, t))));
        }
        store_element(at<X>(a.y, offset_of(a.y_strides, entry, channel, t)), result);
    }
}

}  // namespace causal_conv1d
}  // namespace causeway
