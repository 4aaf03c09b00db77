// Causal conv1d backward where neighbouring positions are neighbours in memory, for plain calls with many short rows of whole packets.
//
//   channel c   │ row of entry 0        │ row of entry 1        │ …    the packets of all of a channel's rows, one row behind the other
//               │ tile 0  │ tile 1  │ tile 2  │ tile 3  │ …            a wave takes a run of whole tiles, from its last one to its first
//                                      ←─────────────
//               │lane 0│lane 1│ …                                     a lane owns one packet of a tile
//
// So no lane is idle where a row ends: those behind it have packets of the next row. Tiles are prefetched into a ring in shared memory, three
// tiles ahead; the next has already arrived. A lane reads its halo of x from there, where the packet before its own lies, and gets the
// halo of g, width-1 gradients to its right, by shuffles. Both are zero at a row's ends.
//
// Cost per element: x, dy and dx once. Instructions with SiLU: the 24.5 of channel-last, and 50 to 100 for addresses, loop, shuffles and
// ends of rows, divided by COUNT, the positions of a packet.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

// Rows have `pieces` packets, each on a multiple of 16 bytes. A wave's run has `piece` packets.
//
//   struct Tile {
//       static constexpr int threads;             of a block
//       static constexpr int waves_per_channel;   of a block; `parts` blocks have as many each
//       static constexpr bool split;              there are several parts
//       static constexpr bool even;               a tile is a whole number of rows
//       static constexpr int weight_bytes;        see load_parameters
//   };
template <class Problem, class Tile> class FlatFirstBackward {
    using X = typename Problem::X;
    static constexpr int THREADS = Tile::threads, WAVES = THREADS / (int)WAVE_SIZE;
    static constexpr int WAVES_PER_CHANNEL = Tile::waves_per_channel, CHANNELS = WAVES / WAVES_PER_CHANNEL;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1, COUNT = ELEMENTS<X, 16>, SIZE = sizeof(X);
    static constexpr int LANES = (int)WAVE_SIZE, STAGES = 4;
    static constexpr bool EVEN = Tile::even;
    static constexpr int HALO_BYTES = HALO * SIZE <= 4 ? 4 : HALO * SIZE <= 8 ? 8 : 16;
    static constexpr u32 TILE_BYTES = LANES * 16, RING = STAGES * TILE_BYTES;
    static constexpr u32 SUMS_AT = WAVES * 2 * RING;
    static_assert(!PACKED<Problem> && !Problem::seq_idx, "plain rows");
    static_assert(!Problem::initial_states && !Problem::dinitial_states && !Problem::dfinal_states, "plain rows");
    static_assert(HALO <= COUNT, "near neighbours");

public:
    CAUSEWAY_DEVICE explicit FlatFirstBackward(const BackwardArguments& a) : a(a) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        const u32 group = Tile::split ? quotient(block, a.parts_divisor) : block, part = Tile::split ? block - group * a.parts : 0;
        const u32 wave = thread_index() / WAVE_SIZE;
        channel = (i32)(group * CHANNELS + wave / WAVES_PER_CHANNEL);
#pragma unroll
        for (int j = 0; j <= WIDTH; ++j) sums[j] = 0.0f;
        if (channel < a.dim) walk(wave * 2 * RING, (i32)(part * WAVES_PER_CHANNEL + wave % WAVES_PER_CHANNEL));
        write_channel_sums<Problem, CHANNELS, WAVES_PER_CHANNEL, Tile::split>(a, sums, SUMS_AT, group, part, channel);
    }

private:
    // Takes the run whose number is `walker`.
    CAUSEWAY_DEVICE void walk(u32 ring, i32 walker) {
        const i32 all = (i32)a.batch * (i32)a.pieces, begin = walker * (i32)a.piece;
        if (begin >= all) return;
        load_weights<Problem, Tile::weight_bytes>(a, channel, weight, bias);
        lane = (i32)lane_index();
        count = minimum(all - begin, (i32)a.piece);
        has_before = !EVEN && begin > 0 ? 1 : 0;
        rows_back = LANES / (i32)a.pieces;
        // The lane's packet of the run's last tile: its number in the run, which may be behind its end, and in its row.
        i32 number = (count - 1) / LANES * LANES + lane;
        const i32 entry = (i32)quotient((u32)(begin + number), a.pieces_divisor);
        i32 packet = begin + number - entry * (i32)a.pieces;
        fetch_number = number, fetch_packet = packet;
        x_from = address(a.x, entry, packet);
        dy_from = address(a.dy, entry, packet);
        dx_to = address(a.dx, entry, packet);
        fetch_at = at = ring + lane * 16;
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) fetch();
        enter(begin + count);
