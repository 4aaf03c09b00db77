// Causal depthwise conv1d, forward, x[b, c, t] with stride 1 along seqlen.
//
//            seqlen →   lane 0     lane 1         lanes-1
//   channel c  [ before ][ packet ][ packet ] … [ packet ] [ packet of lane 0 ] …
//                            └ the width-1 positions before a packet lie in the packet before: each thread reads that
//                              too, from the L1 cache that its neighbour has just filled
//
// A group of `lanes` threads owns a chunk of one row: `tiles` tiles of lanes packets, all loaded up front. Short rows
// share a wave. Where rows do not start on a multiple of 16 bytes, tiles are shifted left to the multiple before, so
// accesses stay 16 bytes wide; what a packet holds of other rows is cleared, and only stores go element by element
// there. Per element, width 4, bf16: 4 FMA, 1.4 to unpack, 0.5 to pack, 5 for SiLU, about 1 for addresses and
// parameters.
//
// Tiles are computed as if they belonged to one sequence. The few positions for which that is wrong are computed again.
// Those after the start of a packed sequence: afterwards, one per lane. Those near a change of index, for which a wave first
// asks whether its positions carry more than one: in the same registers, without the taps that a mask of the thread's
// positions names (causal_conv1d_taps.cuh); where rows are shifted or windows wide, afterwards too. Each group then computes
// several rows, so that what has been found out about the positions serves them all.
//
//   struct Tile {
//       static constexpr int access = 16;        bytes of an access: 16, or less when rows are misaligned in ways
//                                                that shifting cannot mend
//       static constexpr int lanes = 32;         threads of a group, at most a wave
//       static constexpr int groups = 4;         groups of a block
//       static constexpr int tiles = 2;          packets per thread
//       static constexpr int rows = 4;           rows per group, where sequences have to be told apart
//       static constexpr bool shifted = false;   rows start anywhere, but x, y and residual on a common residue
//       static constexpr bool whole = true;      not shifted, and seqlen is a number of whole packets
//       static constexpr int weight_bytes = 8;   see load_parameters
//   };
#pragma once
#include "causal_conv1d_forward.cuh"
#include "causal_conv1d_taps.cuh"

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

    // Puts the initial states (`Halo` positions, the last at t = -1) into a packet that lies before the row, or across
    // its start.
    template <int Halo>
    static CAUSEWAY_DEVICE void add_states(Packet<16>& packet, i32 t, const X* states, i64 stride) {
        if constexpr (Tile::shifted) {
            if (t >= 0) return;
            if constexpr (Halo == 1) {
                // Of COUNT branches, one of which inserts, compilers make one insertion at a computed place: the packet
                // then lies in private memory.
                const u32 state = load<sizeof(X)>(states).word[0];
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    packet.word[i / PER_WORD] |= t + i == -1 ? state << (32 / PER_WORD * (i % PER_WORD)) : 0;
                }
                return;
            }
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                if (t + i < 0 && t + i >= -Halo) insert(packet, i, states + (t + i + Halo) * stride);
            }
        } else {
#pragma unroll
            for (int start = -COUNT; start > -Halo - COUNT; start -= COUNT) {
                if (t != start) continue;
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    if (start + i >= -Halo) insert(packet, i, states + (start + i + Halo) * stride);
                }
            }
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
        const bool inside = t >= 0 && t + COUNT <= seqlen;
        write_inside(inside, row + t, packet);
        if (!Tile::whole && !inside) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                if (t + i >= 0 && t + i < seqlen) {
                    const u32 bits = packet.word[i / PER_WORD] >> (32 / PER_WORD * (i % PER_WORD));
                    store<sizeof(X)>(row + t + i, Packet<sizeof(X)>{{bits}});
                }
            }
        }
    }

    static CAUSEWAY_DEVICE void write_inside(bool wanted, X* to, const Packet<16>& packet) {
        if constexpr (Tile::access == 16) {
            store_if<16>(wanted, to, packet);
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
                store_if<STEP>(wanted, (char*)to + i * STEP, part);
            }
        }
    }
};

