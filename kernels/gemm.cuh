// What the kernels of matrix products share: the problem's arguments, the order of tiles, and chunks of operands.
//
//   result[i,j] = Σ_r left[i,r] · right[r,j]          left (rows, reduction)   right (reduction, columns)
//
// C, grad_A and grad_B are all this product, with strides swapped where a matrix is transposed. Both operands are then
// alike: lines along the reduction, one per row of the result for left and one per column for right. That axis is
// called the outer one here.
//
//   memory             along the reduction            along the outer axis
//                      outer 0: r0 r1 r2 r3 …         r0: o0 o1 o2 o3 …
//                      outer 1: r0 r1 r2 r3 …         r1: o0 o1 o2 o3 …
//
// A chunk is 8 elements of an operand, 16 bytes, along the axis that is dense in memory; along either axis if none is.
// It is read by the widest accesses that are legal at its start, and one by one where it crosses the end of the axis.
#pragma once
#include "arguments.cuh"
#include "vector.cuh"

namespace causeway {
namespace gemm {

// Elements of a chunk.
constexpr int CHUNK = 8;

// ---- tiles ---------------------------------------------------------------------------------------------------------

// Where a block's tile begins.
struct TileOrigin {
    i64 row, column;
};

// Tiles are numbered band by band, where a band is BAND rows of tiles, and down each column of a band. So blocks that run at the
// same time read few different rows and columns, which stay in the cache. False if there is no such tile.
template <int Rows, int Columns> CAUSEWAY_DEVICE bool tile_origin(const Arguments& a, u64 tile, TileOrigin& origin) {
    constexpr u64 BAND = 8;
    const u64 down = ((u64)a.rows + Rows - 1) / Rows, across = ((u64)a.columns + Columns - 1) / Columns;
    if (tile >= down * across) return false;
    const u64 band = tile / (BAND * across), within = tile - band * (BAND * across);
    const u64 first = band * BAND, height = down - first < BAND ? down - first : BAND;
    const u64 column = within / height;
    origin.row = (i64)((first + within - column * height) * Rows);
    origin.column = (i64)(column * Columns);
    return true;
}

CAUSEWAY_DEVICE u64 tile_index(const Arguments& a) {
    return (u64)block_index<1>() * a.grid_width + block_index<0>();
}

// The element `offset` elements from the first one. Offsets of elements that do not exist are not dereferenced, so this
// is arithmetic on numbers.
CAUSEWAY_DEVICE const char* element_address(const void* data, i64 offset) {
    return (const char*)((u64)data + ((u64)offset << 1));
}

// ---- chunks --------------------------------------------------------------------------------------------------------

// `count` limited to a chunk.
CAUSEWAY_DEVICE int chunk_count(i64 count) { return count < 0 ? 0 : count > CHUNK ? CHUNK : (int)count; }

// The first `count` elements of a chunk, by accesses of Bytes; the others have the bits of `fill`, two to a word.
// Elements are `stride` apart if Bytes is 2, else side by side.
template <int Bytes> CAUSEWAY_DEVICE Packet<16> load_chunk(const char* address, i64 stride, int count, u32 fill) {
    Packet<16> chunk;
    if constexpr (Bytes > 2) {
        if (count == CHUNK) {
#pragma unroll
            for (int i = 0; i < 16 / Bytes; ++i) {
                const Packet<Bytes> piece = load<Bytes>(address + i * Bytes);
#pragma unroll
                for (int k = 0; k < Bytes / 4; ++k) chunk.word[i * (Bytes / 4) + k] = piece.word[k];
            }
            return chunk;
        }
    }
    const i64 step = Bytes > 2 ? 2 : stride * 2;
#pragma unroll
    for (int i = 0; i < CHUNK / 2; ++i) {
        u32 low = fill & 0xffffu, high = fill >> 16;
        if (2 * i < count) low = load<2>(address).word[0];
        address += step;
        if (2 * i + 1 < count) high = load<2>(address).word[0];
        address += step;
        chunk.word[i] = low | high << 16;
    }
    return chunk;
}

// ---- results -------------------------------------------------------------------------------------------------------

// Two results in one word. A NaN is the canonical quiet one: hardware differs in which it makes.
template <typename T> CAUSEWAY_DEVICE u32 result_pair(float low, float high) {
    constexpr u32 NOT_A_NUMBER = SAME<T, f16> ? 0x7e00u : 0x7fc0u;
    u32 word = pair<T>(low, high);
    if (low != low) word = (word & 0xffff0000u) | NOT_A_NUMBER;
    if (high != high) word = (word & 0x0000ffffu) | NOT_A_NUMBER << 16;
    return word;
}

// Writes the first `count` of these neighbours in a row of the result, which are Words words of two elements, by
// accesses of Bytes where all of them exist.
template <int Bytes, int Words>
CAUSEWAY_DEVICE void store_results(const Arguments& a, i64 row, i64 column, const u32 (&words)[Words], int count) {
    static_assert(Bytes <= Words * 4, "an access is within the words");
    char* const address = (char*)element_address(a.result, row * a.row_stride + column * a.column_stride);
    if constexpr (Bytes > 2) {
        if (count == Words * 2) {
#pragma unroll
            for (int i = 0; i < Words * 4 / Bytes; ++i) {
                Packet<Bytes> piece;
#pragma unroll
                for (int k = 0; k < Bytes / 4; ++k) piece.word[k] = words[i * (Bytes / 4) + k];
                store(address + i * Bytes, piece);
            }
            return;
        }
    }
    const i64 step = Bytes > 2 ? 2 : a.column_stride * 2;
#pragma unroll
    for (int i = 0; i < Words * 2; ++i) {
        if (i < count) store<2>(address + i * step, Packet<2>{{i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16}});
    }
}

}  // namespace gemm
}  // namespace causeway
