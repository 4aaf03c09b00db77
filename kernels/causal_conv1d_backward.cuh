// What the backward kernels share, and the gradient of initial_states.
//
//   pre[t]       = bias + Σ_j weight[width-1-j] · x[t-j]        recomputed, never stored
//   g[t]         = dy[t] · act'(pre[t])
//   dx[t]        = Σ_j weight[width-1-j] · g[t+j]  (+ dfinal_states at the last width-1 positions of a sequence)
//   dweight[width-1-j] = Σ_t g[t] · x[t-j]         dbias = Σ_t g[t]
//
// With gates B ⊙ x stands for x and C ⊙ dy for dy; the sum above is d(B ⊙ x), of which dx = B ⊙ d(B ⊙ x), dB = x ⊙ d(B ⊙ x),
// and dC = dy ⊙ act(pre). With a norm, the gradient of act(pre) stands for dy.
//
// Here and below j = 0 … width-1 counts positions back from an output: *tap j* of position t reads x[t-j] with
// weight[width-1-j]. Arrays of weights in registers are in this order: weight[j] is the weight of tap j.
//
//   causal_conv1d_backward_channel_last.cuh    stride 1 along dim: a thread walks down a segment of rows
//   causal_conv1d_backward_tiles_last.cuh      the same for large calls, plain or gated: blocks take tiles side by side
//   causal_conv1d_backward_short_last.cuh      the same where a call is small: a thread has few rows, all in registers
//   causal_conv1d_backward_channel_first.cuh   stride 1 along seqlen: a wave walks a row from its end
//   causal_conv1d_backward_tiles_first.cuh     the same for plain calls of long rows: more waves, fewer registers
//   causal_conv1d_backward_flat_first.cuh      the same for plain calls of short rows: a wave walks one row after the other
//   causal_conv1d_backward_short_first.cuh     the same where a call is small: a packet per thread
//   causal_conv1d_backward_rows_first.cuh      the same for many short rows: threads lie across rows side by side
//   causal_conv1d_backward_general.cuh         any strides, any width
//
// Each writes dx, dweight and dbias in one launch. Sums over positions that several blocks share go through the
// workspace in a fixed order (reduction.cuh), so results do not depend on which block runs first. The last blocks of
// the grid write dinitial_states (below). causal_conv1d_backward_halo.cuh computes those alone, and sends them to another GPU.
#pragma once
#include "causal_conv1d.cuh"
#include "reduction.cuh"