// Whether positions from … to-1 carry one index and none is padding; the whole wave asks for the same positions, at
// most `Most`, and reads them side by side.
template <int Most> CAUSEWAY_DEVICE bool one_index(const i32* indices, i32 from, i32 to) {
    const u32 index = load<4>(indices + from).word[0];
    const i32 lane = (i32)lane_index(), count = to - from;
    u32 differs = index & 0x80000000u;
#pragma unroll
    for (int k = 0; k < Most; k += (int)WAVE_SIZE) {
        u32 own = index;
        if (lane + k < count) own = load<4>(indices + from + lane + k).word[0];
        differs |= own ^ index;
    }
    return wave_all(differs == 0);
}

// One row: its parameters, and single positions of it for those that the tiles got wrong.
template <class Problem> struct ChannelRow {
    using X = typename Problem::X;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1;

    const ForwardArguments& a;
    i64 batch;
    i32 channel;
    float taps[1][WIDTH], bias[1];

    template <int Bytes> CAUSEWAY_DEVICE void load() {
        load_parameters<Problem, 1, Bytes>(a.weight, a.weight_strides, a.bias, a.bias_stride, channel, taps, bias);
    }

    // How far the row starts behind a multiple of 16 bytes, in elements.
    template <class Tile> CAUSEWAY_DEVICE i32 shift() const {
        if constexpr (!Tile::shifted) return 0;
        return (i32)((u64)at<X>(a.x, offset(a.x_strides)) / sizeof(X) % ELEMENTS<X, 16>);
    }

    CAUSEWAY_DEVICE Boundaries<Problem::cu_seqlens, i32> boundaries() const {
        return {a.cu_seqlens, 1, (i32)a.sequences, (i32)a.seqlen};
    }
    CAUSEWAY_DEVICE const i32* indices() const { return at<i32>(a.seq_idx, batch * a.seq_idx_strides.first); }
    CAUSEWAY_DEVICE i32 index(i32 t) const { return (i32)causeway::load<4>(indices() + t).word[0]; }
    CAUSEWAY_DEVICE i64 offset(Strides3 strides) const {
        return batch * strides.batch + (i64)channel * (i32)strides.dim;
    }

    // Computes and writes one position, tap by tap.
    CAUSEWAY_DEVICE void compute(i32 t, const Span<i32>& span) const {
        const i32 age = t - span.start;
        i32 own = 0;
        if constexpr (Problem::seq_idx) own = index(t);
        const X* x = at<X>(a.x, offset(a.x_strides)) + t;
        float sum = bias[0];
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) {
            const i32 back = HALO - w;
            float value = 0.0f;
            if (back == 0 || back <= age) {
                bool same = true;
                if constexpr (Problem::seq_idx) same = index(t - back) == own;
                if (same) value = load_element(x - back);
            } else if (Problem::initial_states && age >= 0) {
                bool same = true;
                if constexpr (Problem::seq_idx) same = index(span.start) == own;
                const i64 state = span.sequence * a.initial_strides.batch + channel * a.initial_strides.dim +
                                  (w + age) * a.initial_strides.seqlen;
                if (same) value = load_element(at<X>(a.initial_states, state));
            }
            sum = multiply_add(taps[0][w], value, sum);
        }
        sum = own < 0 ? 0.0f : activate<Problem>(sum);
        if constexpr (Problem::residual) sum += load_element(at<X>(a.residual, offset(a.residual_strides)) + t);
        store_element(at<X>(a.y, offset(a.y_strides)) + t, sum);
    }

    // Computes again the positions of begin … end-1 that lie less than HALO after the start of a sequence. `lanes`
    // threads share the work, several starts at a time. `first` is the sequence of begin - HALO, or one before it.
    CAUSEWAY_DEVICE void redo_starts(i32 begin, i32 end, i32 first, u32 lane, u32 lanes) const {
        constexpr u32 EACH = HALO > 4 ? 8 : HALO > 2 ? 4 : HALO > 1 ? 2 : 1;  // lanes for one start
        const u32 at_once = maximum(lanes / EACH, 1u);
#pragma unroll 1
        for (i32 sequence = first; sequence < (i32)a.sequences; sequence += (i32)at_once) {
            const i32 own = sequence + (i32)(lane / EACH);
            const i32 start = own < (i32)a.sequences ? boundaries()[own] : end;
            // Starts only grow: nobody has work left once the first of this round lies past the end.
            if (boundaries()[sequence] >= end) break;
            // Before the first sequence zeros have been read, as it should if there are no states.
            if (start >= end || (start == 0 && !Problem::initial_states)) continue;
            const Span<i32> span{own, start, boundaries()[own + 1]};
            const i32 last = minimum(minimum(start + HALO, span.end), end);
            for (i32 t = start + (i32)(lane % EACH); t < last; t += (i32)minimum(lanes, EACH)) {
                if (t >= begin) compute(t, span);
            }
        }
    }

    // Computes again the positions base + lane + lanes·k, for the bits k of `wrong`, as far as they lie in
    // begin … end-1.
    CAUSEWAY_DEVICE void redo(u32 wrong, i32 base, i32 begin, i32 end, u32 lane, u32 lanes) const {
#pragma unroll 1
        for (; wrong != 0; wrong &= wrong - 1) {
            const i32 t = base + (i32)(lane + lanes * lowest_bit(wrong));
            if (t < begin || t >= end) continue;
            Span<i32> span{(i32)batch, 0, (i32)a.seqlen};
            if constexpr (Problem::cu_seqlens != 0) span = boundaries().find(t);
            compute(t, span);
        }
    }
};

