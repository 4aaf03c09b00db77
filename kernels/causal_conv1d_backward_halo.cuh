// Gradients at the beginning of a slice of a sequence, where rows go on from GPU to GPU.
//
//   dinitial_states[n, c, k] = Σ_{u ≤ k} weight[c, k-u] · g[u]      0 ≤ k < width-1
//
// **backward_halo.** Where GPUs have one slice of a sequence each, initial_states are the end of the slice before, its *halo*, and their
// gradient belongs to the GPU that has it. It follows from the first width-1 positions, so it is sent ahead of the backward pass of the
// slice, which the other GPU then need not wait for. A slice has width-1 positions at least: dfinal_states do not come into it.
//
// **backward_after_halo.** Rows with seq_idx have a halo with indices of its own (Tile::indexed; causal_conv1d_forward_halo.cuh). The
// backward pass of a slice computes it without the halo, and this computes dx[t] for t < width-1 again, and adds to dweight and
// dbias what g[t] gives with the halo, less what it gives without. A slice has 2 · (width-1) positions at least. Sums take the order that they
// have in every kernel, so dx has the bits of a row that is not cut, but for rows that a channel-last kernel adds in two parts.
//
// Cost: an element takes at most width-1 gradients, each with a load of dy and of width taps; they are few, and latency is what it takes.
#pragma once
#include "causal_conv1d_backward.cuh"
#include "message.cuh"

