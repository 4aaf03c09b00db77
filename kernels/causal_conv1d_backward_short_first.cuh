// Causal conv1d backward where neighbouring positions are neighbours in memory, for calls too small to fill the device, and for
// rows that fill the tiles of walking waves badly.
//
//              seqlen →
//   channel c  │thread 0│thread 1│ …        a thread owns one packet of 16 bytes along the sequence
//
// A small call is bound by latency: by the number of steps that wait for each other. So threads exchange nothing but sums. A
// thread loads its packets of x and dy, the packet of x before them and both packets after them, and computes itself the
// width-1 gradients to its right that its dx needs. A block has `threads` / `channels` threads for each of its channels, and
// `parts` blocks may share them. If there are more packets than threads, they are taken in several rounds.
//
// Cost per element: x three times and dy twice, mostly from the L1 cache; dx once. Instructions: 24.5 · (1 + (width-1)/COUNT)
// with SiLU, where COUNT is the positions of a packet.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

// Rows lie in `pieces` packets, which begin on a multiple of 16 bytes.
//
//   struct Tile {
//       static constexpr int threads;        of a block
//       static constexpr int channels;       of a block, a power of two; whole waves work on one channel
//       static constexpr bool ragged;        rows may begin or end inside a packet; all tensors do so at the same element
//       static constexpr bool split;         `parts` blocks have the same channels
//       static constexpr int weight_bytes;   see load_parameters
//   };
template <class Problem, class Tile> class ShortFirstBackward {
    using X = typename Problem::X;
    static constexpr int THREADS = Tile::threads, CHANNELS = Tile::channels, EACH = THREADS / CHANNELS;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1, COUNT = ELEMENTS<X, 16>;
    static constexpr int WAVES = EACH / (int)WAVE_SIZE;  // of a channel
    static_assert(EACH % (int)WAVE_SIZE == 0 && HALO <= COUNT, "whole waves, near neighbours");
    static_assert(!PACKED<Problem> && !Problem::seq_idx, "short rows know no boundaries");

    static constexpr bool RAGGED = Tile::ragged;

    struct Packets {
        u32 entry, packet;
        i32 first;               // position of the packet's first element; with ragged rows it may be negative
        Packet<16> x[3], dy[2];  // x before, here and after; dy here and after
    };

public:
    CAUSEWAY_DEVICE explicit ShortFirstBackward(const BackwardArguments& a) : a(a) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        const u32 group = Tile::split ? quotient(block, a.parts_divisor) : block;
        const u32 part = Tile::split ? block - group * a.parts : 0, step = Tile::split ? a.parts * EACH : EACH;
        // Of one channel, what follows from its number is the same for all threads, and the compiler is to know it.
        channel = (i32)(CHANNELS > 1 ? group * CHANNELS + thread_index() / EACH : group);
#pragma unroll
        for (int j = 0; j <= WIDTH; ++j) sums[j] = 0.0f;
        const u32 units = (u32)a.batch * a.pieces;
        u32 unit = part * EACH + thread_index() % EACH;
        if (channel < a.dim && unit < units) {
            Packets packets = load_packets(unit);
            load_weights<Problem, Tile::weight_bytes>(a, channel, weight, bias);
            // Asked while the first packets are on their way.
            whole = RAGGED && rows_lie_in(a.x, a.x_begin, a.x_end) && rows_lie_in(a.dy, a.dy_begin, a.dy_end);
#pragma unroll 1
            while (true) {
                compute(packets);
                unit += step;
                if (unit >= units) break;
                // Computes the channel's offsets again: kept from round to round they would take too many registers. Ragged rows of one
                // channel have them in uniform ones.
                if constexpr (CHANNELS > 1 || !RAGGED) channel = opaque(channel);
                packets = load_packets(unit);
            }
        }
        write_channel_sums<Problem, CHANNELS, WAVES, Tile::split>(a, sums, 0, group, part, channel);
    }

