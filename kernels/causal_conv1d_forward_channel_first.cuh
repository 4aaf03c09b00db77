// Causal depthwise conv1d, forward, x[b, c, t] with stride 1 along seqlen.
//
//            seqlen →   lane 0     lane 1         lanes-1
//   channel c  [ before ][ packet ][ packet ] … [ packet ] [ packet of lane 0 ] …
//                            └ its halo, the width-1 positions before it, lies in the packet before. Each thread reads
//                              that packet as well, from the L1 cache that its neighbour has just filled
//
// A group of `lanes` threads owns a piece of one row: `tiles` tiles of `lanes` packets, all loaded up front. Short rows
// share a wave, or lie in threads one after the other: groups of one lane. Where rows do not start on a multiple of 16 bytes,
// tiles are shifted left to the multiple before, so accesses stay 16 bytes wide. Elements before a row are cleared, and a row's
// first and last packet are stored by narrower accesses. Per element, width 4, bf16: 4 FMA, 1.4 to unpack, 0.5 to pack, 5 for SiLU, about 1 for addresses and
// parameters.
//
// Gates are loaded with x, and multiplied in registers: B with each position and its halo, C before positions are stored.
//
// A tile is computed as if it belonged to one sequence. What that gets wrong is mended:
//   cu_seqlens   The width-1 positions at the start of a sequence are computed again afterwards, one per lane, from loads that
//                were started before.
//   seq_idx      If a wave's positions carry more than one index, taps are masked (causal_conv1d_taps.cuh). Positions are
//                computed again where masks do not serve: where rows are shifted, where an index comes back within a window,
//                and where a halo is longer than a packet.
// Each group then computes several rows, so that one look at the boundaries serves them all.
//
//   struct Tile {
//       static constexpr int access = 16;        bytes of an access: 16, or less when rows are misaligned in ways
//                                                that shifting cannot mend
//       static constexpr int lanes = 32;         threads of a group, at most a wave
//       static constexpr int groups = 4;         groups of a block
//       static constexpr int tiles = 2;          packets per thread
//       static constexpr int rows = 4;           rows per group, with cu_seqlens or seq_idx
//       static constexpr bool shifted = false;   rows start anywhere; x, y, residual and gates equally far from a multiple of 16
//       static constexpr bool whole = true;      not shifted, and seqlen is a number of whole packets
//       static constexpr int weight_bytes = 8;   see load_parameters
//       static constexpr int index_bytes = 16;   the access that is legal for a thread's indices
//   };
#pragma once
#include "causal_conv1d_forward_rows.cuh"
#include "causal_conv1d_taps.cuh"