#pragma unroll 1
        for (; number >= 0; number -= LANES) {
            // This tile and the next have arrived, and all lanes have read the tile before.
            async_wait<STAGES - 3>();
            wave_barrier();
            fetch();
            compute(number, packet);
            dx_to += step(a.dx, back(packet));
            at = before_in_ring(at, TILE_BYTES);
        }
        async_wait<0>();
    }

    CAUSEWAY_DEVICE char* address(const Memory& view, i32 entry, i32 packet) const {
        return (char*)view.data + (entry * view.entry + channel * view.channel) * (i64)SIZE + packet * 16;
    }

    // Goes a tile back, and says whether that is one row more than a tile's whole rows.
    CAUSEWAY_DEVICE bool back(i32& packet) const {
        if constexpr (EVEN) return false;
        packet -= LANES - rows_back * (i32)a.pieces;
        const bool wraps = packet < 0;
        if (wraps) packet += (i32)a.pieces;
        return wraps;
    }

    // Bytes from a lane's packet to that of the tile before.
    CAUSEWAY_DEVICE i64 step(const Memory& view, bool wraps) const {
        const i64 row = view.entry * SIZE;
        if constexpr (EVEN) return -rows_back * row;
        const i64 whole = (rows_back * (i64)a.pieces - LANES) * 16 - rows_back * row;
        return wraps ? whole + (i64)a.pieces * 16 - row : whole;
    }

    // The ring begins at a multiple of its size.
    static CAUSEWAY_DEVICE u32 before_in_ring(u32 offset, u32 bytes) {
        return (offset & ~(RING - 1)) | ((offset - bytes) & (RING - 1));
    }

    // Fetches the next tile. Of the one before the run, the last lane's x is the halo of the run's first packet.
    CAUSEWAY_DEVICE void fetch() {
        const bool has_x = (u32)(fetch_number + has_before) < (u32)(count + has_before), has_dy = (u32)fetch_number < (u32)count;
        async_copy<16>(fetch_at, x_from, has_x);
        async_copy<16>(fetch_at + RING, dy_from, has_dy);
        async_commit();
        fetch_number -= LANES;
        const bool wraps = back(fetch_packet);
        x_from += step(a.x, wraps);
        dy_from += step(a.dy, wraps);
        fetch_at = before_in_ring(fetch_at, TILE_BYTES);
    }

    // Loads the gradients to the right of the run that ends before packet `end`: zeros where a row ends.
    CAUSEWAY_DEVICE void enter(i32 end) {
#pragma unroll
        for (int i = 0; i < HALO; ++i) right[i] = 0.0f;
        if constexpr (EVEN || HALO == 0) return;
        const i32 entry = (i32)quotient((u32)end, a.pieces_divisor), packet = end - entry * (i32)a.pieces;
        if (packet == 0) return;
        const i32 t = packet * COUNT + lane;
        float g = 0.0f;
        if (lane < HALO) g = gradient_at<Problem>(a, {entry, 0, (i32)a.seqlen}, entry, channel, t);
#pragma unroll
        for (int i = 0; i < HALO; ++i) right[i] = shuffle(g, i);
    }

    // Computes the lane's packet: its number in the run, and in its row.
    CAUSEWAY_DEVICE void compute(i32 number, i32 packet) {
        float x[HALO + COUNT], d[COUNT], g[COUNT + HALO], out[COUNT];
        {
            float part[COUNT];
            unpack<X>(load_shared<16>(at), part);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) x[HALO + i] = part[i];
            unpack<X>(load_shared<16>(at + RING), d);
        }
        if constexpr (HALO > 0) {
            constexpr int HELD = ELEMENTS<X, HALO_BYTES>;
            Packet<HALO_BYTES> halo = load_shared<HALO_BYTES>(before_in_ring(at, HALO_BYTES));
#pragma unroll
            for (int i = 0; i < HALO_BYTES / 4; ++i) halo.word[i] = packet == 0 ? 0 : halo.word[i];
            float part[HELD];
            unpack<X>(halo, part);
#pragma unroll
            for (int i = 0; i < HALO; ++i) x[i] = part[HELD - HALO + i];
        }
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            float pre = bias;
            if constexpr (Problem::silu) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j], x[HALO + v - j], pre);
            }
            g[v] = activation_gradient<Problem::silu>(pre, d[v]);
        }
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            if constexpr (Problem::dbias) sums[WIDTH] += g[v];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) sums[j] = multiply_add(g[v], x[HALO + v - j], sums[j]);
        }
        const bool is_last = packet == (i32)a.pieces - 1;
#pragma unroll
        for (int i = 0; i < HALO; ++i) {
            const float next = shuffle(!EVEN && lane == 0 ? right[i] : g[i], (u32)(lane + 1) % WAVE_SIZE);
            right[i] = g[i];
            g[COUNT + i] = is_last ? 0.0f : next;
        }
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            out[v] = weight[0] * g[v];
#pragma unroll
            for (int j = 1; j < WIDTH; ++j) out[v] = multiply_add(weight[j], g[v + j], out[v]);
        }
        // Behind the last row dy, x and its halo are zeros, and so is what they add to the sums.
        if (number < count) store(dx_to, pack<X, 16>(out));
    }

    const BackwardArguments& a;
    i32 channel, lane;
    i32 rows_back;                    // whole rows of a tile
    i32 count, has_before;            // packets of the run, and 1 where there are some before it
    i32 fetch_number, fetch_packet;   // the lane's packet that is fetched next, as in compute
    char *x_from, *dy_from, *dx_to;   // the same, and the packet that is computed
    u32 fetch_at, at;                 // the lane's offsets in the ring, of these two
    float weight[WIDTH], bias, sums[WIDTH + 1];
    float right[HALO + 1];            // g to the right of the tile, where that is not a row's end
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_flat_first(const BackwardArguments& a, u32 block = block_index<0>()) {
    FlatFirstBackward<Problem, Tile>(a).run(block);
}

}  // namespace causal_conv1d
}  // namespace causeway