// Bit k: position base + lane + lanes·k (before `end`) is padding, or one of its taps reads another index.
template <int Halo, int Most>
CAUSEWAY_DEVICE u32 wrong_indices(const i32* indices, i32 base, i32 end, u32 lane, u32 lanes) {
    static_assert(Most <= 32, "one bit per position");
    u32 wrong = 0;
#pragma unroll 1
    for (u32 k = 0; k < (u32)Most; ++k) {
        const i32 t = base + (i32)(lane + lanes * k);
        if (t >= end) break;
        const u32 own = load<4>(indices + t).word[0];
        u32 differs = own & 0x80000000u;
#pragma unroll
        for (int back = 1; back <= Halo; ++back) differs |= load<4>(indices + maximum(t - back, 0)).word[0] ^ own;
        wrong |= (u32)(differs != 0) << k;
    }
    return wrong;
}

// Masks of a thread's packets, where indices differ, masks fit and all rows have the same.
template <class Problem, class Tile>
using ChunkTaps = TapMasks<Problem::width - 1, ELEMENTS<typename Problem::X, 16>, Tile::tiles,
                           Problem::seq_idx && !Tile::shifted>;

// Computes the positions of packet `i` again that are not plain.
template <class Problem, int Halo, int Count, int Packets>
CAUSEWAY_DEVICE void leave_out_taps(const ChannelRow<Problem>& row, const float (&values)[Halo + Count],
                                    const TapMasks<Halo, Count, Packets, true>& taps, int i, float (&sums)[Count]) {
#pragma unroll
    for (int k = 0; k < Count; ++k) {
        if (!taps.any(i, k)) continue;
        float sum = row.bias[0];
#pragma unroll
        for (int back = Halo; back > 0; --back) {
            // What does not count is left out, not multiplied by zero: it may be a NaN.
            if (taps.counts(i, k, back)) sum = multiply_add(row.taps[0][Halo - back], values[k + Halo - back], sum);
        }
        sum = multiply_add(row.taps[0][Halo], values[k + Halo], sum);
        sums[k] = taps.padding(i, k) ? 0.0f : activate<Problem>(sum);
    }
}