namespace causeway {
namespace causal_conv1d {

// The masks of a thread's positions. They are WANTED only where they are the same for all rows, and where the lane to the left
// holds a whole halo.
template <class Problem, class Tile> struct PieceCuts {
    static constexpr bool WANTED = Problem::seq_idx && !Tile::shifted && Problem::width - 1 <= ELEMENTS<typename Problem::X, 16>;

    u32 cuts[Tile::tiles], padding[Tile::tiles];
    u32 here = 0;  // bit i: packet i of some lane has a mask
};

// What a thread reads of a piece of one row: its packets, each after the packets that hold its halo.
template <class Problem, class Tile> class Piece {
    using X = typename Problem::X;
    using TileRows = Rows<X, Tile>;
    static constexpr int HALO = Problem::width - 1, EDGE = EDGE_OF<HALO>, TILES = Tile::tiles, COUNT = ELEMENTS<X, 16>;
    static constexpr int NEIGHBOURS = (HALO + COUNT - 1) / COUNT, TILE = Tile::lanes * COUNT;
    static constexpr bool STATES = Problem::initial_states && Problem::cu_seqlens == 0;  // stand in front of the row

public:
    // `first` is the first position of this thread.
    CAUSEWAY_DEVICE void load(const ForwardArguments& a, ChannelRow<Problem>& row, i32 first) {
        const i32 seqlen = (i32)a.seqlen;
        const X* x = at<X>(a.x, row.offset(a.x_strides));
        const auto read = [&](i32 t) {
            Packet<16> packet = TileRows::template read<STATES && Tile::shifted>(x, t, seqlen, a.x_begin, a.x_end);
            if constexpr (STATES) {
                const i64 states = row.entry * a.initial_strides.batch + row.channel * a.initial_strides.dim;
                TileRows::template add_states<HALO>(packet, t, at<X>(a.initial_states, states), a.initial_strides.seqlen);
            }
            return packet;
        };
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            if constexpr (Tile::shifted && !STATES) {
                TileRows::read_run(x, first + i * TILE, seqlen, a.x_begin, a.x_end, packets[i]);
            } else {
#pragma unroll
                for (int n = NEIGHBOURS; n >= 0; --n) packets[i][n] = read(first + i * TILE - (NEIGHBOURS - n) * COUNT);
            }
        }
        if constexpr (Problem::B) {
            const X* b = at<X>(a.b, row.offset(a.b_strides));
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                if constexpr (Tile::shifted) {
                    TileRows::read_run(b, first + i * TILE, seqlen, a.b_begin, a.b_end, gates[i]);
                } else {
#pragma unroll
                    for (int n = NEIGHBOURS; n >= 0; --n) {
                        gates[i][n] = TileRows::read(b, first + i * TILE - (NEIGHBOURS - n) * COUNT, seqlen, a.b_begin, a.b_end);
                    }
                }
            }
        }
        if constexpr (Problem::C) {
            const X* c = at<X>(a.c, row.offset(a.c_strides));
#pragma unroll
            for (int i = 0; i < TILES; ++i) results[i] = TileRows::read(c, first + i * TILE, seqlen, a.c_begin, a.c_end);
        }
        if constexpr (Problem::residual) {
            const X* from = at<X>(a.residual, row.offset(a.residual_strides));
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                residual[i] = TileRows::read(from, first + i * TILE, seqlen, a.residual_begin, a.residual_end);
            }
        }
        row.template load<Tile::weight_bytes>();
    }

    CAUSEWAY_DEVICE void compute(const ForwardArguments& a, const ChannelRow<Problem>& row, i32 first,
                                 const PieceCuts<Problem, Tile>& cuts) const {
        X* y = at<X>(a.y, row.offset(a.y_strides));
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            if constexpr (PieceCuts<Problem, Tile>::WANTED) {
                if ((cuts.here >> i & 1) != 0) {
                    compute_packet<true>(a, row, y, first + i * TILE, i, cuts);
                    continue;
                }
            }
            compute_packet<false>(a, row, y, first + i * TILE, i, cuts);
        }
    }

private:
    // Packet i, whose first position is t. Cut: some taps are masked.
    template <bool Cut>
    CAUSEWAY_DEVICE void compute_packet(const ForwardArguments& a, const ChannelRow<Problem>& row, X* y, i32 t, int i,
                                        const PieceCuts<Problem, Tile>& cuts) const {
        // The halo, then the packet's positions, as f32.
        float values[HALO + COUNT];
#pragma unroll
        for (int n = 0; n <= NEIGHBOURS; ++n) {
            float part[COUNT], factors[COUNT];
            unpack<X>(packets[i][n], part);
            if constexpr (Problem::B) unpack<X>(gates[i][n], factors);
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                const int position = HALO - (NEIGHBOURS - n) * COUNT + k;
                if (position >= 0) values[position] = part[k];
                if constexpr (Problem::B) {
                    // Initial states, which lie before the row, have no gate.
                    const bool state = STATES && t - HALO + position < 0;
                    if (position >= 0 && !state) values[position] = gated<Problem>(factors[k], part[k]);
                }
            }
        }
        if constexpr (Tile::shifted && !STATES) {
            // Positions before the row are those of another one. Bit k: values[k] counts. Few waves have a packet with one.
            if (t < HALO) {
                const u32 counts = (u32)opaque((i32)(~0u << minimum(maximum(HALO - t, 0), 31)));
#pragma unroll
                for (int k = 0; k < HALO + COUNT; ++k) values[k] = (counts >> k & 1) != 0 ? values[k] : 0.0f;
            }
        }
        float factors[COUNT] = {};
        if constexpr (Problem::C) unpack<X>(results[i], factors);
        float sums[COUNT], window[HALO + 1];
        const auto walk = [&](int k) { roll(window, values[k + HALO - 1], (cuts.cuts[i] >> (k + EDGE) & 1) != 0); };
        if constexpr (Cut) {
#pragma unroll
            for (int back = 1; back <= HALO; ++back) window[back] = 0.0f;
#pragma unroll
            for (int k = -EDGE; k < 0; ++k) walk(k);
        }
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            sums[k] = row.bias[0];
            if constexpr (Cut && HALO > 0) walk(k);
