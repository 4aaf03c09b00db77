// The matrix instructions of RDNA: v_wmma_f32_16x16x16 in waves of 32, of two generations.
//
//   gfx11   fragment   outer l % 16, all 16 terms, in both halves of the wave
//                      word w: terms 2w and 2w + 1
//           sum i      row 2i + l / 16, column l % 16
//
//   gfx12   fragment   outer l % 16, terms 8 (l / 16) … + 7
//                      word w: terms 2w and 2w + 1 of those
//           sum i      row 8 (l / 16) + i, column l % 16
//
// Cost per fragment: two accesses of 16 bytes to shared memory on gfx11, one on gfx12.
#pragma once
#include "gemm_tile.cuh"
#if defined(CAUSEWAY_HOST)
#include "gemm_emulation.cuh"
#endif

namespace causeway {
namespace gemm {

template <typename T, int Generation> struct Wmma {
    static_assert(WAVE_SIZE == 32, "in waves of 64 the layout is another");
    static_assert(Generation == 11 || Generation == 12, "gfx11 or gfx12");
    static constexpr bool WHOLE_LINES = Generation == 11;
    static constexpr int SIZE = 16, SUMS = 8, WORDS = WHOLE_LINES ? 8 : 4;
    static constexpr bool LOADS_ALONG_OUTER = false, PAIRS = false, CHOOSES = false;
    struct Fragment { u32 word[WORDS]; };

    static CAUSEWAY_DEVICE int row(int sum) {
        const int half = (int)lane_index() / 16;
        return WHOLE_LINES ? sum * 2 + half : half * 8 + sum;
    }
    static CAUSEWAY_DEVICE int column(int) { return (int)lane_index() % 16; }

    template <int PerLine, bool AlongReduction> static CAUSEWAY_DEVICE Fragment load(u32 base, int outer, int term) {
        static_assert(AlongReduction, "lines run along the reduction");
        const int line = outer + (int)lane_index() % 16;
        const int chunk = term / CHUNK + (WHOLE_LINES ? 0 : (int)lane_index() / 16);
        Fragment f;
#pragma unroll
        for (int i = 0; i < WORDS / 4; ++i) {
            const Packet<16> packet = load_shared<16>(base + chunk_offset<PerLine>(line, chunk + i));
#pragma unroll
            for (int w = 0; w < 4; ++w) f.word[i * 4 + w] = packet.word[w];
        }
        return f;
    }

    static CAUSEWAY_DEVICE void multiply_add(const Fragment& left, const Fragment& right, float (&sums)[SUMS]) {
#if defined(CAUSEWAY_HOST)
        emulated_product<Wmma, T>(left, right, sums);
#elif defined(CAUSEWAY_AMD)
        typedef float Sums __attribute__((ext_vector_type(8)));
        Sums s;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) s[i] = sums[i];
        s = instruction(left, right, s);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = s[i];
#endif
    }

    static CAUSEWAY_DEVICE int lane_of(int outer, int term) { return outer + (WHOLE_LINES ? 0 : term / 8 * 16); }
    static CAUSEWAY_DEVICE int word_of(int, int term) { return (WHOLE_LINES ? term : term % 8) / 2; }

#if defined(CAUSEWAY_AMD)
private:
    template <typename Sums>
    static CAUSEWAY_DEVICE Sums instruction(const Fragment& left, const Fragment& right, Sums sums) {
        typedef _Float16 Halves __attribute__((ext_vector_type(WORDS * 2)));
        typedef short Integers __attribute__((ext_vector_type(WORDS * 2)));
        // Fragments have the size of the vectors; the compiler takes bf16 as integers.
#if defined(__GFX11__)
        if constexpr (SAME<T, f16>) {
            return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(Halves, left),
                                                              __builtin_bit_cast(Halves, right), sums);
        } else {
            return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(Integers, left),
                                                               __builtin_bit_cast(Integers, right), sums);
        }
#elif defined(__GFX12__)
        if constexpr (SAME<T, f16>) {
            return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(Halves, left),
                                                                    __builtin_bit_cast(Halves, right), sums);
        } else {
            return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(Integers, left),
                                                                     __builtin_bit_cast(Integers, right), sums);
        }
#endif
    }
#endif
};

}  // namespace gemm
}  // namespace causeway