namespace causeway {
namespace causal_conv1d {

// Backward kernels take a `Problem` as causal_conv1d.cuh describes it, with these members besides:
//
//   using DWeight = float;                    element type of dweight and dbias
//   static constexpr bool dbias, dinitial_states, dfinal_states, dB, dC;
//
// and width 0 where the width is in the arguments.
template <class Problem> constexpr bool PACKED = Problem::cu_seqlens != 0;

// Sums of a channel: dweight of each tap, then dbias.
template <class Problem> constexpr int SUMS_OF = Problem::dbias ? Problem::width + 1 : Problem::width;

template <class Problem> CAUSEWAY_DEVICE int width_of(const BackwardArguments& a) {
    return Problem::width ? Problem::width : a.width;
}

// Element offset in a view, in 64 bits.
CAUSEWAY_DEVICE i64 offset_of(const Memory& view, i64 entry, i64 channel, i64 position) {
    return entry * view.entry + channel * view.channel + position * view.position;
}

template <typename T> CAUSEWAY_DEVICE float read(const Memory& view, i64 entry, i64 channel, i64 position) {
    return load_element((const T*)view.data + offset_of(view, entry, channel, position));
}

template <typename T> CAUSEWAY_DEVICE void write(const Memory& view, i64 entry, i64 channel, i64 position, float value) {
    store_element((T*)view.data + offset_of(view, entry, channel, position), value);
}

// Weight of tap j of a channel.
template <class Problem>
CAUSEWAY_DEVICE float read_weight(const BackwardArguments& a, i64 channel, int j) {
    const i64 offset = channel * a.weight_strides.first + (a.width - 1 - j) * a.weight_strides.second;
    return load_element((const typename Problem::Weight*)a.weight + offset);
}

template <class Problem> CAUSEWAY_DEVICE float read_bias(const BackwardArguments& a, i64 channel) {
    if constexpr (!Problem::bias) return 0.0f;
    return load_element((const typename Problem::Weight*)a.bias + channel * a.bias_stride);
}

// Sum j of a channel: dweight of tap j, or dbias for j = width.
template <class Problem>
CAUSEWAY_DEVICE void write_sum(const BackwardArguments& a, i64 channel, int j, float sum) {
    using DWeight = typename Problem::DWeight;
    if (j < a.width) {
        const i64 offset = channel * a.dweight_strides.first + (a.width - 1 - j) * a.dweight_strides.second;
        store_element((DWeight*)a.dweight + offset, sum);
    } else if constexpr (Problem::dbias) {
        store_element((DWeight*)a.dbias + channel * a.dbias_stride, sum);
    }
}

// A channel's weights, weight[j] of tap j, and its bias.
template <class Problem, int WeightBytes>
CAUSEWAY_DEVICE void load_weights(const BackwardArguments& a, i64 channel, float (&weight)[Problem::width], float& bias) {
    constexpr int WIDTH = Problem::width;
    float weights[1][WIDTH], biases[1];
    load_parameters<Problem, 1, WeightBytes>(a.weight, a.weight_strides, a.bias, a.bias_stride, channel,
                                             weights, biases);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) weight[j] = weights[0][WIDTH - 1 - j];
    bias = biases[0];
}

// Adds and writes the sums of a group of channels: over the lanes of a wave; over the `Waves` waves that a block has for a channel, by way
// of shared memory at `at`; and, where `parts` blocks share the group (Split), over those. `channel` is this wave's.
template <class Problem, int Channels, int Waves, bool Split>
CAUSEWAY_DEVICE void write_channel_sums(const BackwardArguments& a, const float (&sums)[Problem::width + 1], u32 at,
                                        u32 group, u32 part, i64 channel) {
    constexpr int SUMS = SUMS_OF<Problem>, TOGETHER = SUMS < 8 ? SUMS : 8;
    float addends[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) addends[j] = sums[j];
    int index;
    const float sum = wave_sums(addends, index);
    if constexpr (Waves == 1 && !Split && SUMS <= 8) {
        if (index < SUMS && channel < a.dim) write_sum<Problem>(a, channel, index, sum);
    } else {
        const u32 own = at + thread_index() / WAVE_SIZE * SUMS * 4;
        if (index < TOGETHER) write_shared(own + index * 4, sum);
        if constexpr (SUMS > TOGETHER) {
            // The ninth sum: dbias at width 8.
            const float last[1] = {sums[SUMS - 1]};
            const float last_sum = wave_sums(last, index);
            if (index == 0) write_shared(own + TOGETHER * 4, last_sum);
        }
        block_barrier();
        const auto block_sum = [at](int i) {
            const int c = i / SUMS, j = i - c * SUMS;
            float all = 0.0f;
#pragma unroll
            for (int w = 0; w < Waves; ++w) all += read_shared(at + ((c * Waves + w) * SUMS + j) * 4);
            return all;
        };
        const auto total = [&](int i, float value) {
            const i64 c = (i64)group * Channels + i / SUMS;
            if (c < a.dim) write_sum<Problem>(a, c, i % SUMS, value);
        };
        if constexpr (Split) {
            constexpr int THREADS = Channels * Waves * (int)WAVE_SIZE;
            sum_over_blocks<THREADS, 1>(
                a, group, part, Channels * SUMS, at + Channels * Waves * SUMS * 4,
                [&](int i, float (&value)[1]) { value[0] = block_sum(i); },
                [&](int i, const float (&value)[1]) { total(i, value[0]); });
        } else {
            const int i = (int)thread_index();
            if (i < Channels * SUMS) total(i, block_sum(i));
        }
    }
}

// dy · act'(pre).
template <bool Silu> CAUSEWAY_DEVICE float activation_gradient(float pre, float dy) {
    if constexpr (!Silu) return dy;
    // act' = s · (1 + pre · (1 - s)) with s = sigmoid(pre).
    const float s = reciprocal_fast(1.0f + exp2_fast(pre * -LOG2_E));
    const float scaled = dy * s;
    return multiply_add(scaled, multiply_add(-pre, s, pre), scaled);
}

// ---- where sequences begin and end ---------------------------------------------------------------------------------

template <class Problem, typename Index>
CAUSEWAY_DEVICE Boundaries<Problem::cu_seqlens, Index> boundaries(const BackwardArguments& a) {
    const i64 stride = Problem::cu_seqlens == EVEN ? (i64)a.length : a.cu_seqlens_stride;
    return {a.cu_seqlens, stride, (Index)a.sequences, (Index)a.seqlen};
}

// Sequence number `sequence`, which may be empty.
template <class Problem> CAUSEWAY_DEVICE Span<i64> sequence_number(const BackwardArguments& a, i64 sequence) {
    if constexpr (!PACKED<Problem>) {
        return {sequence, 0, a.seqlen};
    } else {
        const auto bounds = boundaries<Problem, i64>(a);
        const i64 start = bounds[sequence];
        return {sequence, start, maximum(start, bounds[sequence + 1])};
    }
}

// The sequence that holds a position of a row. Start and end enclose the position even where cu_seqlens does not
// ascend from 0 to seqlen, so that what is derived from them stays within the tensors.
template <class Problem, typename Index>
CAUSEWAY_DEVICE Span<Index> sequence_at(const BackwardArguments& a, Index entry, Index position) {
    if constexpr (!PACKED<Problem>) {
        return {entry, 0, (Index)a.seqlen};
    } else {
        Span<Index> span = boundaries<Problem, Index>(a).find(position);
        span.start = minimum(span.start, position);
        span.end = maximum(span.end, position + 1);
        return span;
    }
}

// The index that a position carries; 0 where there is no seq_idx.
template <class Problem>
CAUSEWAY_DEVICE i32 position_index(const BackwardArguments& a, i64 entry, i64 position) {
    if constexpr (!Problem::seq_idx) return 0;
    return (i32)load<4>(a.seq_idx + entry * a.seq_idx_strides.first + position * a.seq_idx_strides.second).word[0];
}

// Loads what tap j of a position reads; zero if the tap is masked. `index` is the position's index. The loads of several taps
// are in flight together.
template <class Problem>
CAUSEWAY_DEVICE Packet<sizeof(typename Problem::X)> load_tap(const BackwardArguments& a, const Span<i64>& sequence, i64 entry,
                                                             i64 channel, i64 position, i32 index, int j) {
    using X = typename Problem::X;
    const int width = width_of<Problem>(a);
    const i64 from = position - j;
    const bool inside = from >= sequence.start;
    const bool counts = index >= 0 && position_index<Problem>(a, entry, maximum(from, sequence.start)) == index;
    const X* address = (const X*)a.x.data + offset_of(a.x, entry, channel, from);
    if constexpr (Problem::initial_states) {
        const i64 state = width - 1 + from - sequence.start;
        if (!inside) address = (const X*)a.initial_states.data + offset_of(a.initial_states, sequence.sequence, channel, state);
    }
    return load_if<sizeof(X)>(counts && (inside || Problem::initial_states), address);
}

// What tap j of a position reads, times the gate of x if it is a position of x.
template <class Problem>
CAUSEWAY_DEVICE float gated_tap(const BackwardArguments& a, const Span<i64>& sequence, i64 entry, i64 channel, i64 position,
                                i32 index, int j, float value) {
    if constexpr (Problem::B) {
        const i64 from = position - j;
        const bool counts = index >= 0 && from >= sequence.start && position_index<Problem>(a, entry, from) == index;
        if (counts) value = gated<Problem>(read<typename Problem::X>(a.b, entry, channel, from), value);
    }
    return value;
}

// Whether g is made of the sum that forward has, which adds the oldest tap first. dC is always; g has the sum that it has without
// gates, newest first, where products are rounded as by separate kernels.
template <class Problem> inline constexpr bool FORWARD_ORDER = Problem::dC && !Problem::round_products;

// What taps read of a packet of x: x times its gate.
template <class Problem, int Bytes, int Count>
CAUSEWAY_DEVICE void unpack_product(const Packet<Bytes>& x, const Packet<Bytes>& b, float (&values)[Count]) {
    using X = typename Problem::X;
    float factors[Count];
    unpack<X>(x, values);
    unpack<X>(b, factors);
#pragma unroll
    for (int c = 0; c < Count; ++c) values[c] = gated<Problem>(factors[c], values[c]);
}

// dx and dB of a packet, from the gradient of the product and what it was made of.
template <class Problem, int Bytes, int Count>
CAUSEWAY_DEVICE void gradients_of_factors(const float (&sum)[Count], const Packet<Bytes>& x, const Packet<Bytes>& b, float (&dx)[Count],
                                          float (&db)[Count]) {
    using X = typename Problem::X;
    unpack<X>(x, db);
    unpack<X>(b, dx);
#pragma unroll
    for (int c = 0; c < Count; ++c) {
        const float product = kept<Problem>(sum[c]);
        db[c] = multiply_rn(db[c], product);
        dx[c] = multiply_rn(dx[c], product);
    }
}

// g of an element of dy with its gate, from the sum of its taps, newest first, and from that of forward's order, which dC is made of.
template <class Problem>
CAUSEWAY_DEVICE float gated_gradient(float pre, float forward_pre, float dy, float gate, float& dc) {
    if constexpr (Problem::dC) dc = multiply_rn(dy, kept<Problem>(activate<Problem>(forward_pre)));
    if constexpr (FORWARD_ORDER<Problem>) pre = forward_pre;
    return activation_gradient<Problem::silu>(pre, gated<Problem>(gate, dy));
}

// pre at a position: newest tap first, or OldestFirst as forward adds it.
template <class Problem, bool OldestFirst = FORWARD_ORDER<Problem>>
CAUSEWAY_DEVICE float pre_at(const BackwardArguments& a, const Span<i64>& sequence, i64 entry, i64 channel, i64 position,
                             i32 index) {
    using X = typename Problem::X;
    const int width = width_of<Problem>(a);
    float pre = read_bias<Problem>(a, channel);
#pragma unroll 1
    for (int i = 0; i < width; ++i) {
        const int j = OldestFirst ? width - 1 - i : i;
        const Packet<sizeof(X)> tap = load_tap<Problem>(a, sequence, entry, channel, position, index, j);
        const float value = gated_tap<Problem>(a, sequence, entry, channel, position, index, j, element<X, 0>(tap));
        pre = multiply_add(read_weight<Problem>(a, channel, j), value, pre);
    }
    return pre;
}

// g at a position of a call with gates.
template <class Problem>
CAUSEWAY_DEVICE float gated_gradient_at(const BackwardArguments& a, const Span<i64>& sequence, i64 entry, i64 channel,
                                        i64 position) {
    using X = typename Problem::X;
    const i32 index = position_index<Problem>(a, entry, position);
    if (index < 0) return 0.0f;
    float pre = 0.0f, dy = read<X>(a.dy, entry, channel, position);
    if constexpr (Problem::C) dy = gated<Problem>(read<X>(a.c, entry, channel, position), dy);
    if constexpr (Problem::silu) pre = pre_at<Problem>(a, sequence, entry, channel, position, index);
    return activation_gradient<Problem::silu>(pre, dy);
}

// ---- norms ---------------------------------------------------------------------------------------------------------
//
//   n = u · r,  r = 1 / √(Σ u² + eps)        du = scale · r · (dy - n · Σ dy·n)        sums over the channels of a head

// A head at a position: r, and Σ dy·n.
struct HeadAt {
    float inverse, projection;

