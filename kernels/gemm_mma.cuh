// NVIDIA's matrix instructions of a warp: mma.sync with m16n8k16 from sm_80 on, m16n8k8 (f16 only) on sm_75.
//
// A product of 16 × 16 × 16 is two instructions of m16n8k16, or four of m16n8k8. A fragment is four 8 × 8 matrices, as
// ldmatrix brings them; lane l holds elements (outer l / 4, terms 2 (l % 4) and the next) of each:
//
//                 terms 0-7   8-15                          columns 0-7      8-15
//   outer  0-7    word 0      word 2           rows  0-7    sums 0, 1        4, 5       row    l / 4
//          8-15   word 1      word 3                 8-15   sums 2, 3        6, 7       column 2 (l % 4) and the next
//
// Cost per fragment: one ldmatrix, 512 bytes of shared memory without bank conflicts.
#pragma once
#include "gemm_tile.cuh"
#if defined(CAUSEWAY_HOST)
#include "gemm_emulation.cuh"
#endif

namespace causeway {
namespace gemm {

template <typename T> struct Mma {
    static constexpr int SIZE = 16, SUMS = 8, WORDS = 4;
    static constexpr bool LOADS_ALONG_OUTER = true, PAIRS = true, CHOOSES = false;
    struct Fragment { u32 word[WORDS]; };

    static CAUSEWAY_DEVICE int row(int sum) { return (int)lane_index() / 4 + sum / 2 % 2 * 8; }
    static CAUSEWAY_DEVICE int column(int sum) { return sum / 4 * 8 + (int)lane_index() % 4 * 2 + sum % 2; }

    // Each lane gives the address of a row of 16 bytes: lanes 0-7 of the first matrix, 8-15 of the second, and so on.
    template <int PerLine, bool AlongReduction> static CAUSEWAY_DEVICE Fragment load(u32 base, int outer, int term) {
        const int lane = (int)lane_index();
        const int line = AlongReduction ? outer + lane % 16 : term + lane % 8 + lane / 16 * 8;
        const int chunk = AlongReduction ? term / CHUNK + lane / 16 : outer / CHUNK + lane / 8 % 2;
        return matrices<!AlongReduction>(base + chunk_offset<PerLine>(line, chunk));
    }

    static CAUSEWAY_DEVICE void multiply_add(const Fragment& left, const Fragment& right, float (&sums)[SUMS]) {
#if defined(CAUSEWAY_HOST)
        emulated_product<Mma, T>(left, right, sums);
#else
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float* const s = &sums[half * 4];
            instruction(left, right.word[half], right.word[2 + half], s[0], s[1], s[2], s[3]);
        }
#endif
    }

    // Where the emulation finds an element of a fragment.
    static CAUSEWAY_DEVICE int lane_of(int outer, int term) { return outer % 8 * 4 + term % 8 / 2; }
    static CAUSEWAY_DEVICE int word_of(int outer, int term) { return outer / 8 + term / 8 * 2; }

private:
    // Four matrices of 8 × 8; `address` is that of this lane's row. Transposed, lane l gets elements 2 (l % 4) and the
    // next of column l / 4 instead.
    template <bool Transposed> static CAUSEWAY_DEVICE Fragment matrices(u32 address) {
        Fragment f;
#if defined(CAUSEWAY_HOST)
        const u32 lane = lane_index();
        for (u32 i = 0; i < WORDS; ++i) {
            if constexpr (Transposed) {
                const u32 low = shuffle(address, i * 8 + lane % 4 * 2), high = shuffle(address, i * 8 + lane % 4 * 2 + 1);
                f.word[i] = load_shared<2>(low + lane / 4 * 2).word[0] | load_shared<2>(high + lane / 4 * 2).word[0] << 16;
            } else {
                f.word[i] = load_shared<4>(shuffle(address, i * 8 + lane / 4) + lane % 4 * 4).word[0];
            }
        }
#elif defined(CAUSEWAY_NVIDIA)
        const u32 from = (u32)__cvta_generic_to_shared(causeway_shared_memory) + address;
        if constexpr (Transposed) {
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(f.word[0]), "=r"(f.word[1]), "=r"(f.word[2]), "=r"(f.word[3])
                         : "r"(from)
                         : "memory");
        } else {
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(f.word[0]), "=r"(f.word[1]), "=r"(f.word[2]), "=r"(f.word[3])
                         : "r"(from)
                         : "memory");
        }
#endif
        return f;
    }

#if defined(CAUSEWAY_NVIDIA)
    // 16 × 8 sums += 16 × 16 left · 16 × 8 right.
    static CAUSEWAY_DEVICE void instruction(const Fragment& left, u32 right_low, u32 right_high, float& s0, float& s1,
                                            float& s2, float& s3) {
#if __CUDA_ARCH__ >= 800
        if constexpr (SAME<T, f16>) {
            asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                "{%0, %1, %2, %3};"
                : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
                : "r"(left.word[0]), "r"(left.word[1]), "r"(left.word[2]), "r"(left.word[3]), "r"(right_low),
                  "r"(right_high));
        } else {
            asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                "{%0, %1, %2, %3};"
                : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
                : "r"(left.word[0]), "r"(left.word[1]), "r"(left.word[2]), "r"(left.word[3]), "r"(right_low),
                  "r"(right_high));
        }
#else
        static_assert(SAME<T, f16>, "sm_75 multiplies f16 only");
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
            : "r"(left.word[0]), "r"(left.word[1]), "r"(right_low));
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
            : "r"(left.word[2]), "r"(left.word[3]), "r"(right_high));
#endif
    }
#endif
};

}  // namespace gemm
}  // namespace causeway