#pragma unroll
            for (int w = 0; w <= HALO; ++w) {
                const float value = Cut && w < HALO ? window[HALO - w] : values[k + w];
                sums[k] = multiply_add(row.weight[0][w], value, sums[k]);
            }
            sums[k] = activate_gated<Problem>(sums[k], factors[k]);
            // A select, since the value at padding may be a NaN.
            if (Cut && (cuts.padding[i] >> k & 1) != 0) sums[k] = 0.0f;
        }
        if constexpr (Problem::residual) {
            float add[COUNT];
            unpack<X>(residual[i], add);
#pragma unroll
            for (int k = 0; k < COUNT; ++k) sums[k] = add_rn(sums[k], add[k]);
        }
        TileRows::write(y, t, (i32)a.seqlen, pack<X, 16>(sums));
    }

    Packet<16> packets[TILES][NEIGHBOURS + 1], residual[TILES];
    Packet<16> gates[TILES][NEIGHBOURS + 1], results[TILES];
};

// Without boundaries. Each group computes one piece; neighbouring groups have neighbouring pieces.
template <class Problem, class Tile> CAUSEWAY_DEVICE void plain_piece(const ForwardArguments& a, i64 entry, u32 block) {
    using X = typename Problem::X;
    constexpr int COUNT = ELEMENTS<X, 16>;
    const u32 lane = thread_index() % Tile::lanes, unit = block * Tile::groups + thread_index() / Tile::lanes;
    const u32 channel = quotient(unit, a.tile_divisor), piece = unit - channel * a.tile_divisor.value;
    if (channel >= (u32)a.dim) return;
    ChannelRow<Problem> row{a, entry, (i32)channel};
    const i32 first = (i32)piece * (Tile::tiles * Tile::lanes * COUNT) - row.template shift<Tile>() + (i32)lane * COUNT;
    Piece<Problem, Tile> inputs;
    inputs.load(a, row, first);
    inputs.compute(a, row, first, {});
}

