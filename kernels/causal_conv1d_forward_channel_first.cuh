// Causal depthwise conv1d, forward, x[b, c, t] with stride 1 along seqlen.
//
//            seqlen →   lane 0    lane 1      lanes-1
//   channel c  [ halo ][ packet ][ packet ] … [ packet ][ packet of lane 0 ] …
//                          └ the last width-1 positions of the left neighbour come by shuffle;
//                            lane 0 reads them from memory, or from the tile before
//
// A group of `lanes` threads owns a chunk of one row: `tiles` tiles of lanes packets, all loaded up front. Short rows
// share a wave. Where rows do not start on a multiple of 16 bytes, tiles are shifted left to the multiple before, so
// accesses stay 16 bytes wide; only a packet that sticks out of its row is moved element by element. Per element, width
// 4, bf16: 4 FMA, 1.4 to unpack, 0.5 to pack, 5 for SiLU, 0.6 for shuffles, about 1 for addresses and parameters.
//
//   struct Tile {
//       static constexpr int access = 16;        bytes of an access: 16, or less when rows are misaligned in ways
//                                                that shifting cannot mend
//       static constexpr int lanes = 32;         threads of a group, at most a wave
//       static constexpr int groups = 4;         groups of a block
//       static constexpr int tiles = 2;          packets per thread
//       static constexpr bool shifted = false;   rows start anywhere, but x, y and residual on a common residue
//       static constexpr bool whole = true;      not shifted, and seqlen is a number of whole packets
//       static constexpr int weight_bytes = 8;   see load_parameters
//   };
#pragma once
#include "causal_conv1d_forward.cuh"

namespace causeway {
namespace causal_conv1d {

// Rows of a tensor with stride 1 along seqlen, cut into packets of 16 bytes. `begin` and `end` are the addresses
// between which all rows lie.
template <typename X, class Tile> struct Rows {
    static constexpr int COUNT = ELEMENTS<X, 16>, PER_WORD = 4 / (int)sizeof(X);

    // The packet of positions t … t+COUNT-1 of a row, with zeros outside 0 … seqlen-1.
    static CAUSEWAY_DEVICE Packet<16> read(const X* row, i32 t, i32 seqlen, u64 begin, u64 end) {
        if (t >= 0 && t + COUNT <= seqlen) return read_inside(row + t);
        Packet<16> packet = zero_packet<16>();
        if (Tile::whole || t >= seqlen || t + COUNT <= 0) return packet;
        const u64 address = (u64)(row + t);
        if (address >= begin && address + 16 <= end) {
            // The rest of the packet belongs to other rows: legal to read, and cleared.
            packet = read_inside(row + t);
#pragma unroll
            for (int word = 0; word < 4; ++word) {
                u32 mask = 0;
#pragma unroll
                for (int k = 0; k < PER_WORD; ++k) {
                    const i32 position = t + word * PER_WORD + k;
                    const u32 part = PER_WORD == 1 ? 0xffffffffu : 0xffffu << (16 * k);
                    mask |= position >= 0 && position < seqlen ? part : 0;
                }
                packet.word[word] &= mask;
            }
            return packet;
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (t + i >= 0 && t + i < seqlen) insert(packet, i, row + t + i);
        }
        return packet;
    }

    // Puts the initial states (`Halo` positions, the last at t = -1) into a packet that reaches before the row.
    template <int Halo>
    static CAUSEWAY_DEVICE void add_states(Packet<16>& packet, i32 t, const X* states, i64 stride) {
        if (t >= 0) return;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (t + i < 0 && t + i >= -Halo) insert(packet, i, states + (t + i + Halo) * stride);
        }
    }

    static CAUSEWAY_DEVICE void insert(Packet<16>& packet, int i, const X* from) {
        packet.word[i / PER_WORD] |= load<sizeof(X)>(from).word[0] << (32 / PER_WORD * (i % PER_WORD));
    }

    static CAUSEWAY_DEVICE Packet<16> read_inside(const X* from) {
        if constexpr (Tile::access == 16) {
            return load<16>(from);
        } else {
            constexpr int STEP = Tile::access;
            Packet<16> packet = zero_packet<16>();
#pragma unroll
            for (int i = 0; i < 16 / STEP; ++i) {
                const Packet<STEP> part = load<STEP>((const char*)from + i * STEP);
                if constexpr (STEP == 2) {
                    packet.word[i / 2] |= part.word[0] << (16 * (i % 2));
                } else {
#pragma unroll
                    for (int k = 0; k < STEP / 4; ++k) packet.word[i * STEP / 4 + k] = part.word[k];
                }
            }
            return packet;
        }
    }

