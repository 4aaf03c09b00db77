// Matrix products whose every bit is fixed: one chain of f32 fused multiply-adds per output, in increasing order of the
// reduction, rounded once.
//
//   sum = +0;  for r in 0 … reduction - 1: sum = fma(left[i,r], right[r,j], sum);  result[i,j] = round(sum)
//
// Lanes lie across outputs, never along the reduction: each sum is one register of one thread from beginning to end.
// Tiling decides which thread that is and when it adds, but not what.
//
//   shared memory, two buffers of each operand as f32                a thread's outputs, for size 128
//
//           ◄──── size ────►                                            x4       x4 + 64
//     r0    o0 o1 o2 o3 …                                        y4   ┌ 4×4 ┐   ┌ 4×4 ┐
//     r1    o0 o1 o2 o3 …      depth = 2048 / size terms              └─────┘   └─────┘      threads lie 16 × 16
//     …                                                     y4 + 64   ┌ 4×4 ┐   ┌ 4×4 ┐
//                                                                     └─────┘   └─────┘
//
// A tile of an operand is 256 chunks, one per thread. It is widened to f32 on the way to shared memory, once instead of
// at each of its `size` uses, and the next one is on its way from global memory meanwhile.
//
// Terms past the end of the reduction are (+0) · (-0): adding -0 changes no sum, not even one that is -0.
//
// Where devices could differ: the sum of a NaN has no fixed bits, so a NaN is made canonical as it is rounded; nothing is
// flushed to zero, which the compilers' options leave as it is; no product and sum are contracted, since both are one
// call of multiply_add.
//
// Cost per term of 64 outputs, size 128: 64 fused multiply-adds, 4 accesses to 16 bytes of shared memory.
// Global memory: size · reduction elements of each operand per tile.
#pragma once
#include "gemm.cuh"

