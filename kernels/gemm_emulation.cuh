// A matrix instruction for the simulator: lanes exchange elements as the unit's register layout says where they are.
#pragma once
#include "gemm.cuh"

namespace causeway {
namespace gemm {

// gfx90a's instructions for f16 and bf16 take subnormal operands, the sums among them, as zeros, and give subnormal
// results as zeros. The simulator defines CAUSEWAY_UNITS_FLUSH for that device.
#if defined(CAUSEWAY_UNITS_FLUSH)
constexpr bool UNITS_FLUSH = true;
#else
constexpr bool UNITS_FLUSH = false;
#endif

// `value`, or a zero of its sign if its magnitude is below the smallest normal number of T.
template <typename T> float flushed(float value) {
    constexpr u32 SMALLEST = SAME<T, f16> ? 0x38800000u : 0x00800000u;  // 2^-14, 2^-126
    const u32 bits = as_bits(value);
    return (bits & 0x7fffffffu) < SMALLEST ? as_float(bits & 0x80000000u) : value;
}

// sums += left · rightᵀ over 16 terms. Unit::lane_of and word_of say where element (outer, term) of a fragment is; the
// word may depend on the sum and the term alone, since all lanes pass on the same one. Terms are added in order: a
// real unit's order is its own. One that flushes is documented to do so at its operands and its results, and not what it
// does in between, so every sum is flushed here.
template <class Unit, typename T, bool Flushes = false>
void emulated_product(const typename Unit::Fragment& left, const typename Unit::Fragment& right,
                      float (&sums)[Unit::SUMS]) {
    for (int term = 0; term < 16; term += 2) {
        u32 a = 0, b = 0;
        for (int i = 0; i < Unit::SUMS; ++i) {
            // A sum in the same row or column as the last one has its factor already. All lanes agree about that.
            const int row = Unit::row(i), column = Unit::column(i);
            if (i == 0 || row != Unit::row(i - 1)) {
                a = shuffle(left.word[Unit::word_of(row, term)], (u32)Unit::lane_of(row, term));
            }
            if (i == 0 || column != Unit::column(i - 1)) {
                b = shuffle(right.word[Unit::word_of(column, term)], (u32)Unit::lane_of(column, term));
            }
            const Packet<4> factors{{a}}, others{{b}};
            float left_terms[2] = {element<T, 0>(factors), element<T, 1>(factors)};
            float right_terms[2] = {element<T, 0>(others), element<T, 1>(others)};
            for (int k = 0; k < 2; ++k) {
                if constexpr (Flushes) {
                    left_terms[k] = flushed<T>(left_terms[k]);
                    right_terms[k] = flushed<T>(right_terms[k]);
                    sums[i] = flushed<float>(sums[i]);
                }
                sums[i] = multiply_add(left_terms[k], right_terms[k], sums[i]);
                if constexpr (Flushes) sums[i] = flushed<float>(sums[i]);
            }
        }
    }
}

}  // namespace gemm
}  // namespace causeway