    // Writes the positions of a packet that lie in 0 … seqlen-1.
    static CAUSEWAY_DEVICE void write(X* row, i32 t, i32 seqlen, const Packet<16>& packet) {
        if (t >= 0 && t + COUNT <= seqlen) {
            write_inside(row + t, packet);
        } else if (!Tile::whole) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                if (t + i >= 0 && t + i < seqlen) {
                    const u32 bits = packet.word[i / PER_WORD] >> (32 / PER_WORD * (i % PER_WORD));
                    store<sizeof(X)>(row + t + i, Packet<sizeof(X)>{{bits}});
                }
            }
        }
    }

    static CAUSEWAY_DEVICE void write_inside(X* to, const Packet<16>& packet) {
        if constexpr (Tile::access == 16) {
            store<16>(to, packet);
        } else {
            constexpr int STEP = Tile::access;
#pragma unroll
            for (int i = 0; i < 16 / STEP; ++i) {
                Packet<STEP> part;
                if constexpr (STEP == 2) {
                    part.word[0] = packet.word[i / 2] >> (16 * (i % 2));
                } else {
#pragma unroll
                    for (int k = 0; k < STEP / 4; ++k) part.word[k] = packet.word[i * STEP / 4 + k];
                }
                store<STEP>((char*)to + i * STEP, part);
            }
        }
    }
};

// Sums of a packet whose positions may lie in different sequences: each tap is checked, and taps before the start of
// a packed sequence read its initial states. `span` is that of position t, or of one before it.
template <class Problem, int Count>
CAUSEWAY_DEVICE void sum_across_boundaries(const ForwardArguments& a, i64 batch, i32 channel, i32 t,
                                           const float (&taps)[Problem::width],
                                           const float (&values)[Problem::width - 1 + Count], float bias,
                                           Span<i32> span, float (&sums)[Count], bool (&padded)[Count]) {
    using X = typename Problem::X;
    constexpr int WIDTH = Problem::width, HALO = WIDTH - 1;
    const i32 seqlen = (i32)a.seqlen;
    const Boundaries<Problem::cu_seqlens, i32> boundaries{a.cu_seqlens, 1, (i32)a.sequences, seqlen};
    const i32* indices = at<i32>(a.seq_idx, batch * a.seq_idx_strides.first);
    i32 index[Problem::seq_idx ? HALO + Count : 1];
    if constexpr (Problem::seq_idx) {
#pragma unroll
        for (int i = 0; i < HALO + Count; ++i) {
            index[i] = (i32)load<4>(indices + minimum(maximum(t - HALO + i, 0), seqlen - 1)).word[0];
        }
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) {
        sums[i] = bias;
        padded[i] = false;
        if constexpr (Problem::seq_idx) padded[i] = index[HALO + i] < 0;
        i32 age = HALO;
        if constexpr (Problem::cu_seqlens != 0) {
            boundaries.advance(span, t + i);
            age = t + i - span.start;
            if (Problem::initial_states && age >= 0 && age < HALO && t + i < seqlen) {
                bool same = true;
                if constexpr (Problem::seq_idx) same = (i32)load<4>(indices + span.start).word[0] == index[HALO + i];
                const X* states = at<X>(a.initial_states, span.sequence * a.initial_strides.batch +
                                                              channel * a.initial_strides.dim);
#pragma unroll
                for (int w = 0; w < HALO; ++w) {
                    if (same && HALO - w > age) {
                        const float state = load_element(states + (w + age) * a.initial_strides.seqlen);
                        sums[i] = multiply_add(taps[w], state, sums[i]);
                    }
                }
            }
        }
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) {
            bool valid = w == HALO || HALO - w <= age;
            if constexpr (Problem::seq_idx) valid = valid && index[i + w] == index[HALO + i];
            const float next = multiply_add(taps[w], values[i + w], sums[i]);
            sums[i] = valid ? next : sums[i];
        }
    }
}

