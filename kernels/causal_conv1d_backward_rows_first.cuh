// Causal conv1d backward where neighbouring positions are neighbours in memory, for rows of a few packets.
//
//              ├─ channel c ──┤├─ channel c+1 ┤
//   entry e    │ 0 │ 1 │ 2 │ 3 ││ 0 │ 1 │ 2 │ 3 │ …    a thread has one packet of 16 bytes of a channel's rows, and walks over entries
//   entry e+1  │ 0 │ 1 │ 2 │ 3 ││ 0 │ 1 │ 2 │ 3 │ …
//
// Channels lie side by side in memory, and so do their threads: a wave reads its lanes' packets in one run, however short rows are,
// and no lane is without a packet. A thread keeps its channel's weights and sums to the end. The width-1 gradients to its right come
// from the lane beside it. So a wave's last lane only computes gradients, and the first lane of the next wave has its packet too.
//
// Rows may begin anywhere: packets lie where memory has them, and the first position of a row's first packet is then negative.
//
// Cost per element: x twice, from the L1 cache the second time; dy and dx once. Instructions, width 4, SiLU, 16 bit: 31, which are the 24.5
// of channel-last, and addresses, loop and shuffles; in ragged rows about 15 more, 8 of them for masks.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

// Rows lie in `pieces` packets, and blocks have `tile_channels` channels; `parts` is at most the number of entries. `slices` threads share
// one sum, a power of two up to a wave.
//
//   struct Tile {
//       static constexpr int threads;        of a block
//       static constexpr bool ragged;        rows may begin or end inside a packet; all tensors do so at the same element
//       static constexpr bool split;         `parts` blocks have the same channels
//       static constexpr int weight_bytes;   see load_parameters
//   };
template <class Problem, class Tile> class RowsBackward {
    using X = typename Problem::X;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1, COUNT = ELEMENTS<X, 16>, THREADS = Tile::threads;
    static constexpr int SUMS = SUMS_OF<Problem>, WAVE = (int)WAVE_SIZE;
    static constexpr bool RAGGED = Tile::ragged;
    static constexpr int LANES = HALO > 0 ? WAVE - 1 : WAVE;  // of a wave that have a packet of their own
    static constexpr int PLACES = THREADS / WAVE * LANES;
    static_assert(HALO <= COUNT, "near neighbours");
    static_assert(!PACKED<Problem> && !Problem::seq_idx, "no boundaries");

    struct Packets {
        i32 first;             // position of the packet's first element; with ragged rows it may be negative
        Packet<16> x[2], dy;  // x before and here
    };

public:
    CAUSEWAY_DEVICE explicit RowsBackward(const BackwardArguments& a) : a(a) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        // Neighbouring blocks have neighbouring channels.
        const u32 part = Tile::split ? quotient(block, a.groups_divisor) : 0, group = block - part * a.channel_groups;
        const u32 place = thread_index() / WAVE * LANES + lane_index(), within = quotient(place, a.pieces_divisor);
        packet = (i32)(place - within * a.pieces);
        channel = (i32)(group * a.tile_channels + within);
        const bool exists = within < a.tile_channels && channel < a.dim;
        const bool owns = exists && (int)lane_index() < LANES;
        if (!exists) channel = 0;
        const i32 step = Tile::split ? (i32)a.parts : 1;
        const char* x = packet_of(a.x, part);
        const char* dy = packet_of(a.dy, part);
        char* dx = packet_of(a.dx, part);
        Packets packets = load_packets(x, dy, exists);
        load_weights<Problem, Tile::weight_bytes>(a, channel, weight, bias);
#pragma unroll
        for (int j = 0; j <= WIDTH; ++j) sums[j] = 0.0f;
        i32 entry = (i32)part;
#pragma unroll 1
        while (true) {
            compute(entry, packets, dx, exists, owns);
            entry += step;
            if (entry >= (i32)a.batch) break;
            x += step * a.x.entry * (i64)sizeof(X);
            dy += step * a.dy.entry * (i64)sizeof(X);
            dx += step * a.dx.entry * (i64)sizeof(X);
            packets = load_packets(x, dy, exists);
        }
        add_sums(group, part, place);
    }

