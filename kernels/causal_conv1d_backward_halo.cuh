// The gradient of initial_states, sent to another GPU.
//
//   dinitial_states[n, c, k] = Σ_{u ≤ k} weight[c, k-u] · g[u]      0 ≤ k < width-1
//
// Where GPUs have one slice of a sequence each, initial_states are the end of the slice before, and their gradient belongs to the GPU that
// has it. It follows from the first width-1 positions, so it is sent ahead of the backward pass of the slice, which the other GPU then need
// not wait for. A slice has width-1 positions at least: dfinal_states do not come into it.
//
// Cost: an element takes at most width-1 gradients, each with a load of dy and of width taps; they are few, and latency is what it takes.
#pragma once
#include "causal_conv1d_backward.cuh"
#include "message.cuh"

namespace causeway {
namespace causal_conv1d {

// `Tile` is that of message.cuh.
template <class Problem, class Tile> CAUSEWAY_DEVICE void backward_halo(const HaloArguments& a) {
    using X = typename Problem::X;
    const BackwardArguments& call = a.call;
    const int width = Problem::width ? Problem::width : call.width;
    send_message<Tile>(a.message, [&](const Place& place) {
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