// Whether positions from … to-1 are of one sequence and none is padding; the whole wave asks for the same positions.
// Positions before the first sequence are zero, unless it has initial states.
template <class Problem, int Most>
CAUSEWAY_DEVICE bool one_sequence(const ForwardArguments& a, i64 batch, i32 from, i32 to, const Span<i32>& span) {
    bool one = true;
    if constexpr (Problem::cu_seqlens != 0) {
        one = span.start <= from && to <= span.end && !(Problem::initial_states && from < Problem::width - 1);
    }
    if constexpr (Problem::seq_idx) {
        const i32* indices = at<i32>(a.seq_idx, batch * a.seq_idx_strides.first) + from;
        const i32 index = (i32)load<4>(indices).word[0], lane = (i32)lane_index(), count = to - from;
        one = one && index >= 0;
#pragma unroll
        for (int k = 0; k < Most; k += (int)WAVE_SIZE) {
            if (k + lane < count) one = one && (i32)load<4>(indices + lane + k).word[0] == index;
        }
        one = wave_all(one);
    }
    return one;
}

template <class Problem, class Tile> CAUSEWAY_DEVICE void forward_channel_first(const ForwardArguments& a) {
    using X = typename Problem::X;
    using TileRows = Rows<X, Tile>;
    constexpr int WIDTH = Problem::width, HALO = WIDTH - 1;
    constexpr int COUNT = ELEMENTS<X, 16>, PER_WORD = 4 / (int)sizeof(X);
    constexpr int LANES = Tile::lanes, TILES = Tile::tiles, TILE = LANES * COUNT;
    constexpr int HALO_WORDS = (HALO + PER_WORD - 1) / PER_WORD, NEIGHBOURS = (HALO + COUNT - 1) / COUNT;
    constexpr bool CHECKED = Problem::seq_idx || Problem::cu_seqlens != 0;
    static_assert(LANES <= (int)WAVE_SIZE && WAVE_SIZE % LANES == 0, "groups divide a wave");

    const i64 batch = layered_block(a.batches_per_layer);
    if (batch >= a.batch) return;
    u32 block = block_index<0>();
    if constexpr (Problem::final_states) {
        if (block < a.state_blocks) return write_final_states<Problem, LANES * Tile::groups>(a, batch);
        block -= a.state_blocks;
    }
    // Chunks follow each other in memory; where indices have to be read too, the groups of a block share them.
    const u32 group = thread_index() / LANES, lane = thread_index() % LANES;
    u32 row_number, chunk;
    if constexpr (CHECKED) {
        const u32 rows = a.tile_divisor.quotient(block);
        chunk = block - rows * a.tile_divisor.value;
        row_number = rows * Tile::groups + group;
    } else {
        const u32 unit = block * Tile::groups + group;
        row_number = a.tile_divisor.quotient(unit);
        chunk = unit - row_number * a.tile_divisor.value;
    }
    // Surplus groups stay for the shuffles, with an empty row.
    const bool active = row_number < (u32)a.dim;
    const i32 channel = active ? (i32)row_number : 0;
    const i32 seqlen = active ? (i32)a.seqlen : 0;
    const X* x = at<X>(a.x, batch * a.x_strides.batch + channel * a.x_strides.dim);
    X* y = at<X>(a.y, batch * a.y_strides.batch + channel * a.y_strides.dim);
    const X* states = nullptr;
    if constexpr (Problem::initial_states && Problem::cu_seqlens == 0) {
        if (active) {
            states = at<X>(a.initial_states, batch * a.initial_strides.batch + channel * a.initial_strides.dim);
        }
    }
    const i32 shift = Tile::shifted ? (i32)(((u64)x / sizeof(X)) % COUNT) : 0;
    const i32 first = (i32)(chunk * (TILES * TILE) + lane * COUNT) - shift;

    const auto read = [&](i32 t) {
        Packet<16> packet = TileRows::read(x, t, seqlen, a.x_begin, a.x_end);
        if (states != nullptr) TileRows::template add_states<HALO>(packet, t, states, a.initial_strides.seqlen);
        return packet;
    };
    Packet<16> packets[TILES];
#pragma unroll
    for (int i = 0; i < TILES; ++i) packets[i] = read(first + i * TILE);
    Packet<16> before[NEIGHBOURS > 0 ? NEIGHBOURS : 1];
#pragma unroll
    for (int n = 0; n < NEIGHBOURS; ++n) {
        before[n] = zero_packet<16>();
        if ((int)lane <= n) before[n] = read(first - (n + 1) * COUNT);
    }
    Packet<16> residual[Problem::residual ? TILES : 1];
    if constexpr (Problem::residual) {
        const X* row = at<X>(a.residual, batch * a.residual_strides.batch + channel * a.residual_strides.dim);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            residual[i] = TileRows::read(row, first + i * TILE, seqlen, a.residual_begin, a.residual_end);
        }
    }
    // All groups of a wave work on the same positions of their rows, so the wave searches once.
    constexpr int SLACK = Tile::shifted ? COUNT - 1 : 0;
    const i32 chunk_start = (i32)(chunk * (TILES * TILE)) - SLACK;
    const Boundaries<Problem::cu_seqlens, i32> boundaries{a.cu_seqlens, 1, (i32)a.sequences, (i32)a.seqlen};
    Span<i32> span{(i32)batch, 0, (i32)a.seqlen};
    if constexpr (Problem::cu_seqlens != 0) {
        span = boundaries.find_by_wave(minimum(maximum(chunk_start - HALO, 0), (i32)a.seqlen - 1));
    }
    float taps[1][WIDTH], bias[1];
    load_parameters<Problem, 1, Tile::weight_bytes>(a.weight, a.weight_strides, a.bias, a.bias_stride, channel, taps,
                                                    bias);