private:
    CAUSEWAY_DEVICE Packets load_packets(u32 unit) const {
        Packets out;
        out.entry = quotient(unit, a.pieces_divisor);
        out.packet = unit - out.entry * a.pieces;
        const char* const x_row = row(a.x, out.entry);
        const i32 shift = RAGGED ? (i32)((u64)x_row & 15) / (i32)sizeof(X) : 0;
        out.first = (i32)out.packet * COUNT - shift;
        const char* const x = x_row + out.first * (i64)sizeof(X);
        const char* const dy = row(a.dy, out.entry) + out.first * (i64)sizeof(X);
        if constexpr (RAGGED) {
            // Packets of the tensors' memory are loaded as a whole, and what lies in other rows is masked.
            if (whole || lies_in(x - 16, 48, a.x_begin, a.x_end) && lies_in(dy, 32, a.dy_begin, a.dy_end)) {
                out.x[1] = load<16>(x);
                out.dy[0] = load<16>(dy);
                out.x[0] = load<16>(x - 16);
                out.x[2] = load<16>(x + 16);
                out.dy[1] = load<16>(dy + 16);
            } else {
#pragma unroll
                for (int p = 0; p < 3; ++p) out.x[p] = gather(x + (p - 1) * 16, out.first + (p - 1) * COUNT);
#pragma unroll
                for (int p = 0; p < 2; ++p) out.dy[p] = gather(dy + p * 16, out.first + p * COUNT);
            }
        } else {
            const bool has_next = out.packet + 1 < a.pieces;
            out.x[1] = load<16>(x);
            out.dy[0] = load<16>(dy);
            out.x[0] = load_if<16>(HALO > 0 && out.packet > 0, x - 16);
            out.x[2] = load_if<16>(HALO > 0 && has_next, x + 16);
            out.dy[1] = load_if<16>(HALO > 0 && has_next, dy + 16);
        }
        return out;
    }

    // A packet by elements: those of the row, whose positions begin at `first`, and zeros for others.
    CAUSEWAY_DEVICE Packet<16> gather(const char* address, i32 first) const {
        float values[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const bool exists = first + i >= 0 && first + i < (i32)a.seqlen;
            values[i] = exists ? load_element((const X*)address + i) : 0.0f;
        }
        return pack<X, 16>(values);
    }

    // Whether all packets of the channel's rows, with one before each and one after, lie in the tensor's memory in every entry. Few
    // channels have rows at an end of it. The first packet begins less than 16 bytes before the row, and 16 more are read before it; the
    // last one begins less than 16 past its end, and 32 are read from there.
    CAUSEWAY_DEVICE bool rows_lie_in(const Memory& view, i64 begin, i64 end) const {
        const i64 first = (i64)(u64)row(view, 0), last = (i64)(u64)row(view, (u32)a.batch - 1);
        return minimum(first, last) - 32 >= begin && maximum(first, last) + a.seqlen * (i64)sizeof(X) + 48 <= end;
    }

    CAUSEWAY_DEVICE char* row(const Memory& view, u32 entry) const {
        return (char*)view.data + (entry * view.entry + channel * view.channel) * (i64)sizeof(X);
    }

    CAUSEWAY_DEVICE void compute(const Packets& packets) {
        const i32 first = packets.first, seqlen = (i32)a.seqlen;
        float x[3 * COUNT], d[2 * COUNT], g[COUNT + HALO], out[COUNT];
#pragma unroll
        for (int p = 0; p < 3; ++p) put(packets.x[p], x, p * COUNT);
#pragma unroll
        for (int p = 0; p < 2; ++p) put(packets.dy[p], d, p * COUNT);
        // Bit i: position first - HALO + i lies in the row. A row's last packet may lie past its end.
        constexpr u32 ALL = (1u << (COUNT + 2 * HALO)) - 1;
        const i32 from = maximum(HALO - first, 0), to = maximum(minimum(seqlen - first + HALO, COUNT + 2 * HALO), 0);
        u32 valid = RAGGED ? ~(~0u << to) & (~0u << from) : ALL;
        if constexpr (RAGGED) {
            // The compiler would keep each bit apart, known where all are set.
            const bool end = valid != ALL;
            valid = (u32)opaque((i32)valid);
            if (end) {
#pragma unroll
                for (int i = 0; i < COUNT + 2 * HALO; ++i) {
                    float& value = x[COUNT - HALO + i];
                    value = (valid >> i & 1) != 0 ? value : 0.0f;
                }
            }
        }
        if constexpr (Problem::initial_states) {
            if (first < (RAGGED ? HALO : 1)) {
#pragma unroll
                for (int i = COUNT - HALO; i < 2 * COUNT + HALO; ++i) {
                    const i32 k = first - COUNT + i + HALO;
                    if (!RAGGED && i >= COUNT) continue;
                    if (k >= 0 && k < HALO) x[i] = read<X>(a.initial_states, packets.entry, channel, k);
                }
            }
        }
        const bool is_last = first + COUNT >= seqlen;
#pragma unroll
        for (int v = 0; v < COUNT + HALO; ++v) {
            float pre = bias;
            if constexpr (Problem::silu) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j], x[COUNT + v - j], pre);
            }
            g[v] = activation_gradient<Problem::silu>(pre, d[v]);
            // Outside the row, pre may overflow all the same, and a dy of 0 makes a NaN of that.
            const bool counts = RAGGED ? (valid >> (HALO + v) & 1) != 0 : !(Problem::silu && v >= COUNT && is_last);
            if (!counts) g[v] = 0.0f;
            if (v >= COUNT) continue;
            sums[WIDTH] += g[v];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) sums[j] = multiply_add(g[v], x[COUNT + v - j], sums[j]);
        }
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            out[v] = 0.0f;
            if constexpr (Problem::dfinal_states) {
                const i32 k = first + v - (seqlen - HALO);
                if (k >= 0 && k < HALO) out[v] = read<X>(a.dfinal_states, packets.entry, channel, k);
            }
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) out[v] = multiply_add(weight[j], g[v + j], out[v]);
        }
        char* const dx = row(a.dx, packets.entry) + first * (i64)sizeof(X);
        if (!RAGGED || (first >= 0 && first + COUNT <= seqlen)) {
            store(dx, pack<X, 16>(out));
        } else {
            store_some<X>(dx, pack<X, 16>(out), -first, seqlen - first);
        }
    }

    template <int Size> static CAUSEWAY_DEVICE void put(const Packet<16>& packet, float (&values)[Size], int from) {
        float part[COUNT];
        unpack<X>(packet, part);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) values[from + i] = part[i];
    }

    const BackwardArguments& a;
    i32 channel;         // of fewer than 2^31
    bool whole = false;  // with ragged rows: every packet of the channel can be loaded as a whole
    float weight[WIDTH], bias, sums[WIDTH + 1];
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_short_first(const BackwardArguments& a, u32 block = block_index<0>()) {
    run_or_states<ShortFirstBackward<Problem, Tile>, Problem, Tile::threads>(a, block);
}

}  // namespace causal_conv1d
}  // namespace causeway
