// The matrix instructions of CDNA (gfx90a, gfx942, gfx950): v_mfma_f32_32x32x8 in waves of 64.
//
// A product of 32 × 32 × 16 is two instructions. Lane l holds 8 terms of outer position l % 32, which it reads by one
// access of 16 bytes: terms 0-7 in the lower half of the wave, 8-15 in the upper. The first instruction takes the first
// four of each, the second the others: which term a lane calls its own is free, as long as both operands agree.
//
//   fragment   outer l % 32, terms 8 (l / 32) … + 7             sum i   row 8 (i / 4) + 4 (l / 32) + i % 4
//              word w: terms 2w and 2w + 1 of those                     column l % 32
//
// gfx90a's instructions flush subnormal numbers, so it has units of its own: gemm_mfma_gfx90a.cuh.
//
// Cost per fragment: one ds_read_b128, 1 KiB of shared memory.
#pragma once
#include "gemm_tile.cuh"
#if defined(CAUSEWAY_HOST)
#include "gemm_emulation.cuh"
#endif

namespace causeway {
namespace gemm {

template <typename T> struct Mfma {
    static_assert(WAVE_SIZE == 64, "CDNA has waves of 64");
    static constexpr int SIZE = 32, SUMS = 16, WORDS = 4;
    static constexpr bool LOADS_ALONG_OUTER = false, PAIRS = false, CHOOSES = false;
    struct Fragment { u32 word[WORDS]; };

    static CAUSEWAY_DEVICE int row(int sum) { return sum / 4 * 8 + (int)lane_index() / 32 * 4 + sum % 4; }
    static CAUSEWAY_DEVICE int column(int) { return (int)lane_index() % 32; }

    template <int PerLine, bool AlongReduction> static CAUSEWAY_DEVICE Fragment load(u32 base, int outer, int term) {
        static_assert(AlongReduction, "lines run along the reduction");
        const int lane = (int)lane_index();
        const Packet<16> chunk = load_shared<16>(base + chunk_offset<PerLine>(outer + lane % 32, term / CHUNK + lane / 32));
        return Fragment{{chunk.word[0], chunk.word[1], chunk.word[2], chunk.word[3]}};
    }

    static CAUSEWAY_DEVICE void multiply_add(const Fragment& left, const Fragment& right, float (&sums)[SUMS]) {
#if defined(CAUSEWAY_HOST)
        emulated_product<Mfma, T, UNITS_FLUSH>(left, right, sums);
#else
        typedef float Sums __attribute__((ext_vector_type(16)));
        Sums s;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) s[i] = sums[i];
        s = instruction(left.word[0], left.word[1], right.word[0], right.word[1], s);
        s = instruction(left.word[2], left.word[3], right.word[2], right.word[3], s);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = s[i];
#endif
    }

    static CAUSEWAY_DEVICE int lane_of(int outer, int term) { return outer + term / 8 * 32; }
    static CAUSEWAY_DEVICE int word_of(int, int term) { return term % 8 / 2; }

#if defined(CAUSEWAY_AMD)
private:
    template <typename Sums>
    static CAUSEWAY_DEVICE Sums instruction(u32 left_low, u32 left_high, u32 right_low, u32 right_high, Sums sums) {
        typedef u32 Words __attribute__((ext_vector_type(2)));
        const Words left = {left_low, left_high}, right = {right_low, right_high};
        if constexpr (SAME<T, f16>) {
            typedef _Float16 Halves __attribute__((ext_vector_type(4)));
            return __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(Halves, left), __builtin_bit_cast(Halves, right),
                                                        sums, 0, 0, 0);
        } else {
            typedef short Halves __attribute__((ext_vector_type(4)));
            return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(Halves, left),
                                                            __builtin_bit_cast(Halves, right), sums, 0, 0, 0);
        }
    }
#endif
};

}  // namespace gemm
}  // namespace causeway
