// How the sums of gemm_wgmma.cuh become a result. Where several blocks have summed parts of one tile, their sums are added; then
// sums are rounded and stored.
//
//   store_sums   sums in registers ─► staging, 16 rows × ACROSS columns a warp ─► TMA, or elements one by one
//   combine      `split`: blocks of a cluster add the sums that lie in each other's shared memory; clusters that have parts of one
//                tile leave theirs in the workspace, and the last one adds them
//   share_sums   `shared_rest`: warps of several clusters leave theirs in the workspace, and the last one adds them
#pragma once
#include "gemm_wgmma_work.cuh"

namespace causeway {
namespace gemm {

CAUSEWAY_DEVICE uint4 load_group(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}

CAUSEWAY_DEVICE void store_group(u32 address, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

template <bool Bf16> CAUSEWAY_DEVICE u32 pair(float low, float high) {
    return Bf16 ? pair_bf16(low, high) : pair_f16(low, high);
}

// Offset of 8 elements of a line in a staging buffer. A line is a row of ACROSS columns, or a column of 16 rows if the result is
// transposed. Lines of 64 elements are swizzled, others are not.
template <typename T> CAUSEWAY_DEVICE u32 staged(u32 line, u32 group) {
    using S = Shape<T>;
    if constexpr (S::STORED == 64) return line * LINE + ((group ^ line & 7) << 4);
    else return line * (S::STORED * 2) + (group << 4);
}

// Stores a staging buffer of one warp: Rows rows of ACROSS columns.
template <typename T, int Rows>
CAUSEWAY_DEVICE void store_buffer(const Arguments<T>& a, u32 from, i32 row, i32 column) {
    using S = Shape<T>;
    const i32 lane = (i32)lane_index();
    // Where the first line begins, in memory.
    const i32 line = T::result_transposed ? column : row, element = T::result_transposed ? row : column;
    if constexpr (T::result_by_rows) {
        // Lanes side by side take elements side by side, of as many lines at a time as they reach.
        constexpr i32 LINES = T::result_transposed ? S::ACROSS : Rows, AT_A_TIME = S::STORED < 32 ? 32 / S::STORED : 1;
        const i32 first = lane / S::STORED;
        wave_barrier();
        char* to = (char*)a.result.address + ((i64)(line + first) * a.result.row_stride + element) * 2;
#pragma unroll 1  // the addresses of several lines at a time would not fit the registers
        for (i32 i = first; i < LINES; i += AT_A_TIME) {
#pragma unroll
            for (i32 at = lane % S::STORED; at < S::STORED; at += 32) {
                u16 value;
                asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(from + staged<T>(i, at / 8) + at % 8 * 2));
                if (line + i < a.result.rows && element + at < a.result.columns) ((u16*)to)[at] = value;
            }
            to += a.result.row_stride * (2 * AT_A_TIME);
        }
    } else {
        shared_writes_to_async();
        wave_barrier();
        if (lane == 0) {
            box_store(a.result.map, from, element, line);
            box_store_commit();
        }
    }
}

// Rounds 16 rows × ACROSS columns of a warp's sums and stores them through one of its `staging` buffers.
template <typename T>
CAUSEWAY_DEVICE void store_columns(const Arguments<T>& a, const float* sums, u32 staging, u32& buffer, i32 row,
                                   i32 column) {
    constexpr bool TRANSPOSED = T::result_transposed;
    // Of 16 × 16 sums, the line and the half of it that this lane has the address of.
    const u32 lane = lane_index(), line = TRANSPOSED ? lane & 7 | lane >> 1 & 8 : lane & 15, half = TRANSPOSED ? lane >> 3 & 1 : lane >> 4;
    const u32 to = staging + buffer * BUFFER_BYTES;
    buffer = buffer + 1 == T::staging ? 0 : buffer + 1;
    box_store_wait_read<T::staging - 1>();
    wave_barrier();
#pragma unroll
    for (int i = 0; i < Shape<T>::ACROSS / 16; ++i) {
        const float* const s = sums + i * 8;
        const u32 at = TRANSPOSED ? staged<T>(16 * i + line, half) : staged<T>(line, 2 * i + half);
        matrix_store<TRANSPOSED>(to + at, pair<T::bf16>(s[0], s[1]), pair<T::bf16>(s[2], s[3]), pair<T::bf16>(s[4], s[5]),
                                 pair<T::bf16>(s[6], s[7]));
    }
    store_buffer<T, 16>(a, to, row, column);
}

// A warp's sums, 16 rows of the tile.
template <typename T>
CAUSEWAY_DEVICE void store_sums(const Arguments<T>& a, const float (&sums)[T::tile_columns / 2], u32 staging, u32& buffer,
                                i32 row, i32 column) {
    constexpr int ACROSS = Shape<T>::ACROSS;
#pragma unroll
    for (int i = 0; i < T::tile_columns / ACROSS; ++i) {
        store_columns(a, sums + i * (ACROSS / 2), staging, buffer, row, column + i * ACROSS);
    }
}

// Of a split tile, what a warp adds and stores at a time: 8 rows × 64 columns. A lane has, of two rows, four columns of each half,
// so that eight lanes read 128 bytes side by side.
struct Sixteen { float4 four[4]; };

CAUSEWAY_DEVICE void add(float4& to, float4 other) { to.x += other.x, to.y += other.y, to.z += other.z, to.w += other.w; }

// The sums of the cluster's blocks, in the order of the blocks.
template <typename T> CAUSEWAY_DEVICE Sixteen sums_of_blocks(const Block<T>& block, u32 row, u32 column) {
    using S = Shape<T>;
    const u32 lane = lane_index();
    Sixteen parts[T::cluster];
#pragma unroll
    for (u32 rank = 0; rank < T::cluster; ++rank) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 from = block.base + (row + lane / 8 + i / 2 * 4) * S::SUMS_PITCH + (column + lane % 8 * 4 + i % 2 * 32) * 4;
            parts[rank].four[i] = load_of_block(from, rank);
        }
    }
#pragma unroll
    for (u32 rank = 1; rank < T::cluster; ++rank) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) add(parts[0].four[i], parts[rank].four[i]);
    }
    return parts[0];
}

