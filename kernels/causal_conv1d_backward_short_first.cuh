// Causal conv1d backward where neighbouring positions are neighbours in memory, for calls too small to fill the device.
//
//              seqlen →
//   channel c  │thread 0│thread 1│ …        a thread owns one packet of 16 bytes along the sequence
//
// Such a call is bound by latency: by the number of steps that wait for each other. So nothing is exchanged between threads. A
// thread loads its packets of x and dy, the packet of x before them and both packets after them, and computes itself the
// width-1 gradients to its right that its dx needs. A block owns whole channels, `threads` / `channels` threads each. If
// there are more packets than threads, they are taken in several rounds.
//
// Cost per element: x three times and dy twice, mostly from the L1 cache; dx once. Instructions: 24.5 · (1 + (width-1)/COUNT)
// with SiLU, where COUNT is the positions of a packet.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

// Rows begin on a multiple of 16 bytes and are `pieces` whole packets long.
//
//   struct Tile {
//       static constexpr int threads;        of a block
//       static constexpr int channels;       of a block, a power of two; whole waves work on one channel
//       static constexpr int weight_bytes;   see load_parameters
//   };
template <class Problem, class Tile> class ShortFirstBackward {
    using X = typename Problem::X;
    static constexpr int THREADS = Tile::threads, CHANNELS = Tile::channels, EACH = THREADS / CHANNELS;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1, COUNT = ELEMENTS<X, 16>;
    static constexpr int SUMS = Problem::dbias ? WIDTH + 1 : WIDTH;
    static constexpr int WAVES = EACH / (int)WAVE_SIZE;  // of a channel
    static_assert(EACH % (int)WAVE_SIZE == 0 && HALO <= COUNT && SUMS <= 8, "whole waves, near neighbours, few sums");
    static_assert(!PACKED<Problem> && !Problem::seq_idx, "short rows know no boundaries");

    struct Packets {
        i32 entry, packet;
        Packet<16> x[3], dy[2];  // x before, here and after; dy here and after
    };

public:
    CAUSEWAY_DEVICE explicit ShortFirstBackward(const BackwardArguments& a) : a(a) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        channel = (i32)(block * CHANNELS + thread_index() / EACH);
#pragma unroll
        for (int j = 0; j <= WIDTH; ++j) sums[j] = 0.0f;
        const u32 units = (u32)a.batch * a.pieces;
        u32 unit = thread_index() % EACH;
        if (channel < a.dim && unit < units) {
            Packets packets = load_packets(unit);
            load_weights<Problem, Tile::weight_bytes>(a, channel, weight, bias);
#pragma unroll 1
            while (true) {
                compute(packets);
                unit += EACH;
                if (unit >= units) break;
                // Computes the channel's offsets again: kept from round to round they would take too many registers.
                channel = opaque(channel);
                packets = load_packets(unit);
            }
        }
        write_channel_sums<Problem, CHANNELS, WAVES, SUMS>(a, sums, 0, block, channel);
    }

private:
    CAUSEWAY_DEVICE Packets load_packets(u32 unit) const {
        Packets out;
        out.entry = (i32)quotient(unit, a.pieces_divisor);
        out.packet = (i32)(unit - (u32)out.entry * a.pieces);
        const bool has_next = out.packet + 1 < (i32)a.pieces;
        const char* const x = at(a.x, out);
        const char* const dy = at(a.dy, out);
        out.x[1] = load<16>(x);
        out.dy[0] = load<16>(dy);
        out.x[0] = load_if<16>(HALO > 0 && out.packet > 0, x - 16);
        out.x[2] = load_if<16>(HALO > 0 && has_next, x + 16);
        out.dy[1] = load_if<16>(HALO > 0 && has_next, dy + 16);
        return out;
    }

    CAUSEWAY_DEVICE char* at(const Memory& view, const Packets& packets) const {
        return (char*)view.data + (packets.entry * view.entry + channel * view.channel) * (i64)sizeof(X) +
               (i64)packets.packet * 16;
    }

    CAUSEWAY_DEVICE void compute(const Packets& packets) {
        float x[3 * COUNT], d[2 * COUNT], g[COUNT + HALO], out[COUNT];
#pragma unroll
        for (int p = 0; p < 3; ++p) put(packets.x[p], x, p * COUNT);
#pragma unroll
        for (int p = 0; p < 2; ++p) put(packets.dy[p], d, p * COUNT);
        if constexpr (Problem::initial_states) {
            if (packets.packet == 0) {
#pragma unroll
                for (int k = 0; k < HALO; ++k) x[COUNT - HALO + k] = read<X>(a.initial_states, packets.entry, channel, k);
            }
        }
        const bool is_last = packets.packet + 1 == (i32)a.pieces;
#pragma unroll
        for (int v = 0; v < COUNT + HALO; ++v) {
            float pre = bias;
            if constexpr (Problem::silu) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j], x[COUNT + v - j], pre);
            }
            g[v] = activation_gradient<Problem::silu>(pre, d[v]);
            // Behind the row, pre may overflow all the same, and a dy of 0 makes a NaN of that.
            if (Problem::silu && v >= COUNT && is_last) g[v] = 0.0f;
            if (v >= COUNT) continue;
            sums[WIDTH] += g[v];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) sums[j] = multiply_add(g[v], x[COUNT + v - j], sums[j]);
        }
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            out[v] = 0.0f;
            if constexpr (Problem::dfinal_states) {
                const int k = HALO - (COUNT - v);
                if (k >= 0 && is_last) out[v] = read<X>(a.dfinal_states, packets.entry, channel, k);
            }
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) out[v] = multiply_add(weight[j], g[v + j], out[v]);
        }
        store(at(a.dx, packets), pack<X, 16>(out));
    }

    template <int Size> static CAUSEWAY_DEVICE void put(const Packet<16>& packet, float (&values)[Size], int from) {
        float part[COUNT];
        unpack<X>(packet, part);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) values[from + i] = part[i];
    }

    const BackwardArguments& a;
    i32 channel;  // this kernel is for calls of fewer than 2^31 elements
    float weight[WIDTH], bias, sums[WIDTH + 1];
};

template <class Problem, class Tile> CAUSEWAY_DEVICE void backward_short_first(const BackwardArguments& a) {
    const u32 block = block_index<0>();
    if constexpr (Problem::dinitial_states) {
        if (block >= a.sum_blocks) return initial_states_gradient<Problem, Tile::threads>(a, block - a.sum_blocks);
    }
    ShortFirstBackward<Problem, Tile>(a).run(block);
}

}  // namespace causal_conv1d
}  // namespace causeway