private:
    // The address of the thread's packet where rows begin with a packet. Ragged ones have theirs at the multiple of 16 before.
    CAUSEWAY_DEVICE char* packet_of(const Memory& view, i64 entry) const {
        return (char*)view.data + (entry * view.entry + channel * view.channel) * (i64)sizeof(X) + packet * 16;
    }

    CAUSEWAY_DEVICE bool in_row(i32 position) const { return (u32)position < (u32)a.seqlen; }

    // A packet by elements: those of the row, whose positions begin at `first`, and zeros for others.
    CAUSEWAY_DEVICE Packet<16> gather(const char* address, i32 first) const {
        float values[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) values[i] = in_row(first + i) ? load_element((const X*)address + i) : 0.0f;
        return pack<X, 16>(values);
    }

    CAUSEWAY_DEVICE Packets load_packets(const char* x, const char* dy, bool exists) const {
        Packets out;
        const i32 shift = RAGGED ? (i32)((u32)(u64)x & 15) : 0;
        out.first = packet * COUNT - shift / (i32)sizeof(X);
        x -= shift, dy -= shift;
        if constexpr (RAGGED) {
            // Packets of the tensors' memory are loaded as a whole, and what lies in other rows is masked.
            const bool inside = lies_in(x - 16, 32, a.x_begin, a.x_end) && lies_in(dy, 16, a.dy_begin, a.dy_end);
            out.x[1] = load_if<16>(exists && inside, x);
            out.dy = load_if<16>(exists && inside, dy);
            out.x[0] = load_if<16>(HALO > 0 && exists && inside, x - 16);
            if (exists && !inside) {
                out.x[0] = gather(x - 16, out.first - COUNT);
                out.x[1] = gather(x, out.first);
                out.dy = gather(dy, out.first);
            }
        } else {
            out.x[1] = load_if<16>(exists, x);
            out.dy = load_if<16>(exists, dy);
            out.x[0] = load_if<16>(HALO > 0 && exists && packet > 0, x - 16);
        }
        return out;
    }

    CAUSEWAY_DEVICE void compute(i32 entry, const Packets& packets, char* dx, bool exists, bool owns) {
        const i32 first = packets.first, seqlen = (i32)a.seqlen;
        // Bit i: position first - HALO + i lies in the row.
        const i32 from = minimum(maximum(HALO - first, 0), 31), to = minimum(maximum(seqlen - first + HALO, 0), 31);
        const u32 valid = (u32)opaque((i32)(~(~0u << to) & (~0u << from)));
        // x[HALO + v] belongs to position first + v.
        float before[COUNT], here[COUNT], x[HALO + COUNT], d[COUNT], g[COUNT + HALO], out[COUNT];
        unpack<X>(packets.x[0], before);
        unpack<X>(packets.x[1], here);
        unpack<X>(packets.dy, d);
#pragma unroll
        for (int i = 0; i < HALO; ++i) x[i] = before[COUNT - HALO + i];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) x[HALO + i] = here[i];
        if constexpr (RAGGED) {
#pragma unroll
            for (int i = 0; i < HALO + COUNT; ++i) x[i] = (valid >> i & 1) != 0 ? x[i] : 0.0f;
        }
        if constexpr (Problem::initial_states) {
            if (exists && first < HALO) {
#pragma unroll
                for (int i = 0; i < HALO + (RAGGED ? COUNT : 0); ++i) {
                    const i32 k = first + i;
                    if (k >= 0 && k < HALO) x[i] = read<X>(a.initial_states, entry, channel, k);
                }
            }
        }
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            float pre = bias;
            if constexpr (Problem::silu) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j], x[HALO + v - j], pre);
            }
            g[v] = activation_gradient<Problem::silu>(pre, d[v]);
            // Outside the row, pre may overflow all the same, and a dy of 0 makes a NaN of that.
            if (RAGGED && (valid >> (HALO + v) & 1) == 0) g[v] = 0.0f;
        }
        const bool has_next = packet + 1 < (i32)a.pieces;