#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        const i32 t = first + i * TILE;
        // Words of the halo, nearest last. Lane l passes its own word, or the one of the tile before if it serves the
        // first lanes of this one.
        float values[HALO + COUNT];
        u32 halo[HALO_WORDS > 0 ? HALO_WORDS : 1];
#pragma unroll
        for (int k = 1; k <= HALO_WORDS; ++k) {
            const int distance = (k - 1) / 4 + 1, word = 3 - (k - 1) % 4;
            u32 pass = packets[i].word[word];
            if (i > 0) pass = (int)lane >= LANES - distance ? packets[i - 1].word[word] : pass;
            const u32 from = (lane_index() & ~(u32)(LANES - 1)) | ((lane - distance) & (LANES - 1));
            u32 got = shuffle(pass, from);
            if (i == 0) got = (int)lane < distance ? before[distance - 1].word[word] : got;
            halo[HALO_WORDS - k] = got;
        }
        if constexpr (PER_WORD == 1) {
#pragma unroll
            for (int k = 0; k < HALO; ++k) values[k] = as_float(halo[k]);
        } else {
#pragma unroll
            for (int k = 0; k < HALO; ++k) {
                const int position = HALO_WORDS * 2 - HALO + k;
                const Packet<4> pair{{halo[position / 2]}};
                values[k] = position % 2 == 0 ? element<X, 0>(pair) : element<X, 1>(pair);
            }
        }
        float own[COUNT];
        unpack<X>(packets[i], own);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) values[HALO + k] = own[k];

        float sums[COUNT];
        bool padded[COUNT];
        bool plain = true;
        if constexpr (CHECKED) {
            const i32 from = minimum(maximum(chunk_start + i * TILE - HALO, 0), (i32)a.seqlen - 1);
            const i32 to = maximum(minimum(chunk_start + (i + 1) * TILE + SLACK, (i32)a.seqlen), from);
            if constexpr (Problem::cu_seqlens != 0) boundaries.advance(span, from);
            plain = one_sequence<Problem, TILE + HALO + SLACK>(a, batch, from, to, span);
        }
        if (plain) {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                sums[k] = bias[0];
                padded[k] = false;
#pragma unroll
                for (int w = 0; w < WIDTH; ++w) sums[k] = multiply_add(taps[0][w], values[k + w], sums[k]);
            }
        } else {
            sum_across_boundaries<Problem, COUNT>(a, batch, channel, t, taps[0], values, bias[0], span, sums, padded);
        }
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            sums[k] = activate<Problem>(sums[k]);
            if constexpr (CHECKED && Problem::seq_idx) sums[k] = padded[k] ? 0.0f : sums[k];
        }
        if constexpr (Problem::residual) {
            float add[COUNT];
            unpack<X>(residual[i], add);
#pragma unroll
            for (int k = 0; k < COUNT; ++k) sums[k] += add[k];
        }
        TileRows::write(y, t, seqlen, pack<X, 16>(sums));
    }
}

}  // namespace causal_conv1d
}  // namespace causeway