template <typename T>
CAUSEWAY_DEVICE void store_sixteen(const Arguments<T>& a, const Sixteen& sums, u32 to, i32 row, i32 column) {
    const u32 lane = lane_index();
    box_store_wait_read<0>();
    wave_barrier();
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u32 line = lane / 8 + i / 2 * 4, group = lane % 8 / 2 + i % 2 * 4;
        const float4 f = sums.four[i];
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + line * LINE + ((group ^ line) << 4) + lane % 2 * 8),
                     "r"(pair<T::bf16>(f.x, f.y)), "r"(pair<T::bf16>(f.z, f.w))
                     : "memory");
    }
    store_buffer<T, 8>(a, to, row, column);
}

// Adds the sums of a cluster's blocks and stores them; each warp of the cluster takes some of the tile's pieces of 8 rows ×
// 64 columns. Where several clusters have parts of the tile (PARTS), their sums go through the workspace: of the warps that have
// the same place in their clusters, the last to arrive adds, in the order of the clusters.
//
//   workspace   tile → cluster → 8 rows × 64 columns → four sums at a time → lane
template <typename T>
CAUSEWAY_DEVICE void combine(const Arguments<T>& a, const Block<T>& block, const Walk<T>& walk, i32 row, i32 column) {
    using S = Shape<T>;
    static_assert(S::ACROSS == 64, "a lane adds 8 of 64 columns");
    constexpr u32 ACROSS = T::tile_columns / 64, ALL = T::tile_rows / 8 * ACROSS, FOUR = 4 * 32, SIXTEEN = 4 * FOUR;
    const u32 warp = thread_index() / 32, of_cluster = block.rank * S::WARPS + warp;
    const u32 to = block.staging(warp);
    float* const first = a.shares.workspace + (u64)walk.tile * a.shares.pieces * (ALL * SIXTEEN) + lane_index() * 4;
    for (u32 piece = of_cluster; piece < ALL; piece += T::cluster * S::WARPS) {
        const u32 first_row = piece / ACROSS * 8, first_column = piece % ACROSS * 64;
        const Sixteen sums = sums_of_blocks(block, first_row, first_column);
        if constexpr (S::PARTS) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const float4 f = sums.four[i];
                const Packet<16> four{{as_bits(f.x), as_bits(f.y), as_bits(f.z), as_bits(f.w)}};
                store(first + (walk.ahead * ALL + piece) * SIXTEEN + i * FOUR, four);
            }
        } else {
            store_sixteen(a, sums, to, row + (i32)first_row, column + (i32)first_column);
        }
    }
    if constexpr (S::PARTS) {
        u32* const counter = a.shares.counters + (u32)walk.tile * (T::cluster * S::WARPS) + of_cluster;
        if (of_cluster >= ALL || !last_warp_to_arrive(counter, a.shares.pieces)) return;
        for (u32 piece = of_cluster; piece < ALL; piece += T::cluster * S::WARPS) {
            Sixteen sums = {};
#pragma unroll 4
            for (u32 p = 0; p < a.shares.pieces; ++p) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    const Packet<16> four = load_mutable<16>(first + (p * ALL + piece) * SIXTEEN + i * FOUR);
                    add(sums.four[i], make_float4(as_float(four.word[0]), as_float(four.word[1]), as_float(four.word[2]),
                                                  as_float(four.word[3])));
                }
            }
            store_sixteen(a, sums, to, row + (i32)(piece / ACROSS * 8), column + (i32)(piece % ACROSS * 64));
        }
    }
}

