// A matrix instruction for the simulator: lanes exchange elements as the unit's register layout says where they are.
#pragma once
#include "gemm.cuh"

namespace causeway {
namespace gemm {

// sums += left · rightᵀ over 16 terms. Unit::lane_of and word_of say where element (outer, term) of a fragment is; the
// word may depend on the sum and the term alone, since all lanes pass on the same one. Terms are added in order: a
// real unit's order is its own.
template <class Unit, typename T>
void emulated_product(const typename Unit::Fragment& left, const typename Unit::Fragment& right,
                      float (&sums)[Unit::SUMS]) {
    for (int term = 0; term < 16; term += 2) {
        for (int i = 0; i < Unit::SUMS; ++i) {
            const int row = Unit::row(i), column = Unit::column(i);
            const u32 a = shuffle(left.word[Unit::word_of(row, term)], (u32)Unit::lane_of(row, term));
            const u32 b = shuffle(right.word[Unit::word_of(column, term)], (u32)Unit::lane_of(column, term));
            const Packet<4> factors{{a}}, others{{b}};
            sums[i] = multiply_add(element<T, 0>(factors), element<T, 0>(others), sums[i]);
            sums[i] = multiply_add(element<T, 1>(factors), element<T, 1>(others), sums[i]);
        }
    }
}

}  // namespace gemm
}  // namespace causeway