    // g of a channel of it.
    template <class Problem> CAUSEWAY_DEVICE float gradient(const BackwardArguments& a, float pre, float dy) const {
        const float n = activate<Problem>(pre) * inverse;
        return activation_gradient<Problem::silu>(pre, as_float(a.norm.scale) * inverse * (dy - n * projection));
    }
};

// Adds two numbers over the lanes of a group, in every lane. Even lanes add the one and odd lanes the other, in half the steps.
template <int Lanes> CAUSEWAY_DEVICE void add_within(float& one, float& other) {
    if constexpr (Lanes > 1) {
        const auto of = [](float value, u32 distance) { return as_float(shuffle_within<Lanes>(as_bits(value), distance)); };
        const bool odd = lane_index() % 2 != 0;
        float own = (odd ? other : one) + of(odd ? one : other, 1);
#pragma unroll
        for (u32 distance = 2; distance < (u32)Lanes; distance *= 2) own += of(own, distance);
        const float theirs = of(own, 1);
        one = odd ? theirs : own;
        other = odd ? own : theirs;
    }
}

// The head that starts at channel `first`, at a position that is no padding: by all lanes of a wave together, or by one thread.
template <class Problem, bool ByWave>
CAUSEWAY_DEVICE HeadAt head_at(const BackwardArguments& a, const Span<i64>& sequence, i64 entry, i64 first, i64 position,
                               i32 index) {
    float squares = 0.0f, projection = 0.0f;
    for (i64 c = ByWave ? lane_index() : 0; c < a.norm.head_dim; c += ByWave ? WAVE_SIZE : 1) {
        const float u = activate<Problem>(pre_at<Problem>(a, sequence, entry, first + c, position, index));
        squares = multiply_add(u, u, squares);
        projection = multiply_add(read<typename Problem::X>(a.dy, entry, first + c, position), u, projection);
    }
    if constexpr (ByWave) {
        squares = add_over_wave(squares);
        projection = add_over_wave(projection);
    }
    const float inverse = inverse_root(squares + as_float(a.norm.eps));
    return {inverse, projection * inverse};
}

// g at a position, computed from memory alone: for the few positions for which a kernel has no window in registers.
template <class Problem>
CAUSEWAY_DEVICE float gradient_at(const BackwardArguments& a, const Span<i64>& sequence, i64 entry, i64 channel,
                                  i64 position) {
    if constexpr (Problem::B || Problem::C) return gated_gradient_at<Problem>(a, sequence, entry, channel, position);
    using X = typename Problem::X;
    if constexpr (Problem::norm) {
        const i32 index = position_index<Problem>(a, entry, position);
        if (index < 0) return 0.0f;
        const HeadAt head = head_at<Problem, false>(a, sequence, entry, channel - channel % a.norm.head_dim, position, index);
        const float pre = pre_at<Problem>(a, sequence, entry, channel, position, index);
        return head.template gradient<Problem>(a, pre, read<X>(a.dy, entry, channel, position));
    }
    const i32 index = position_index<Problem>(a, entry, position);
    const i64 offset = offset_of(a.dy, entry, channel, position);
    const Packet<sizeof(X)> dy = load_if<sizeof(X)>(index >= 0, (const X*)a.dy.data + offset);
    float pre = 0.0f;
    if constexpr (Problem::silu && Problem::width != 0 && Problem::width <= 4) {
        pre = read_bias<Problem>(a, channel);
        Packet<sizeof(X)> taps[Problem::width];
#pragma unroll
        for (int j = 0; j < Problem::width; ++j) taps[j] = load_tap<Problem>(a, sequence, entry, channel, position, index, j);
#pragma unroll
        for (int j = 0; j < Problem::width; ++j) {
            pre = multiply_add(read_weight<Problem>(a, channel, j), element<X, 0>(taps[j]), pre);
        }
    } else if constexpr (Problem::silu) {
        pre = pre_at<Problem>(a, sequence, entry, channel, position, index);
    }
    return index < 0 ? 0.0f : activation_gradient<Problem::silu>(pre, element<X, 0>(dy));
}

// ---- dinitial_states -----------------------------------------------------------------------------------------------
//
//   dinitial_states[n, c, k] = Σ_{u ≤ k} weight[c, k-u] · g[start + u]     u < length of sequence n
//                            + dfinal_states[n, c, k - length]             where k ≥ length
//
// If the sequence begins with padding, its initial states are padding too, and all of this is 0.
//
// A group of Threads / (width-1) pairs (n, c) is a block's. Thread u · pairs + i first computes g at the u-th position of pair i,
// then element k = u of its result. Only positions with the index of the sequence's first one count: no other tap can
// reach initial_states. Cost: width + k multiply-adds per element, one read of each input.

template <class Problem, int Threads>
CAUSEWAY_DEVICE void initial_states_gradient(const BackwardArguments& a, i64 group) {
    using X = typename Problem::X;
    const int width = width_of<Problem>(a);
    const int states = width - 1;
    const int pairs = Threads / states;
    const int u = (int)thread_index() / pairs, i = (int)thread_index() - u * pairs;
    const i64 pair = group * pairs + i;
    const i64 all = a.sequences * a.dim;
    const bool active = u < states && pair < all;
    // Short divisions are faster.
    const i64 n = !active ? 0 : all < 0x80000000ll ? (i64)((u32)pair / (u32)a.dim) : pair / a.dim;
    const i64 c = active ? pair - n * a.dim : 0;
    Span<i64> sequence = {0, 0, 0};
    if (active) sequence = sequence_number<Problem>(a, n);
    const i64 length = sequence.end - sequence.start, entry = PACKED<Problem> ? 0 : n;

    float g = 0.0f;
    if (active && u < length) {
        const i64 position = sequence.start + u;
        const bool reached = position_index<Problem>(a, entry, position) == position_index<Problem>(a, entry, sequence.start);
        if (reached) g = gradient_at<Problem>(a, sequence, entry, c, position);
    }
    write_shared(thread_index() * 4, g);
    block_barrier();
    if (!active) return;

    float sum = 0.0f;
    const int k = u;
    for (int t = 0; t <= k && t < length; ++t) {
        const float weight = read_weight<Problem>(a, c, states - (k - t));
        sum = multiply_add(weight, read_shared((t * pairs + i) * 4), sum);
    }
    if constexpr (Problem::dfinal_states) {
        const bool padded = Problem::seq_idx && length > 0 && position_index<Problem>(a, entry, sequence.start) < 0;
        if (k >= length && !padded) sum += read<X>(a.dfinal_states, n, c, k - length);
    }
    write<X>(a.dinitial_states, n, c, k, sum);
}

// A block of a grid whose last blocks compute dinitial_states, and whose others run a kernel.
template <class Kernel, class Problem, int Threads> CAUSEWAY_DEVICE void run_or_states(const BackwardArguments& a, u32 block) {
    if constexpr (Problem::dinitial_states) {
        if (block >= a.sum_blocks) return initial_states_gradient<Problem, Threads>(a, block - a.sum_blocks);
    }
    Kernel(a).run(block);
}

}  // namespace causal_conv1d
}  // namespace causeway