// With boundaries. The groups of a block work on the same piece of different rows, Tile::rows each: the boundaries in a piece
// are looked up once for all of them.
template <class Problem, class Tile>
CAUSEWAY_DEVICE void pieces_with_boundaries(const ForwardArguments& a, i64 entry, u32 block) {
    using X = typename Problem::X;
    constexpr int HALO = Problem::width - 1, COUNT = ELEMENTS<X, 16>, LANES = Tile::lanes;
    constexpr int PIECE = Tile::tiles * LANES * COUNT;
    constexpr int SLACK = Tile::shifted ? COUNT - 1 : 0;  // shifts differ between rows
    const u32 group = thread_index() / LANES, lane = thread_index() % LANES;
    const u32 rows = quotient(block, a.tile_divisor), piece = block - rows * a.tile_divisor.value;
    const i32 seqlen = (i32)a.seqlen, piece_start = (i32)piece * PIECE;
    const i32 from = minimum(maximum(piece_start - SLACK - HALO, 0), seqlen - 1);
    const i32 to = maximum(minimum(piece_start + PIECE, seqlen), from + 1);
    const auto row_number = [&](u32 r) { return (rows * Tile::rows + r) * Tile::groups + group; };
    const auto start_of = [&](const ChannelRow<Problem>& row) { return piece_start - row.template shift<Tile>(); };
    ChannelRow<Problem> row{a, entry, row_number(0) < (u32)a.dim ? (i32)row_number(0) : 0};
    Piece<Problem, Tile> inputs;
    // The first row is loaded before the wave waits for indices. With cu_seqlens alone the wait is for a single load.
    constexpr bool EARLY = Problem::seq_idx;
    if constexpr (EARLY) inputs.load(a, row, start_of(row) + (i32)lane * COUNT);

    Span<i32> span{(i32)entry, 0, seqlen};
    bool starts = false;
    if constexpr (Problem::cu_seqlens != 0) {
        span = Boundaries<Problem::cu_seqlens, i32>{a.cu_seqlens, 1, (i32)a.sequences, seqlen}.find_by_wave(from);
        starts = span.end < to || (Problem::initial_states && from == 0);
    }
    u32 wrong = 0;
    const i32 base = maximum(piece_start - SLACK, 0);
    PieceCuts<Problem, Tile> cuts;
    if constexpr (Problem::seq_idx) {
        const i32* indices = at<i32>(a.seq_idx, entry * a.seq_idx_strides.first);
        constexpr int MOST = COUNT * Tile::tiles + (SLACK + LANES - 1) / LANES;
        if constexpr (PieceCuts<Problem, Tile>::WANTED) {
            PieceIndices<HALO, COUNT, Tile::tiles, LANES> own;
            own.template load_all<Tile::index_bytes, Tile::whole>(indices, piece_start, (i32)lane, seqlen);
            const u32 first_lane = lane_index() - lane;
            if (!wave_all(!own.differ(first_lane))) {
                if (wave_all(own.find(cuts.cuts, cuts.padding, (i32)lane, first_lane))) {
#pragma unroll
                    for (int i = 0; i < Tile::tiles; ++i) {
                        cuts.here |= (u32)!wave_all((cuts.cuts[i] | cuts.padding[i]) == 0) << i;
                    }
                } else {
                    wrong = wrong_indices<HALO, MOST>(indices, base, to, lane, LANES);
                }
            }
        } else if (!one_index<PIECE + HALO + SLACK>(indices, from, to)) {
            wrong = wrong_indices<HALO, MOST>(indices, base, to, lane, LANES);
        }
    }
#pragma unroll 1
    for (u32 r = 0; r < (u32)Tile::rows; ++r) {
        const bool active = row_number(r) < (u32)a.dim;
        const i32 start = start_of(row), first = start + (i32)lane * COUNT;
        const i32 begin = maximum(start, 0), end = minimum(start + PIECE, seqlen);
        if constexpr (!EARLY) inputs.load(a, row, first);
        typename ChannelRow<Problem>::Window window;
        if constexpr (Problem::cu_seqlens != 0) {
            if (starts) row.template gather_start<LANES>(window, begin, end, span.sequence, 0, lane);
        }
        if (active) inputs.compute(a, row, first, cuts);
        // Other lanes of the wave have written the packets that the positions below lie in.
        wave_barrier();
        if (active) row.redo(wrong, base, begin, end, lane, LANES);
        if constexpr (Problem::cu_seqlens != 0) {
            if (active && starts) {
                row.compute(window);
                row.template redo_starts<LANES>(begin, end, span.sequence, lane);
            }
        }
        if (r + 1 < (u32)Tile::rows && row_number(r + 1) < (u32)a.dim) {
            row.channel = (i32)row_number(r + 1);
            if constexpr (EARLY) inputs.load(a, row, start_of(row) + (i32)lane * COUNT);
        }
    }
}

template <class Problem, class Tile>
CAUSEWAY_DEVICE void forward_channel_first(const ForwardArguments& a, u32 block = block_index<0>()) {
    static_assert(Tile::lanes <= (int)WAVE_SIZE && WAVE_SIZE % Tile::lanes == 0, "groups divide a wave");
    const i64 entry = layered_block(a.batches_per_layer);
    if (entry >= a.batch) return;
    if constexpr (Problem::final_states) {
        if (block < a.state_blocks) return write_final_states<Problem, Tile::lanes * Tile::groups>(a, entry, block);
        block -= a.state_blocks;
    }
    if constexpr (Problem::seq_idx || Problem::cu_seqlens != 0) {
        pieces_with_boundaries<Problem, Tile>(a, entry, block);
    } else {
        plain_piece<Problem, Tile>(a, entry, block);
    }
}

}  // namespace causal_conv1d
}  // namespace causeway