namespace causeway {
namespace gemm {

constexpr int EXACT_THREADS = 256;

// The operand's tile in shared memory: rows of terms, columns of outer positions. `at` is a byte offset.
//
// Where lines run along the reduction, lanes that hold different chunks of a line would write to the same bank. So columns are
// swizzled in blocks, and the 32 stores of a wave go to 32 banks.
template <int Size, bool AlongReduction> struct ExactTile {
    static constexpr int DEPTH = EXACT_THREADS * CHUNK / Size;
    static constexpr u32 BYTES = Size * DEPTH * 4;

    static constexpr CAUSEWAY_DEVICE int swizzle(int term) {
        return AlongReduction ? term / CHUNK * (32 / (DEPTH / CHUNK)) : 0;
    }

    static CAUSEWAY_DEVICE u32 at(u32 base, int term, int outer) {
        return base + (u32)(term * Size + (outer ^ swizzle(term))) * 4;
    }
};

// One thread's chunk of each of an operand's tiles. `Padding` has the bits of two terms past the end.
template <typename T, int Size, bool AlongReduction, int Bytes, u32 Padding> class ExactChunk {
    using Tile = ExactTile<Size, AlongReduction>;
    static constexpr int PER_LINE = (AlongReduction ? Tile::DEPTH : Size) / CHUNK;

public:
    CAUSEWAY_DEVICE ExactChunk(const Operand& operand, i64 first_outer, i64 outer_size) {
        const i64 outer = first_outer + (AlongReduction ? line() : position());
        const i64 term = AlongReduction ? position() : line();
        address_ = element_address(operand.data, outer * operand.outer_stride + term * operand.reduction_stride);
        outer_count_ = AlongReduction ? (outer < outer_size ? CHUNK : 0) : chunk_count(outer_size - outer);
    }

    // Reads the chunk of the next tile, of which `terms` terms exist (no need to count more than a tile has).
    CAUSEWAY_DEVICE void fetch(const Operand& operand, int terms) {
        const int exist = terms - (AlongReduction ? position() : line());
        const int along = AlongReduction ? chunk_count(exist) : exist > 0 ? CHUNK : 0;
        // One of the two is either a whole chunk or nothing.
        const int count = along < outer_count_ ? along : outer_count_;
        const i64 stride = AlongReduction ? operand.reduction_stride : operand.outer_stride;
        chunk_ = load_chunk<Bytes>(address_, stride, count, Padding);
        address_ += operand.reduction_stride * (Tile::DEPTH * 2);
    }

    // Puts what was fetched into a tile.
    CAUSEWAY_DEVICE void store(u32 base) const {
        float values[CHUNK];
        unpack<T>(chunk_, values);
        if constexpr (AlongReduction) {
#pragma unroll
            for (int i = 0; i < CHUNK; ++i) {
                store_shared<4>(Tile::at(base, position() + i, line()), Packet<4>{{as_bits(values[i])}});
            }
        } else {
#pragma unroll
            for (int i = 0; i < CHUNK; i += 4) {
                const Packet<16> four = {
                    {as_bits(values[i]), as_bits(values[i + 1]), as_bits(values[i + 2]), as_bits(values[i + 3])}};
                store_shared<16>(Tile::at(base, line(), position() + i), four);
            }
        }
    }

private:
    static CAUSEWAY_DEVICE int line() { return (int)thread_index() / PER_LINE; }
    static CAUSEWAY_DEVICE int position() { return (int)thread_index() % PER_LINE * CHUNK; }

    const char* address_;
    int outer_count_;
    Packet<16> chunk_;
};

// `Problem`: the type T of the elements, and of each operand how its chunks lie.
//
//   struct Problem {
//       using T = causeway::f16;
//       static constexpr bool left_along_reduction = true;   else along the outer axis
//       static constexpr int left_bytes = 16;                of an access; 2 for any stride
//       static constexpr bool right_along_reduction = false;
//       static constexpr int right_bytes = 16;
//       static constexpr int result_bytes = 8;               of an access; 2 for any stride
//   };
//   struct Tile { static constexpr int size = 128; };        outputs along each axis: 128, 64 or 32
template <class Problem, class Tile> CAUSEWAY_DEVICE void exact(const Arguments& a) {
    using T = typename Problem::T;
    constexpr int SIZE = Tile::size;
    using LeftTile = ExactTile<SIZE, Problem::left_along_reduction>;
    using RightTile = ExactTile<SIZE, Problem::right_along_reduction>;
    constexpr int DEPTH = LeftTile::DEPTH;
    // Each thread has EACH × EACH outputs: GROUPS × GROUPS squares of RUN × RUN.
    constexpr int EACH = SIZE / 16, RUN = EACH < 4 ? EACH : 4, GROUPS = EACH / RUN, APART = SIZE / GROUPS;
    constexpr u32 BYTES = LeftTile::BYTES, RIGHT = 2 * BYTES;
    constexpr u32 NEGATIVE_ZEROS = 0x80008000u;

    TileOrigin origin;
    if (!tile_origin<SIZE, SIZE>(a, tile_index(a), origin)) return;
    ExactChunk<T, SIZE, Problem::left_along_reduction, Problem::left_bytes, 0> left(a.left, origin.row, a.rows);
    ExactChunk<T, SIZE, Problem::right_along_reduction, Problem::right_bytes, NEGATIVE_ZEROS> right(
        a.right, origin.column, a.columns);

    // A wave's 32 threads (or each half of 64) lie 8 across and 4 down: 12 different accesses for 32 threads.
    const int thread = (int)thread_index();
    const int across = ((thread & 7) | (thread >> 5 & 1) << 3) * RUN;
    const int down = ((thread >> 3 & 3) | (thread >> 6) << 2) * RUN;

    float sums[EACH][EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
#pragma unroll
        for (int j = 0; j < EACH; ++j) sums[i][j] = 0.0f;
    }

    const int terms = a.reduction < DEPTH ? (int)a.reduction : DEPTH;
    left.fetch(a.left, terms);
    right.fetch(a.right, terms);
    left.store(0);
    right.store(RIGHT);
    block_barrier();
    u32 buffer = 0;
    for (i64 ahead = a.reduction - DEPTH; ahead > -DEPTH; ahead -= DEPTH) {
        if (ahead > 0) {
            const int terms = ahead < DEPTH ? (int)ahead : DEPTH;
            left.fetch(a.left, terms);
            right.fetch(a.right, terms);
        }
        // Unrolled, its addresses would take the registers that the sums leave.
#pragma unroll 1
        for (int first = 0; first < DEPTH; first += CHUNK) {
            const u32 rows_at = LeftTile::at(buffer, first, down);
            const u32 columns_at = RightTile::at(RIGHT + buffer, first, across);
#pragma unroll
            for (int term = 0; term < CHUNK; ++term) {
                float factors[EACH], others[EACH];
#pragma unroll
                for (int group = 0; group < GROUPS; ++group) {
                    const u32 offset = (u32)(term * SIZE + group * APART) * 4;
                    const Packet<RUN * 4> some = load_shared<RUN * 4>(rows_at + offset);
                    const Packet<RUN * 4> more_of = load_shared<RUN * 4>(columns_at + offset);
#pragma unroll
                    for (int i = 0; i < RUN; ++i) {
                        factors[group * RUN + i] = as_float(some.word[i]);
                        others[group * RUN + i] = as_float(more_of.word[i]);
                    }
                }
#pragma unroll
                for (int i = 0; i < EACH; ++i) {
#pragma unroll
                    for (int j = 0; j < EACH; ++j) sums[i][j] = multiply_add(factors[i], others[j], sums[i][j]);
                }
            }
        }
        if (ahead > 0) {
            buffer ^= BYTES;
            left.store(buffer);
            right.store(RIGHT + buffer);
            block_barrier();
        }
    }

#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i64 row = origin.row + down + i / RUN * APART + i % RUN;
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            const i64 column = origin.column + across + group * APART;
            u32 words[RUN / 2];
#pragma unroll
            for (int j = 0; j < RUN / 2; ++j) {
                words[j] = result_pair<T>(sums[i][group * RUN + 2 * j], sums[i][group * RUN + 2 * j + 1]);
            }
            const i64 exist = row < a.rows ? a.columns - column : 0;
            store_results<Problem::result_bytes>(a, row, column, words, exist < RUN ? (int)exist : RUN);
        }
    }
}

}  // namespace gemm
}  // namespace causeway
