// What forward and backward of the causal depthwise conv1d share: the activation, and which sequence a
// position belongs to.
//
// Kernels take a `Problem`, the class of calls that one compilation serves:
//
//   struct Problem {
//       using X = bf16;                          element type of x, y, states, residual: float, f16 or bf16
//       using Weight = float;                    element type of weight and bias
//       static constexpr int width = 4;          taps per channel
//       static constexpr bool silu = true;       activation
//       static constexpr bool bias, initial_states, final_states, seq_idx, residual, B, C;   which arguments are there
//       static constexpr bool round_products;    products with B and C are rounded to X
//       static constexpr bool norm;              what the activation gives is divided by the norm of its head
//       static constexpr int cu_seqlens = 0;     bytes of an element of cu_seqlens: 4 or 8; 0: not given; EVEN: see there
//   };
#pragma once
#include "arguments.cuh"
#include "vector.cuh"

namespace causeway {
namespace causal_conv1d {

// dividend / divisor.value, with one wide multiplication. Dividends are below 2^31.
template <class Divisor> CAUSEWAY_DEVICE u32 quotient(u32 dividend, const Divisor& divisor) {
    return (u32)(((u64)dividend * divisor.multiplier) >> divisor.shift);
}

template <typename T> CAUSEWAY_DEVICE T minimum(T a, T b) { return a < b ? a : b; }
template <typename T> CAUSEWAY_DEVICE T maximum(T a, T b) { return a > b ? a : b; }

// The address of element `offset` of an array of T.
template <typename T> CAUSEWAY_DEVICE const T* at(const void* base, i64 offset) { return (const T*)base + offset; }
template <typename T> CAUSEWAY_DEVICE T* at(void* base, i64 offset) { return (T*)base + offset; }

// Element offset by strides along (batch or sequence, dim, seqlen or position).
template <class Strides> CAUSEWAY_DEVICE i64 offset_of(const Strides& strides, i64 entry, i64 channel, i64 position) {
    return entry * strides.batch + channel * strides.dim + position * strides.seqlen;
}

// ---- activation ----------------------------------------------------------------------------------------------------

constexpr float LOG2_E = 1.4426950408889634f;

// z · sigmoid(z) for a result that is rounded to 16 bits: two special-function instructions and three more.
// The exponent's argument is rounded once, so the relative error grows to |z| · 2^-24 for negative z: below 2^-17
// wherever f16 or bf16 have a normal result. Below z = -87.3, where |result| < 2^-119, it is -0.
CAUSEWAY_DEVICE float silu_16bit(float z) {
    return z * reciprocal_fast(1.0f + exp2_fast(z * -LOG2_E));
}

// z · sigmoid(z) for an f32 result, within 3 units in the last place of the true value for this z.
//
// The special-function unit's exponential alone would use up those 3 units, so this is a polynomial:
// -z = n·ln 2 + r with |r| ≤ ln 2 / 2, t = exp(r) - 1, and 1 + exp(-z) = (1 + 2^n) + 2^n·t is rounded once. The
// reciprocal gets one Newton step. n stays in -126 … 127; at 127 the reciprocal is subnormal and becomes 0, so results
// below z = -87.3, where |result| < 2^-119, are -0. 18 instructions and one special-function instruction.
CAUSEWAY_DEVICE float silu_f32(float z) {
    constexpr float LN_2_HIGH = 0.693145751953125f, LN_2_LOW = 1.42860682030941723e-6f;
    constexpr float ROUND = 12582912.0f;  // 1.5 · 2^23: adding it leaves the nearest integer in the low bits
    const float a = clamp(-z, -87.3f, 88.02f);
    const float shifted = multiply_add(a, LOG2_E, ROUND);
    const float n = shifted - ROUND;
    const float r = multiply_add(n, -LN_2_LOW, multiply_add(n, -LN_2_HIGH, a));
    float t = 1.38145359e-3f;
    t = multiply_add(t, r, 8.36874545e-3f);
    t = multiply_add(t, r, 4.16683927e-2f);
    t = multiply_add(t, r, 1.66665211e-1f);
    t = multiply_add(t, r, 4.9999994e-1f);
    t = multiply_add(t, r, 1.0f) * r;
    const float power = as_float(as_bits(shifted) * 0x00800000u + 0x3f800000u);  // 2^n: n into the exponent's bits
    const float denominator = multiply_add(power, t, 1.0f + power);
    const float estimate = reciprocal_fast(denominator);
    const float inverse = multiply_add(estimate, multiply_add(-denominator, estimate, 1.0f), estimate);
    return z * inverse;
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

// ---- gates ---------------------------------------------------------------------------------------------------------
// y = C ⊙ act(conv(B ⊙ x)): what taps read, and what the activation gives, are multiplied as they pass.

// The value as a separate kernel would have stored it: rounded to X if `round_products`, else unchanged.
template <class Problem> CAUSEWAY_DEVICE float kept(float value) {
    using X = typename Problem::X;
    if constexpr (!Problem::round_products || SAME<X, float>) {
        return value;
    } else {
        const float values[1] = {value};
        return element<X, 0>(pack<X, (int)sizeof(X)>(values));
    }
}

// A gate's factor times a value.
template <class Problem> CAUSEWAY_DEVICE float gated(float factor, float value) {
    return kept<Problem>(multiply_rn(factor, value));
}

// What the activation gives, times its gate, if there is one.
template <class Problem> CAUSEWAY_DEVICE float activate_gated(float pre, float factor) {
    if constexpr (!Problem::C) {
        return activate<Problem>(pre);
    } else {
        return gated<Problem>(factor, kept<Problem>(activate<Problem>(pre)));
    }
}

// ---- norms ---------------------------------------------------------------------------------------------------------
// y = scale · u / √(Σ u² + eps) of u = act(pre), over the channels of each head.


// The sum of a number of each lane of the wave, in every lane; all lanes take part.
CAUSEWAY_DEVICE float add_over_wave(float value) {
#pragma unroll
    for (u32 distance = WAVE_SIZE / 2; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
    return value;
}

// Squares are added as a tree, neighbouring channels first, whatever a thread has of a head: so every kernel that has all of it in a
// wave gives y the same bits.

// a² + b² of neighbours.
CAUSEWAY_DEVICE float add_squares(float a, float b) { return multiply_add(b, b, multiply_rn(a, a)); }

// Σ u² over the channels that a thread has of a head; it has more than one, a power of two.
template <int Channels> CAUSEWAY_DEVICE float squares_of_thread(const float (&u)[Channels]) {
    float sums[Channels];
#pragma unroll
    for (int c = 0; c < Channels; c += 2) sums[c] = add_squares(u[c], u[c + 1]);
#pragma unroll
    for (int step = 2; step < Channels; step *= 2) {
#pragma unroll
        for (int c = 0; c + step < Channels; c += 2 * step) sums[c] += sums[c + step];
    }
    return sums[0];
}

// Σ u² over the channels of a head, of which `Lanes` threads side by side have `Channels` each, in every thread; all lanes of the
// wave take part. Both are powers of two.
template <int Lanes, int Channels> CAUSEWAY_DEVICE float squares_of_head(const float (&u)[Channels]) {
    float sum;
    u32 distance = 1;
    if constexpr (Channels > 1) {
        sum = squares_of_thread(u);
    } else if constexpr (Lanes > 1) {
        const float other = shuffle_xor(u[0], 1);
        const bool is_second = lane_index() % 2 != 0;
        sum = add_squares(is_second ? other : u[0], is_second ? u[0] : other);
        distance = 2;
    } else {
        sum = multiply_rn(u[0], u[0]);
    }
#pragma unroll
    for (; distance < (u32)Lanes; distance *= 2) sum += shuffle_xor(sum, distance);
    return sum;
}

// Adds `Count` numbers of a thread over the `Lanes` threads side by side that have a head, lanes that are neighbours first. Both are powers
// of two. While a lane has several numbers it keeps half of them and passes on the others, so that several sums take little more steps than
// one; then lanes hold different sums, HELD each, and what is made of a sum is made by few of them. All lanes of the
// wave take part.
template <int Lanes, int Count> struct SumsOfHead {
    static_assert((Lanes & (Lanes - 1)) == 0 && (Count & (Count - 1)) == 0, "powers of two");
    static constexpr CAUSEWAY_DEVICE int splits() {
        int k = 0;
        while ((2 << k) <= Lanes && (2 << k) <= Count) ++k;
        return k;
    }
    static constexpr int SPLITS = splits(), HELD = Count >> SPLITS;

    // The sums that a lane holds are in numbers[0 … HELD-1]: those from number first() on.
    static CAUSEWAY_DEVICE void add(float (&numbers)[Count]) {
#pragma unroll
        for (int k = 0; k < SPLITS; ++k) {
            const int half = Count >> (k + 1);
            const bool upper = is_upper(k);
#pragma unroll
            for (int i = 0; i < half; ++i) {
                const float low = numbers[i], high = numbers[half + i];
                numbers[i] = (upper ? high : low) + shuffle_xor(upper ? low : high, 1u << k);
            }
        }
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
#pragma unroll
            for (u32 distance = 1u << SPLITS; distance < (u32)Lanes; distance *= 2) numbers[i] += shuffle_xor(numbers[i], distance);
        }
    }

    // Whether a lane kept the upper half in step k.
    static CAUSEWAY_DEVICE bool is_upper(int k) { return (lane_index() & (1u << k)) != 0; }

    static CAUSEWAY_DEVICE u32 first() {
        u32 number = 0;
#pragma unroll
        for (int k = 0; k < SPLITS; ++k) number += is_upper(k) ? Count >> (k + 1) : 0;
        return number;
    }

    // Number i, in every lane, of what lanes hold.
    static CAUSEWAY_DEVICE float get(const float (&numbers)[Count], int i) {
        u32 lane = 0;
#pragma unroll
        for (int k = 0; k < SPLITS; ++k) lane |= (i & (Count >> (k + 1))) != 0 ? 1u << k : 0;
        const u32 held = as_bits(numbers[i & (HELD - 1)]);
        if constexpr (SPLITS == 0) return as_float(held);
        return as_float(shuffle_from<Lanes>(held, lane));
    }
};

// What u is multiplied with, from Σ u².
template <class Norm> CAUSEWAY_DEVICE float factor_of_head(float squares, const Norm& norm) {
    return as_float(norm.scale) * inverse_root(squares + as_float(norm.eps));
}

// Divides the channels that a thread has of a head by its norm.
template <int Lanes, int Channels, class Norm> CAUSEWAY_DEVICE void divide_by_norm(float (&u)[Channels], const Norm& norm) {
    const float factor = factor_of_head(squares_of_head<Lanes>(u), norm);
#pragma unroll
    for (int c = 0; c < Channels; ++c) u[c] *= factor;
}

// A head at one position, which a wave has, of any number of channels: lane l has channels l, l + WAVE_SIZE, … The first
// KEPT · WAVE_SIZE of them, 256 or more, are computed once and added as above; the others are computed twice.
template <class Norm, class ValueOf, class Write>
CAUSEWAY_DEVICE void divide_by_wave(const Norm& norm, const ValueOf& u_of, const Write& write) {
    constexpr int KEPT = 8;
    const i64 lane = lane_index();
    const auto read = [&](i64 first, float (&u)[KEPT]) {
#pragma unroll
        for (int k = 0; k < KEPT; ++k) {
            const i64 c = first + lane + k * (i64)WAVE_SIZE;
            u[k] = c < norm.head_dim ? u_of(c) : 0.0f;
        }
        float sums[KEPT];
#pragma unroll
        for (int k = 0; k < KEPT; ++k) {
            const float one[1] = {u[k]};
            sums[k] = squares_of_head<(int)WAVE_SIZE>(one);
        }
#pragma unroll
        for (int step = 1; step < KEPT; step *= 2) {
#pragma unroll
            for (int k = 0; k < KEPT; k += 2 * step) sums[k] += sums[k + step];
        }
        return sums[0];
    };
    float kept[KEPT], others[KEPT];
    float squares = read(0, kept);
#pragma unroll 1
    for (i64 first = KEPT * (i64)WAVE_SIZE; first < norm.head_dim; first += KEPT * (i64)WAVE_SIZE) squares += read(first, others);
    const float factor = factor_of_head(squares, norm);
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        const i64 c = lane + k * (i64)WAVE_SIZE;
        if (c < norm.head_dim) write(c, kept[k] * factor);
    }
#pragma unroll 1
    for (i64 c = lane + KEPT * (i64)WAVE_SIZE; c < norm.head_dim; c += WAVE_SIZE) write(c, u_of(c) * factor);
}

// ---- sequences -----------------------------------------------------------------------------------------------------

// The sequence that a position belongs to.
template <typename Index> struct Span {
    Index sequence, start, end;
};

// In place of the bytes of an element: there is no cu_seqlens, and the entries of a batch, one after the other in memory, are taken as
// one entry that holds sequences of equal length. So positions are shared out without regard to where entries end.
constexpr int EVEN = 1;

// cu_seqlens: the boundaries of the packed sequences. Values are clamped to 0 … seqlen as they are read, so no content of that
// memory leads an access astray. Sequence numbers stay in 0 … sequences-1.
template <int Bytes, typename Index> struct Boundaries {
    const void* values;
    i64 stride;  // EVEN: the length of a sequence
    Index sequences, seqlen;

    CAUSEWAY_DEVICE Index operator[](Index i) const {
        if constexpr (Bytes == EVEN) {
            return (Index)minimum<i64>(i * stride, seqlen);
        } else if constexpr (Bytes == 8) {
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
        if constexpr (Bytes == EVEN) {
            const Index number = minimum<Index>(position / (Index)stride, sequences - 1);
            return {number, (*this)[number], (*this)[number + 1]};
        }
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

    // The same for one position that all lanes pass: a search in which every round reads one boundary per lane.
    CAUSEWAY_DEVICE Span<Index> find_by_wave(Index position) const {
        const Index lane = (Index)lane_index(), wave = (Index)WAVE_SIZE;
        if (sequences < wave) {
            // All boundaries at once.
            const Index own = (*this)[minimum(lane, sequences)];
            const Index low = maximum<Index>((Index)wave_count(lane < sequences && own <= position), 1) - 1;
            return {low, (Index)shuffle((u32)own, (u32)low), (Index)shuffle((u32)own, (u32)low + 1)};
        }
        Index low = 0, count = sequences;
        while (count > 1) {
            const Index step = (count + wave - 1) / wave, probe = lane * step;
            const bool at_or_before = probe < count && (*this)[low + probe] <= position;
            const Index passed = maximum<Index>((Index)wave_count(at_or_before), 1) - 1;
            low += passed * step;
            count = minimum(step, count - passed * step);
        }
        return {low, (*this)[low], (*this)[low + 1]};
    }

    // Moves on to the sequence of a later position.
    CAUSEWAY_DEVICE void advance(Span<Index>& span, Index position) const {
        while (position >= span.end && next(span)) {}
    }

    // Moves on to the next sequence, if there is one.
    CAUSEWAY_DEVICE bool next(Span<Index>& span) const {
        if (span.sequence + 1 >= sequences) return false;
        ++span.sequence;
        span.start = span.end;
        span.end = (*this)[span.sequence + 1];
        return true;
    }
};

// The batch entry, or sequence, that a block serves. Grid axes 1 and 2 count it together: each alone ends at 65,535.
CAUSEWAY_DEVICE i64 layered_block(u32 per_layer) { return (i64)block_index<2>() * per_layer + block_index<1>(); }

// ---- parameters of a channel ---------------------------------------------------------------------------------------

// Weight and bias of `Channels` neighbouring channels. `Bytes` is the widest legal access to their Channels · width weights,
// or 0 where these are not contiguous.
template <class Problem, int Channels, int Bytes>
CAUSEWAY_DEVICE void load_parameters(const void* weight, Strides2 strides, const void* bias, i64 bias_stride,
                                     i64 channel, float (&weights)[Channels][Problem::width],
                                     float (&biases)[Channels]) {
    using Weight = typename Problem::Weight;
    constexpr int WIDTH = Problem::width;
    const Weight* first = at<Weight>(weight, channel * strides.first);
    if constexpr (Bytes > 0) {
        float run[Channels * WIDTH];
        load_run<Weight, Bytes>(first, run);
#pragma unroll
        for (int c = 0; c < Channels; ++c) {
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) weights[c][w] = run[c * WIDTH + w];
        }
    } else {
#pragma unroll
        for (int c = 0; c < Channels; ++c) {
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) {
                weights[c][w] = load_element(first + c * strides.first + w * strides.second);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < Channels; ++c) {
        biases[c] = Problem::bias ? load_element(at<Weight>(bias, (channel + c) * bias_stride)) : 0.0f;
    }
}

// The index of a position of a halo, -(width-1) … -1.
template <class Halo> CAUSEWAY_DEVICE i32 halo_index(const Halo& halo, i64 entry, i64 position, i64 width) {
    const i64 offset = entry * halo.strides.first + (width - 1 + position) * halo.strides.second;
    return (i32)load<4>(halo.indices + offset).word[0];
}

}  // namespace causal_conv1d
}  // namespace causeway
