// Causal depthwise conv1d, forward, stride 1 along seqlen: reads and writes rows by packets, and computes single positions.
#pragma once
#include "causal_conv1d_forward.cuh"

namespace causeway {
namespace causal_conv1d {

// Rows of a tensor with stride 1 along seqlen, cut into packets of 16 bytes. All of the tensor's memory lies between the
// addresses `begin` and `end`.
template <typename X, class Tile> struct Rows {
    static constexpr int COUNT = ELEMENTS<X, 16>, PER_WORD = 4 / (int)sizeof(X);

    // The packet of positions t … t+COUNT-1 of a row. Outside 0 … seqlen-1 its elements are any of the tensor's, or zeros; Cleared: before
    // 0 they are zeros. What a packet holds past the row's end reaches no position of the row.
    template <bool Cleared = false> static CAUSEWAY_DEVICE Packet<16> read(const X* row, i32 t, i32 seqlen, u64 begin, u64 end) {
        if constexpr (Tile::whole) {
            // A packet overlaps the row or lies in it, which is the same. Asked in this way, the compiler sees that initial states go into
            // packets that are not loaded, and does not wait for a load first.
            const bool inside = t >= 0 && t + COUNT <= seqlen;
            return inside ? read_inside(row + t) : zero_packet<16>();
        }
        const bool overlaps = t + COUNT > 0 && t < seqlen;
        const u64 address = (u64)(row + t);
        const bool legal = address >= begin && address + 16 <= end;
        Packet<16> packet = overlaps && legal ? read_inside(row + t) : zero_packet<16>();
        if (Cleared && t < 0) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const u32 part = PER_WORD == 1 ? 0xffffffffu : 0xffffu << (16 * (i % PER_WORD));
                if (t + i < 0) packet.word[i / PER_WORD] &= ~part;
            }
        }
        if (!overlaps || legal) return packet;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (t + i >= 0 && t + i < seqlen) insert(packet, i, row + t + i);
        }
        return packet;
    }

    // The same of neighbouring packets of a row that is shifted, of which the last one begins at t. One question serves all of them: most lie in the
    // tensor's memory, whoever's their elements are.
    template <int Count>
    static CAUSEWAY_DEVICE void read_run(const X* row, i32 t, i32 seqlen, i64 begin, i64 end, Packet<16> (&packets)[Count]) {
        static_assert(Tile::shifted, "elements before the row are cleared");
        const i32 first = t - (Count - 1) * COUNT;
        if (lies_in((const char*)(row + first), Count * 16, begin, end)) {
#pragma unroll
            for (int n = Count - 1; n >= 0; --n) packets[n] = read_inside(row + first + n * COUNT);
        } else {
#pragma unroll
            for (int n = Count - 1; n >= 0; --n) packets[n] = read(row, first + n * COUNT, seqlen, begin, end);
        }
    }

    // Puts initial states into a packet that begins before the row. There are `Halo` of them, the last at t = -1.
    template <int Halo>
    static CAUSEWAY_DEVICE void add_states(Packet<16>& packet, i32 t, const X* states, i64 stride) {
        if constexpr (Tile::shifted) {
            if (t >= 0) return;
            if constexpr (Halo == 1) {
                // A branch for each element would be merged by some compilers into one insertion at a computed index, and the
                // packet would move to private memory.
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
        if constexpr (Tile::whole) return;
        if (inside) return;
        if constexpr (Tile::access == 16) {
            store_some<X>((char*)(row + t), packet, -t, seqlen - t);
        } else {
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

// Whether positions from … to-1 carry one index and none is padding. All lanes of the wave pass the same positions, at most
// `Most`, and share the reads, which are coalesced.
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

// One row: its weight and bias, and the means to compute single positions again where the tiles were wrong.
template <class Problem> struct ChannelRow {
    using X = typename Problem::X;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1;
    // A sequence's first HALO positions, its start, are computed again by a group of lanes. EACH lanes work on one start, the
    // group on AT_ONCE starts at a time, and one start takes PARTS turns.
    static constexpr int STARTING = HALO > 4 ? 8 : HALO > 2 ? 4 : HALO > 1 ? 2 : 1;
    template <int Lanes> static constexpr int EACH = STARTING < Lanes ? STARTING : Lanes;
    template <int Lanes> static constexpr int AT_ONCE = Lanes / EACH<Lanes>;
    template <int Lanes> static constexpr int PARTS = STARTING / EACH<Lanes>;

    const ForwardArguments& a;
    i64 entry;
    i32 channel;
    float weight[1][WIDTH], bias[1];

    template <int Bytes> CAUSEWAY_DEVICE void load() {
        load_parameters<Problem, 1, Bytes>(a.weight, a.weight_strides, a.bias, a.bias_stride, channel, weight, bias);
    }

    // Elements between the row's start and the multiple of 16 bytes before it.
    template <class Tile> CAUSEWAY_DEVICE i32 shift() const {
        if constexpr (!Tile::shifted) return 0;
        return (i32)((u64)at<X>(a.x, offset(a.x_strides)) / sizeof(X) % ELEMENTS<X, 16>);
    }

    CAUSEWAY_DEVICE Boundaries<Problem::cu_seqlens, i32> boundaries() const {
        return {a.cu_seqlens, 1, (i32)a.sequences, (i32)a.seqlen};
    }
    CAUSEWAY_DEVICE const i32* indices() const { return at<i32>(a.seq_idx, entry * a.seq_idx_strides.first); }
    CAUSEWAY_DEVICE i32 index(i32 t) const { return (i32)causeway::load<4>(indices() + t).word[0]; }
    CAUSEWAY_DEVICE i64 offset(Strides3 strides) const {
        // With boundaries one more register would be kept, for which some architectures have no room.
        constexpr bool WIDE = !Problem::seq_idx && Problem::cu_seqlens == 0;
        return entry * strides.batch + (WIDE ? multiply_wide(channel, (i32)strides.dim) : (i64)channel * (i32)strides.dim);
    }

    // What the taps of one position read. The loads may be in flight.
    struct Window {
        i32 t;
        Packet<sizeof(X)> values[WIDTH];
        bool counts[WIDTH], padding;
        Packet<sizeof(X)> gates[WIDTH];
        bool gated[WIDTH];  // a position of x, whose gate counts; no state
    };

    // Starts all loads for the taps of one position, or none where not wanted.
    CAUSEWAY_DEVICE void gather(Window& window, bool wanted, i32 t, const Span<i32>& span) const {
        const i32 reach = t - span.start;
        u32 own[WIDTH];
        if constexpr (Problem::seq_idx) {
#pragma unroll
            for (int back = 0; back < WIDTH; ++back) {
                // The content of cu_seqlens may be wrong: no index after position t is read.
                const i32 from = maximum(t - back, minimum(span.start, t));
                own[back] = load_if<4>(wanted, indices() + from).word[0];
            }
        }
        window.t = wanted ? t : -1;
        window.padding = Problem::seq_idx && (own[0] & 0x80000000u) != 0;
        const X* x = at<X>(a.x, offset(a.x_strides)) + t;
#pragma unroll
        for (int back = 0; back < WIDTH; ++back) {
            const X* from = x - back;
            window.counts[back] = wanted;
            if (back > 0) {
                const bool inside = back <= reach;
                window.counts[back] = wanted && (inside || (Problem::initial_states && reach >= 0));
                if constexpr (Problem::initial_states) {
                    const i64 state = span.sequence * a.initial_strides.batch + channel * a.initial_strides.dim +
                                      (HALO - back + reach) * a.initial_strides.seqlen;
                    if (!inside) from = at<X>(a.initial_states, state);
                }
            }
            if constexpr (Problem::seq_idx) window.counts[back] = window.counts[back] && own[back] == own[0];
            window.values[back] = load_if<sizeof(X)>(window.counts[back], from);
            if constexpr (Problem::B) {
                window.gated[back] = window.counts[back] && (back == 0 || back <= reach);
                window.gates[back] = load_if<sizeof(X)>(window.gated[back], at<X>(a.b, offset(a.b_strides)) + t - back);
            }
        }
    }

    // Computes the position and writes its y.
    CAUSEWAY_DEVICE void compute(const Window& window) const {
        if (window.t < 0) return;
        float sum = bias[0];
#pragma unroll
        for (int back = HALO; back >= 0; --back) {
            if constexpr (!Problem::B) {
                if (window.counts[back]) sum = multiply_add(weight[0][HALO - back], element<X, 0>(window.values[back]), sum);
            } else {
                float value = element<X, 0>(window.values[back]);
                if (window.gated[back]) value = gated<Problem>(element<X, 0>(window.gates[back]), value);
                if (window.counts[back]) sum = multiply_add(weight[0][HALO - back], value, sum);
            }
        }
        float factor = 1.0f;
        if constexpr (Problem::C) factor = load_element(at<X>(a.c, offset(a.c_strides)) + window.t);
        sum = window.padding ? 0.0f : activate_gated<Problem>(sum, factor);
        if constexpr (Problem::residual) {
            sum = add_rn(sum, load_element(at<X>(a.residual, offset(a.residual_strides)) + window.t));
        }
        store_element(at<X>(a.y, offset(a.y_strides)) + window.t, sum);
    }

    CAUSEWAY_DEVICE void compute(i32 t, const Span<i32>& span) const {
        Window window;
        gather(window, true, t, span);
        compute(window);
    }

    // Among positions begin … end-1, those less than HALO after the start of a sequence are computed again: one per lane, several
    // starts in a round. `first` is the sequence of position begin - HALO, or an earlier one. This loads what a lane needs for
    // its position of a round.
    template <int Lanes> CAUSEWAY_DEVICE void gather_start(Window& window, i32 begin, i32 end, i32 first, i32 round, u32 lane) const {
        const i32 unit = round * AT_ONCE<Lanes> + (i32)lane / EACH<Lanes>, own = first + unit / PARTS<Lanes>;
        const bool exists = own < (i32)a.sequences;
        const i32 start = exists ? boundaries()[own] : end;
        const Span<i32> span{own, start, exists ? boundaries()[own + 1] : end};
        const i32 t = start + unit % PARTS<Lanes> * EACH<Lanes> + (i32)lane % EACH<Lanes>;
        const i32 last = minimum(minimum(start + HALO, span.end), end);
        // The tiles have read zeros before the first sequence. That is right if there are no states.
        gather(window, t >= begin && t < last && (start > 0 || Problem::initial_states), t, span);
    }

    // The rounds after the first.
    template <int Lanes> CAUSEWAY_DEVICE void redo_starts(i32 begin, i32 end, i32 first, u32 lane) const {
#pragma unroll 1
        for (i32 round = 1;; ++round) {
            const i32 sequence = first + round * AT_ONCE<Lanes> / PARTS<Lanes>;
            // Starts ascend: once the first of a round lies past the end, no work is left.
            if (sequence >= (i32)a.sequences || boundaries()[sequence] >= end) break;
            Window window;
            gather_start<Lanes>(window, begin, end, first, round, lane);
            compute(window);
        }
    }

    // Computes position base + lane + lanes·k again for each bit k that is set in `wrong`, if it lies in begin … end-1.
    CAUSEWAY_DEVICE void redo(u32 wrong, i32 base, i32 begin, i32 end, u32 lane, u32 lanes) const {
#pragma unroll 1
        for (; wrong != 0; wrong &= wrong - 1) {
            const i32 t = base + (i32)(lane + lanes * lowest_bit(wrong));
            if (t < begin || t >= end) continue;
            Span<i32> span{(i32)entry, 0, (i32)a.seqlen};
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

}  // namespace causal_conv1d
}  // namespace causeway