namespace causeway {
namespace causal_conv1d {

// What tap j of a position reads, and whether it counts. Halo: positions before the first one are the halo's, not nothing.
template <class Problem, bool Halo>
CAUSEWAY_DEVICE bool tap_after_halo(const BackwardArguments& a, const HaloIndices& halo, i64 entry, i64 channel, i64 position, i32 index,
                                     int j, float& value) {
    using X = typename Problem::X;
    const i64 from = position - j;
    if (from < 0 && !Halo) return false;
    const i32 own = from < 0 ? halo_index(halo, entry, from, a.width) : position_index<Problem>(a, entry, from);
    if (own != index) return false;
    value = from < 0 ? read<X>(a.initial_states, entry, channel, a.width - 1 + from) : read<X>(a.x, entry, channel, from);
    return true;
}

// g at a position.
template <class Problem, bool Halo>
CAUSEWAY_DEVICE float gradient_after_halo(const BackwardArguments& a, const HaloIndices& halo, i64 entry, i64 channel, i64 position) {
    const i32 index = position_index<Problem>(a, entry, position);
    if (index < 0) return 0.0f;
    float pre = read_bias<Problem>(a, channel);
    if constexpr (Problem::silu) {
#pragma unroll 1
        for (int j = 0; j < a.width; ++j) {
            float value;
            if (!tap_after_halo<Problem, Halo>(a, halo, entry, channel, position, index, j, value)) continue;
            pre = multiply_add(read_weight<Problem>(a, channel, j), value, pre);
        }
    }
    return activation_gradient<Problem::silu>(pre, read<typename Problem::X>(a.dy, entry, channel, position));
}

// The gradient of an element of the halo (position < 0), or dx of one of the first positions.
template <class Problem>
CAUSEWAY_DEVICE float input_gradient_after_halo(const BackwardArguments& a, const HaloIndices& halo, i64 entry, i64 channel, i64 position) {
    const i32 index = position < 0 ? halo_index(halo, entry, position, a.width) : position_index<Problem>(a, entry, position);
    float sum = 0.0f;
    if (index < 0) return sum;
#pragma unroll 1
    for (int j = position < 0 ? (int)-position : 0; j < a.width; ++j) {
        if (position_index<Problem>(a, entry, position + j) != index) continue;
        const float g = gradient_after_halo<Problem, true>(a, halo, entry, channel, position + j);
        sum = multiply_add(read_weight<Problem>(a, channel, j), g, sum);
    }
    return sum;
}

// What the first positions give to dweight of tap j, or to dbias for j = width.
template <class Problem, bool Halo>
CAUSEWAY_DEVICE float sum_after_halo(const BackwardArguments& a, const HaloIndices& halo, i64 channel, int j) {
    float sum = 0.0f;
#pragma unroll 1
    for (i64 entry = 0; entry < a.batch; ++entry) {
#pragma unroll 1
        for (i64 t = 0; t < a.width - 1; ++t) {
            const i32 index = position_index<Problem>(a, entry, t);
            float value = 1.0f;
            if (index < 0 || (j < a.width && !tap_after_halo<Problem, Halo>(a, halo, entry, channel, t, index, j, value))) continue;
            sum = multiply_add(gradient_after_halo<Problem, Halo>(a, halo, entry, channel, t), value, sum);
        }
    }
    return sum;
}

//   struct Tile {
//       static constexpr int threads = 128;
//   };
template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_after_halo(const HaloArguments& arguments, u32 block = block_index<0>()) {
    using X = typename Problem::X;
    using DWeight = typename Problem::DWeight;
    const BackwardArguments& a = arguments.call;
    const HaloIndices& halo = arguments.halo;
    const i64 states = a.width - 1, positions = a.batch * a.dim * states, sums = a.dim * (a.width + Problem::dbias);
    const i64 threads = (i64)Tile::threads * a.sum_blocks;
    for (i64 task = (i64)block * Tile::threads + thread_index(); task < positions + sums; task += threads) {
        if (task < positions) {
            const i64 row = task / states, t = task - row * states, entry = row / a.dim, channel = row - entry * a.dim;
            write<X>(a.dx, entry, channel, t, input_gradient_after_halo<Problem>(a, halo, entry, channel, t));
            continue;
        }
        const i64 sum = task - positions, channel = sum % a.dim;
        const int j = (int)(sum / a.dim);
        const float with = sum_after_halo<Problem, true>(a, halo, channel, j), without = sum_after_halo<Problem, false>(a, halo, channel, j);
        // Equal ones may be infinite.
        if (with == without) continue;
        const i64 offset = j < a.width ? channel * a.dweight_strides.first + (a.width - 1 - j) * a.dweight_strides.second
                                       : channel * a.dbias_stride;
        DWeight* const total = (DWeight*)(j < a.width ? a.dweight : a.dbias) + offset;
        store_element(total, load_element(total) + (with - without));
    }
}

// `Tile` is that of message.cuh, and whether the halo is `indexed`.
template <class Problem, class Tile> CAUSEWAY_DEVICE void backward_halo(const HaloArguments& a) {
    using X = typename Problem::X;
    const BackwardArguments& call = a.call;
    const int width = width_of<Problem>(call);
    send_message<Tile, !Tile::indexed>(a.message, [&](const Place& place) {
        if constexpr (Tile::indexed) {
            const i64 position = (i64)place.position - (width - 1);
            const float sum[1] = {input_gradient_after_halo<Problem>(call, a.halo, place.batch, place.channel, position)};
            return pack<X, (int)sizeof(X)>(sum);
        }
        const Span<i64> sequence = {place.batch, 0, call.seqlen};
        const i32 first = position_index<Problem>(call, place.batch, 0);
        float sum[1] = {0.0f};
#pragma unroll 1
        for (int u = 0; u <= (int)place.position; ++u) {
            // No tap of another position can reach initial_states.
            const bool reached = position_index<Problem>(call, place.batch, u) == first;
            const float g = reached ? gradient_at<Problem>(call, sequence, place.batch, place.channel, u) : 0.0f;
            sum[0] = multiply_add(read_weight<Problem>(call, place.channel, width - 1 - ((int)place.position - u)), g, sum[0]);
        }
        return pack<X, (int)sizeof(X)>(sum);
    });
}

}  // namespace causal_conv1d
}  // namespace causeway