// Four sums of a piece that other multiprocessors may have written, past the L1 cache; zeros if there is no such piece. Predicated, so
// that several are in flight: with branches the first would be waited for before the second starts.
CAUSEWAY_DEVICE Packet<16> load_sums(bool exists, const float* from) {
    Packet<16> p;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
                 "@p ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%5]; }"
                 : "=&r"(p.word[0]), "=&r"(p.word[1]), "=&r"(p.word[2]), "=&r"(p.word[3])
                 : "r"((u32)exists), "l"(from)
                 : "memory");
    return p;
}

// Puts a warp's sums of one piece of a tile into the workspace. Of the warps that have the same rows and columns, the last to
// arrive adds the sums of all pieces, in the order of the pieces, and stores the result.
//
//   workspace   tile → piece → block of the cluster → warp → four sums at a time → lane
template <typename T>
CAUSEWAY_DEVICE void share_sums(const Arguments<T>& a, const Walk<T>& walk, u32 rank,
                                const float (&sums)[T::tile_columns / 2], u32 staging, u32& buffer, i32 row, i32 column) {
    using S = Shape<T>;
    constexpr u32 FOUR = 4 * 32, WARP = T::tile_columns / 8 * FOUR, PIECE = WARP * S::WARPS * T::cluster;
    const u32 nth = (u32)(walk.tile - a.shares.whole), piece = walk.begin == 0 ? 0 : (u32)((walk.begin - a.shares.head) / a.shares.part) + 1;
    const u32 of_cluster = rank * S::WARPS + thread_index() / 32;
    float* const first = a.shares.workspace + (u64)(nth * a.shares.pieces) * PIECE + of_cluster * WARP + lane_index() * 4;
    float* const own = first + (u64)piece * PIECE;
#pragma unroll
    for (int i = 0; i < T::tile_columns / 8; ++i) {
        Packet<16> four;
#pragma unroll
        for (int e = 0; e < 4; ++e) four.word[e] = as_bits(sums[4 * i + e]);
        store(own + i * FOUR, four);
    }
    if (!last_warp_to_arrive(a.shares.counters + nth * (S::WARPS * T::cluster) + of_cluster, a.shares.pieces)) return;
    // Not into `sums`: the compiler would make every product wait for the one before it.
    constexpr u32 PACKETS = S::ACROSS / 8, TOGETHER = S::PACKETS_IN_FLIGHT / PACKETS;
#pragma unroll 1
    for (int i = 0; i < T::tile_columns / S::ACROSS; ++i) {
        const float* const from = first + i * (PACKETS * FOUR);
        float total[S::ACROSS / 2] = {};
#pragma unroll 1
        for (u32 p = 0; p < a.shares.pieces; p += TOGETHER) {
            // All are asked for before the first one arrives: a warp alone would else wait for the L2 cache with each piece.
            Packet<16> four[TOGETHER][PACKETS];
#pragma unroll
            for (u32 q = 0; q < TOGETHER; ++q) {
#pragma unroll
                for (u32 j = 0; j < PACKETS; ++j) {
                    four[q][j] = load_sums(p + q < a.shares.pieces, from + (u64)(p + q) * PIECE + j * FOUR);
                }
            }
            // Pieces that do not exist are zeros, which leave a sum that began at zero as it is.
#pragma unroll
            for (u32 q = 0; q < TOGETHER; ++q) {
#pragma unroll
                for (u32 j = 0; j < PACKETS; ++j) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) total[4 * j + e] += as_float(four[q][j].word[e]);
                }
            }
        }
        store_columns(a, total, staging, buffer, row, column + i * S::ACROSS);
    }
}

}  // namespace gemm
}  // namespace causeway