#pragma unroll
        for (int j = 0; j < HALO; ++j) {
            const float next = shuffle(g[j], (lane_index() + 1) % WAVE_SIZE);
            g[COUNT + j] = has_next ? next : 0.0f;
        }
        if (!owns) return;
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            sums[WIDTH] += g[v];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) sums[j] = multiply_add(g[v], x[HALO + v - j], sums[j]);
        }
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            out[v] = 0.0f;
            if constexpr (Problem::dfinal_states) {
                const i32 k = first + v - (seqlen - HALO);
                if (k >= 0 && k < HALO) out[v] = read<X>(a.dfinal_states, entry, channel, k);
            }
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) out[v] = multiply_add(weight[j], g[v + j], out[v]);
        }
        const Packet<16> result = pack<X, 16>(out);
        if constexpr (RAGGED) dx = (char*)((u64)dx & ~15ull);
        if (!RAGGED || (first >= 0 && first + COUNT <= seqlen)) {
            store(dx, result);
        } else {
            store_some<X>(dx, result, -first, seqlen - first);
        }
    }

    // Adds and writes the sums of the block's channels: `slices` threads share one, and take the threads of its channel in turns.
    CAUSEWAY_DEVICE void add_sums(u32 group, u32 part, u32 place) const {
        constexpr int PITCH = PLACES * 4;
        const int slices = (int)a.slices, at_once = THREADS / slices, count = (int)a.tile_channels * SUMS;
        const int own = (int)thread_index() / slices, slice = (int)thread_index() % slices;
        constexpr u32 TOTALS = SUMS * PITCH;
        if ((int)lane_index() < LANES) {
#pragma unroll
            for (int j = 0; j < SUMS; ++j) write_shared(j * PITCH + place * 4, sums[j]);
        }
        block_barrier();
        const auto total = [&](int i, float value) {
            const i64 c = (i64)group * a.tile_channels + i / SUMS;
            if (c < a.dim) write_sum<Problem>(a, c, i % SUMS, value);
        };
#pragma unroll 1
        for (int round = 0; round < count; round += at_once) {
            const int i = round + own, c = i / SUMS, j = i - c * SUMS;
            float sum = 0.0f;
            if (i < count && (i64)group * a.tile_channels + c < a.dim) {
#pragma unroll 4
                for (int k = slice; k < (int)a.pieces; k += slices) sum += read_shared(j * PITCH + (c * (int)a.pieces + k) * 4);
            }
#pragma unroll 1
            for (u32 distance = (u32)slices / 2; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
            if (i < count && slice == 0) {
                if constexpr (Tile::split) {
                    write_shared(TOTALS + i * 4, sum);
                } else {
                    total(i, sum);
                }
            }
        }
        if constexpr (Tile::split) {
            block_barrier();
            sum_over_blocks<THREADS, 1, 16>(
                a, group, part, count, TOTALS + count * 4,
                [&](int i, float (&value)[1]) { value[0] = read_shared(TOTALS + i * 4); },
                [&](int i, const float (&value)[1]) { total(i, value[0]); });
        }
    }

    const BackwardArguments& a;
    i32 channel, packet;
    float weight[WIDTH], bias, sums[WIDTH + 1];
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_rows_first(const BackwardArguments& a, u32 block = block_index<0>()) {
    run_or_states<RowsBackward<Problem, Tile>, Problem, Tile::threads>(a, block);
}

}  // namespace causal_conv1d
}  // namespace causeway
