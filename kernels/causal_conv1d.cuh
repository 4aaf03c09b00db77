// What forward and backward of the causal depthwise conv1d share: strides, activation, and which positions belong
// to which sequence.
//
// Kernels take a `Problem`, the class of calls that one compilation serves:
//
//   struct Problem {
//       using X = bf16;                          element type of x, y, states, residual: float, f16 or bf16
//       using Weight = float;                    element type of weight and bias
//       static constexpr int width = 4;          taps per channel
//       static constexpr bool silu = true;       activation
//       static constexpr bool bias, initial_states, final_states, seq_idx, residual;     which arguments are there
//       static constexpr int cu_seqlens = 0;     bytes of a boundary: 0 (none), 4 or 8
//   };
#pragma once
#include "vector.cuh"

namespace causeway {
namespace causal_conv1d {

// Distance between neighbours along each logical axis, in elements.
struct Strides3 { i64 batch, dim, seqlen; };
struct Strides2 { i64 first, second; };

// Quotients by a number that is known before the launch, for dividends below 2^31: one wide multiplication.
struct Divisor {
    u32 value, multiplier, shift;
    CAUSEWAY_DEVICE u32 quotient(u32 dividend) const { return (u32)(((u64)dividend * multiplier) >> shift); }
};

template <typename T> CAUSEWAY_DEVICE T minimum(T a, T b) { return a < b ? a : b; }
template <typename T> CAUSEWAY_DEVICE T maximum(T a, T b) { return a > b ? a : b; }

// The address of element `offset` of an array of T.
template <typename T> CAUSEWAY_DEVICE const T* at(const void* base, i64 offset) { return (const T*)base + offset; }
template <typename T> CAUSEWAY_DEVICE T* at(void* base, i64 offset) { return (T*)base + offset; }

// ---- activation ----------------------------------------------------------------------------------------------------

constexpr float LOG2_E = 1.4426950408889634f;

// z · sigmoid(z) for a result that is rounded to 16 bits: two special-function instructions and three more.
// The exponent's argument is rounded once, so the relative error grows to |z| · 2^-24 for negative z: below 2^-17
// wherever f16 or bf16 have a normal result. Below z = -87.3, where |result| < 2^-119, it is -0.
CAUSEWAY_DEVICE float silu_16bit(float z) {
    return z * reciprocal_fast(1.0f + exp2_fast(z * -LOG2_E));
}

// z · sigmoid(z) for an f32 result.
//
// With e = exp(-|z|):  z / (1 + e)  for z ≥ 0,  z · e / (1 + e)  else; neither overflows. The part of -|z| · log2(e)
// that rounding drops is put back to first order, and the reciprocal gets one Newton step. Where e would be
// subnormal it is carried with a factor of 2^64.
CAUSEWAY_DEVICE float silu_f32(float z) {
    constexpr float LOG2_E_LOW = 1.925963033500e-8f, LN_2 = 0.693147180559945f;
    const float magnitude = z < 0.0f ? -z : z;
    const float a = magnitude < 256.0f ? magnitude : 256.0f;
    const float exponent = a * -LOG2_E;
    const float dropped = multiply_add(a, -LOG2_E_LOW, multiply_add(a, -LOG2_E, -exponent));
    const bool small = exponent < -100.0f;
    const float power = exp2_fast(small ? exponent + 64.0f : exponent);
    const float e = multiply_add(power, dropped * LN_2, power);
    const float denominator = 1.0f + e;  // small: e · 2^64 is below 2^-36 and vanishes here too
    const float estimate = reciprocal_fast(denominator);
    const float inverse = multiply_add(estimate, multiply_add(-denominator, estimate, 1.0f), estimate);
    const float numerator = z < 0.0f ? z * e : z;
    const float scale = z < 0.0f && small ? 5.421010862427522e-20f : 1.0f;  // 2^-64
    return numerator * inverse * scale;
}

template <class Problem> CAUSEWAY_DEVICE float activate(float pre) {
    if constexpr (!Problem::silu) {
        return pre;
    } else if constexpr (SAME<typename Problem::X, float>) {
        return silu_f32(pre);
    } else {
        return silu_16bit(pre);
    }
}

// ---- sequences -----------------------------------------------------------------------------------------------------

// The sequence that a position belongs to.
template <typename Index> struct Span {
    Index sequence, start, end;
};

// The boundaries of a packed row. Whatever they hold, sequence numbers stay in 0 … sequences-1 and boundaries in
// 0 … seqlen: values are clamped as they are read.
template <int Bytes, typename Index> struct Boundaries {
    const void* values;
    i64 stride;
    Index sequences, seqlen;

    CAUSEWAY_DEVICE Index operator[](Index i) const {
        if constexpr (Bytes == 8) {
            const Packet<8> p = load<8>(at<i64>(values, i * stride));
            const i64 value = (i64)((u64)p.word[1] << 32 | p.word[0]);
            return (Index)minimum<i64>(maximum<i64>(value, 0), seqlen);
        } else {
            const i32 value = (i32)load<4>(at<i32>(values, i * stride)).word[0];
            return (Index)minimum<i64>(maximum<i64>(value, 0), seqlen);
        }
    }

    // The last sequence that starts at or before `position`. There is at least one sequence.
    CAUSEWAY_DEVICE Span<Index> find(Index position) const {
        Index low = 0, high = sequences;
        while (high - low > 1) {
            const Index middle = low + (high - low) / 2;
            if ((*this)[middle] <= position) {
                low = middle;
            } else {
                high = middle;
            }
        }
        return {low, (*this)[low], (*this)[low + 1]};
    }

    // Moves on to the sequence of a later position.
    CAUSEWAY_DEVICE void advance(Span<Index>& span, Index position) const {
        while (position >= span.end && span.sequence + 1 < sequences) {
            ++span.sequence;
            span.start = span.end;
            span.end = (*this)[span.sequence + 1];
        }
    }
};

// The entry along a batch axis that a block serves: axes 1 and 2 of the grid together, since neither reaches far
// enough alone.
CAUSEWAY_DEVICE i64 layered_block(u32 per_layer) { return (i64)block_index<2>() * per_layer + block_index<1>(); }

// ---- parameters of a channel ---------------------------------------------------------------------------------------

// Weight and bias of `Channels` neighbouring channels. `Bytes` is the access that is legal for a run of
// Channels · width weights, or 0 when they do not lie side by side.
template <class Problem, int Channels, int Bytes>
CAUSEWAY_DEVICE void load_parameters(const void* weight, Strides2 strides, const void* bias, i64 bias_stride,
                                     i64 channel, float (&taps)[Channels][Problem::width],
                                     float (&start)[Channels]) {
    using Weight = typename Problem::Weight;
    constexpr int WIDTH = Problem::width;
    const Weight* first = at<Weight>(weight, channel * strides.first);
    if constexpr (Bytes > 0) {
        float run[Channels * WIDTH];
        load_run<Weight, Bytes>(first, run);
#pragma unroll
        for (int c = 0; c < Channels; ++c) {
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) taps[c][w] = run[c * WIDTH + w];
        }
    } else {
#pragma unroll
        for (int c = 0; c < Channels; ++c) {
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) {
                taps[c][w] = load_element(first + c * strides.first + w * strides.second);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < Channels; ++c) {
        start[c] = Problem::bias ? load_element(at<Weight>(bias, (channel + c) * bias_stride)) : 0.0f;
    }
}

}  // namespace causal_conv1d
}  // namespace causeway