// A chunk of one row, without the taps that are masked; `first` is the first position of this thread. Masked: some
// are; the rest of the code does without the registers that this takes.
template <class Problem, class Tile, bool Masked>
CAUSEWAY_DEVICE void compute_chunk(const ForwardArguments& a, ChannelRow<Problem>& row, i32 first,
                                   const ChunkTaps<Problem, Tile>& taps) {
    using X = typename Problem::X;
    using TileRows = Rows<X, Tile>;
    constexpr int WIDTH = Problem::width, HALO = WIDTH - 1, TILES = Tile::tiles;
    constexpr int COUNT = ELEMENTS<X, 16>, NEIGHBOURS = (HALO + COUNT - 1) / COUNT, TILE = Tile::lanes * COUNT;
    const i32 seqlen = (i32)a.seqlen;
    const X* x = at<X>(a.x, row.offset(a.x_strides));
    const auto read = [&](i32 t) {
        Packet<16> packet = TileRows::read(x, t, seqlen, a.x_begin, a.x_end);
        if constexpr (Problem::initial_states && Problem::cu_seqlens == 0) {
            const i64 states = row.batch * a.initial_strides.batch + row.channel * a.initial_strides.dim;
            TileRows::template add_states<HALO>(packet, t, at<X>(a.initial_states, states), a.initial_strides.seqlen);
        }
        return packet;
    };
    Packet<16> packets[TILES][NEIGHBOURS + 1];  // each with those before it, nearest last
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
#pragma unroll
        for (int n = NEIGHBOURS; n >= 0; --n) packets[i][n] = read(first + i * TILE - (NEIGHBOURS - n) * COUNT);
    }
    Packet<16> residual[TILES];
    if constexpr (Problem::residual) {
        const X* from = at<X>(a.residual, row.offset(a.residual_strides));
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            residual[i] = TileRows::read(from, first + i * TILE, seqlen, a.residual_begin, a.residual_end);
        }
    }
    row.template load<Tile::weight_bytes>();
    X* y = at<X>(a.y, row.offset(a.y_strides));
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        // The packet's positions behind the ones before it, as f32.
        float values[HALO + COUNT];
#pragma unroll
        for (int n = 0; n <= NEIGHBOURS; ++n) {
            float part[COUNT];
            unpack<X>(packets[i][n], part);
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                const int place = HALO - (NEIGHBOURS - n) * COUNT + k;
                if (place >= 0) values[place] = part[k];
            }
        }
        float sums[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            sums[k] = row.bias[0];
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) sums[k] = multiply_add(row.taps[0][w], values[k + w], sums[k]);
            sums[k] = activate<Problem>(sums[k]);
        }
        if constexpr (Masked) {
            if (taps.any(i)) leave_out_taps<Problem>(row, values, taps, i, sums);
        }
        if constexpr (Problem::residual) {
            float add[COUNT];
            unpack<X>(residual[i], add);
#pragma unroll
            for (int k = 0; k < COUNT; ++k) sums[k] += add[k];
        }
        TileRows::write(y, first + i * TILE, seqlen, pack<X, 16>(sums));
    }
}

// Chunks follow each other in memory; each group computes one.
template <class Problem, class Tile> CAUSEWAY_DEVICE void plain_chunk(const ForwardArguments& a, i64 batch, u32 block) {
    using X = typename Problem::X;
    constexpr int COUNT = ELEMENTS<X, 16>;
    const u32 lane = thread_index() % Tile::lanes, unit = block * Tile::groups + thread_index() / Tile::lanes;
    const u32 channel = a.tile_divisor.quotient(unit), chunk = unit - channel * a.tile_divisor.value;
    if (channel >= (u32)a.dim) return;
    ChannelRow<Problem> row{a, batch, (i32)channel};
    const i32 start = (i32)chunk * (Tile::tiles * Tile::lanes * COUNT) - row.template shift<Tile>();
    compute_chunk<Problem, Tile, false>(a, row, start + (i32)lane * COUNT, {});
}

