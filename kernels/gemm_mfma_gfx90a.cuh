// The matrix units of gfx90a (MI200) for numbers of any size.
//
// There, the instructions for f16 and bf16 flush subnormal numbers to zero: operands, sums and results. Those for f32 flush
// nothing, at a quarter of the rate. gfx942 and gfx950 flush nothing and use gemm_mfma.cuh.
//
//   f16    Widened to f32, which is exact, for v_mfma_f32_32x32x2f32. Subnormal f16 are common: of normally distributed
//          weights with a deviation of 0.02, one in 400 is below 2^-14, so most fragments have some.
//   bf16   By the bf16 instructions, unless an element other than zero is below 2^-56. If none is, all are multiples of
//          2^-63, so products and sums, rounded or not, are multiples of 2^-126: zero or normal, and nothing is flushed.
//          A wave that meets a smaller element goes on as f16 does, to the end, since its sums may be subnormal now.
//
// Fragments and sums lie as in gemm_mfma.cuh. Instruction i of 8 takes term i of each lane: terms i and 8 + i.
//
// Cost per wave of 64 × 64 outputs and 16 terms, in clocks of its SIMD: 2048 by f32 instructions, 512 by bf16 ones. Looking
// at the fragments is 48 packed instructions, 192 clocks in which the matrix core may be busy with what came before.
#pragma once
#include "gemm_mfma.cuh"

namespace causeway {
namespace gemm {

// Products in f32.
template <typename T> struct MfmaF32 : Mfma<T> {
    using typename Mfma<T>::Fragment;
    using Mfma<T>::SUMS;

    static CAUSEWAY_DEVICE void multiply_add(const Fragment& left, const Fragment& right, float (&sums)[SUMS]) {
#if defined(CAUSEWAY_HOST)
        emulated_product<MfmaF32, T>(left, right, sums);
#else
        typedef float Sums __attribute__((ext_vector_type(SUMS)));
        Sums s;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) s[i] = sums[i];
#pragma unroll
        for (int w = 0; w < Mfma<T>::WORDS; ++w) {
            const Packet<4> factors{{left.word[w]}}, others{{right.word[w]}};
            s = __builtin_amdgcn_mfma_f32_32x32x2f32(element<T, 0>(factors), element<T, 0>(others), s, 0, 0, 0);
            s = __builtin_amdgcn_mfma_f32_32x32x2f32(element<T, 1>(factors), element<T, 1>(others), s, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = s[i];
#endif
    }
};

// Products of bf16, in f32 from where small elements are met.
struct MfmaBf16 : Mfma<bf16> {
    static constexpr bool CHOOSES = true;
    using Fast = Mfma<bf16>;
    using Any = MfmaF32<bf16>;

    // True if no element of this lane's is between zero and 2^-56.
    template <int Lefts, int Rights>
    static CAUSEWAY_DEVICE bool fits(const Fragment (&lefts)[Lefts], const Fragment (&rights)[Rights]) {
        Halves least = {0xffff, 0xffff};
#pragma unroll
        for (int i = 0; i < Lefts; ++i) least = smaller(least, lefts[i]);
#pragma unroll
        for (int i = 0; i < Rights; ++i) least = smaller(least, rights[i]);
        return least.x >= LEAST && least.y >= LEAST;
    }

private:
    typedef u16 Halves __attribute__((ext_vector_type(2)));
    static constexpr u16 LEAST = 2 * 0x2380 - 1;  // of 2^-56

    // Twice the magnitude's bits less one: in the order of magnitudes, but zeros are largest.
    static CAUSEWAY_DEVICE Halves smaller(Halves least, const Fragment& fragment) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            const Halves bits = __builtin_bit_cast(Halves, fragment.word[w]);
            least = __builtin_elementwise_min(least, bits + bits - (u16)1);
        }
        return least;
    }
};

}  // namespace gemm
}  // namespace causeway