// The groups of a block work on the same chunk of different rows, each on Tile::rows of them: what a wave finds out
// about the sequences in its stretch of positions serves them all.
template <class Problem, class Tile>
CAUSEWAY_DEVICE void checked_chunks(const ForwardArguments& a, i64 batch, u32 block) {
    using X = typename Problem::X;
    constexpr int HALO = Problem::width - 1, COUNT = ELEMENTS<X, 16>, LANES = Tile::lanes;
    constexpr int CHUNK = Tile::tiles * LANES * COUNT;
    constexpr int SLACK = Tile::shifted ? COUNT - 1 : 0;  // shifts differ between rows
    const u32 group = thread_index() / LANES, lane = thread_index() % LANES;
    const u32 rows = a.tile_divisor.quotient(block), chunk = block - rows * a.tile_divisor.value;
    const i32 seqlen = (i32)a.seqlen, chunk_start = (i32)chunk * CHUNK;
    const i32 from = minimum(maximum(chunk_start - SLACK - HALO, 0), seqlen - 1);
    const i32 to = maximum(minimum(chunk_start + CHUNK, seqlen), from + 1);

    Span<i32> span{(i32)batch, 0, seqlen};
    bool starts = false;
    if constexpr (Problem::cu_seqlens != 0) {
        span = Boundaries<Problem::cu_seqlens, i32>{a.cu_seqlens, 1, (i32)a.sequences, seqlen}.find_by_wave(from);
        starts = span.end < to || (Problem::initial_states && from == 0);
    }
    u32 wrong = 0;
    const i32 base = maximum(chunk_start - SLACK, 0);
    ChunkTaps<Problem, Tile> taps;
    if constexpr (Problem::seq_idx) {
        const i32* indices = at<i32>(a.seq_idx, batch * a.seq_idx_strides.first);
        if (!one_index<CHUNK + HALO + SLACK>(indices, from, to)) {
            if constexpr (taps.MASKED) {
                taps.template mask_changes<LANES * COUNT>(indices, chunk_start + (i32)lane * COUNT, seqlen);
            } else {
                constexpr int MOST = COUNT * Tile::tiles + (SLACK + LANES - 1) / LANES;
                wrong = wrong_indices<HALO, MOST>(indices, base, to, lane, LANES);
            }
        }
    }
    const bool masked = taps.MASKED && !wave_all(!taps.any());
#pragma unroll 1
    for (u32 r = 0; r < (u32)Tile::rows; ++r) {
        const u32 channel = (rows * Tile::rows + r) * Tile::groups + group;
        const bool active = channel < (u32)a.dim;
        ChannelRow<Problem> row{a, batch, active ? (i32)channel : 0};
        const i32 start = chunk_start - row.template shift<Tile>();
        if (active && !masked) compute_chunk<Problem, Tile, false>(a, row, start + (i32)lane * COUNT, taps);
        if constexpr (taps.MASKED) {
            if (active && masked) compute_chunk<Problem, Tile, true>(a, row, start + (i32)lane * COUNT, taps);
        }
        // Other lanes of the wave have written the packets that the positions below lie in.
        wave_barrier();
        if (!active) continue;
        const i32 begin = maximum(start, 0), end = minimum(start + CHUNK, seqlen);
        row.redo(wrong, base, begin, end, lane, LANES);
        if (starts) row.redo_starts(begin, end, span.sequence, lane, LANES);
    }
}

template <class Problem, class Tile> CAUSEWAY_DEVICE void forward_channel_first(const ForwardArguments& a) {
    static_assert(Tile::lanes <= (int)WAVE_SIZE && WAVE_SIZE % Tile::lanes == 0, "groups divide a wave");
    const i64 batch = layered_block(a.batches_per_layer);
    if (batch >= a.batch) return;
    u32 block = block_index<0>();
    if constexpr (Problem::final_states) {
        if (block < a.state_blocks) return write_final_states<Problem, Tile::lanes * Tile::groups>(a, batch);
        block -= a.state_blocks;
    }
    if constexpr (Problem::seq_idx || Problem::cu_seqlens != 0) {
        checked_chunks<Problem, Tile>(a, batch, block);
    } else {
        plain_chunk<Problem, Tile>(a, batch, block);
    }
}

}  // namespace causal_conv1d
}  // namespace causeway
