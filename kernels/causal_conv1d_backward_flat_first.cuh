// Causal conv1d backward where neighbouring positions are neighbours in memory, for plain calls with many short rows.
//
//   channel c   │ row of entry 0        │ row of entry 1        │ …    the packets of all of a channel's rows, one row after the other
//               │ tile 0  │ tile 1  │ tile 2  │ tile 3  │ …            a wave takes a run of whole tiles, from its last one to its first
//                                      ←─────────────
//               │lane 0│lane 1│ …                                     a lane owns one packet of a tile
//
// So no lane is idle where a row ends: those past it have packets of the next row. Tiles are prefetched into a ring in shared memory, three
// tiles ahead; the next has already arrived. A lane reads its halo of x from there, where the packet before its own lies, and gets the
// halo of g, width-1 gradients to its right, by shuffles. Both are zero at a row's ends.
//
// Ragged rows begin and end inside a packet, each at another element. All rows are given the same number of packets; the last may lie wholly past
// its row. Elements of a packet before its row belong to another row, and are set to zero in the ring. Elements past the row's end are not fetched.
//
// Cost per element: x, dy and dx once. Instructions with SiLU: the 24.5 of channel-last, and 50 to 100 for addresses, loop, shuffles and
// ends of rows, divided by COUNT, the positions of a packet; ragged rows take 75 more in each tile with an end of a row.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

// Rows have `pieces` packets. A row begins equally far past a multiple of 16 bytes in x, dy and dx; rows may differ. The packet in which a row
// begins lies in the tensor's memory. A wave's run has `piece` packets.
//
//   struct Tile {
//       static constexpr int threads;             of a block
//       static constexpr int waves_per_channel;   of a block; `parts` blocks have as many each
//       static constexpr bool split;              there are several parts
//       static constexpr bool even;               a tile is a whole number of rows
//       static constexpr bool ragged;             rows begin or end inside a packet
//       static constexpr int weight_bytes;        see load_parameters
//   };
template <class Problem, class Tile> class FlatFirstBackward {
    using X = typename Problem::X;
    static constexpr int THREADS = Tile::threads, WAVES = THREADS / (int)WAVE_SIZE;
    static constexpr int WAVES_PER_CHANNEL = Tile::waves_per_channel, CHANNELS = WAVES / WAVES_PER_CHANNEL;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1, COUNT = ELEMENTS<X, 16>, SIZE = sizeof(X);
    static constexpr int LANES = (int)WAVE_SIZE, STAGES = 4;
    static constexpr bool DIVIDES = Tile::even, RAGGED = Tile::ragged;
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
    // A lane's packet of a tile, walked from tile to tile.
    struct Place {
        i32 packet;  // of its row
        char* at;    // the row's begin + 16 · packet; in ragged rows that is inside the lane's packet in memory
    };

    // Bytes from a lane's packet to that of the tile before, where that is as many rows back as a tile has, and where it is one more.
    struct Steps {
        i32 whole, wrapped;
    };

    // Takes the run whose number is `walker`.
    CAUSEWAY_DEVICE void walk(u32 ring, i32 walker) {
        const i32 all = (i32)a.batch * (i32)a.pieces, begin = walker * (i32)a.piece;
        if (begin >= all) return;
        load_weights<Problem, Tile::weight_bytes>(a, channel, weight, bias);
        lane = (i32)lane_index();
        const i32 count = minimum(all - begin, (i32)a.piece);
        const i32 has_before = !DIVIDES && begin > 0 ? 1 : 0;  // there are packets before the run
        packets_back = LANES / (i32)a.pieces * (i32)a.pieces - LANES;
        x_steps = steps(a.x), dy_steps = steps(a.dy), dx_steps = steps(a.dx);
        // The lane's packet of the run's last tile: its number in the run, which may be past its end, and in its row.
        i32 number = (count - 1) / LANES * LANES + lane;
        const i32 entry = (i32)quotient((u32)(begin + number), a.pieces_divisor), packet = begin + number - entry * (i32)a.pieces;
        fetch_number = number + has_before, fetch_count = count + has_before, fetch_packet = packet;
        x_from = address(a.x, entry, packet);
        dy_from = address(a.dy, entry, packet);
        Place place{packet, address(a.dx, entry, packet)};
        at = ring + lane * 16;
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) fetch(before_in_ring(at, s * TILE_BYTES));
        enter(begin + count);
        if constexpr (RAGGED) {
            async_wait<STAGES - 2>();
            clear_before(at, place);
        }
#pragma unroll 1
        for (; number >= 0; number -= LANES) {
            // This tile and the next have arrived, and all lanes have read the tile before.
            async_wait<STAGES - 3>();
            const u32 next_at = before_in_ring(at, TILE_BYTES);
            Place next = place;
            next.at += back(next.packet) ? dx_steps.wrapped : dx_steps.whole;
            if constexpr (RAGGED) clear_before(next_at, next);
            wave_barrier();
            fetch(before_in_ring(at, (STAGES - 1) * TILE_BYTES));
            compute(place, number < count);
            at = next_at, place = next;
        }
        async_wait<0>();
    }

    CAUSEWAY_DEVICE char* address(const Memory& view, i32 entry, i32 packet) const {
        return (char*)view.data + (entry * view.entry + channel * view.channel) * (i64)SIZE + packet * 16;
    }

    // Goes a tile back, and says whether that is one row more than a tile's whole rows.
    CAUSEWAY_DEVICE bool back(i32& packet) const {
        if constexpr (DIVIDES) return false;
        packet += packets_back;
        const bool wraps = packet < 0;
        if (wraps) packet += (i32)a.pieces;
        return wraps;
    }

    // Kept in registers: the compiler would compute them for each tile.
    CAUSEWAY_DEVICE Steps steps(const Memory& view) const {
        const i32 row = (i32)(view.entry * SIZE), whole = packets_back * 16 - LANES / (i32)a.pieces * row;
        return {opaque(whole), opaque(whole + (i32)a.pieces * 16 - row)};
    }

    // The ring begins at a multiple of its size.
    static CAUSEWAY_DEVICE u32 before_in_ring(u32 offset, u32 bytes) {
        return (offset & ~(RING - 1)) | ((offset - bytes) & (RING - 1));
    }

    // Of an address as in Place: the elements from the begin of the row's first packet to that of the row, and the address of the packet.
    static CAUSEWAY_DEVICE i32 shift(const char* at) { return RAGGED ? (i32)((u64)at & 15) / SIZE : 0; }
    static CAUSEWAY_DEVICE char* whole(char* at) { return RAGGED ? (char*)((u64)at & ~(u64)15) : at; }

    // Sets elements of the lane's packet at `own` that lie before its row to zero.
    CAUSEWAY_DEVICE void clear_before(u32 own, const Place& place) const {
        const i32 before = shift(place.at);
        if (place.packet > 0 || before == 0) return;
        clear_first<X>(own, before);
        clear_first<X>(own + RING, before);
    }

    // Fetches the next tile. Of the one before the run, the last lane's x is the halo of the run's first packet.
    CAUSEWAY_DEVICE void fetch(u32 to) {
        u32 bytes = (u32)fetch_number < (u32)fetch_count ? 16 : 0;
        if constexpr (RAGGED) {
            const i32 rest = ((i32)a.seqlen - fetch_packet * COUNT + shift(x_from)) * SIZE;
            bytes = bytes > 0 ? (u32)maximum(minimum(rest, 16), 0) : 0;
        }
        async_copy_first<16>(to, whole(x_from), bytes);
        async_copy_first<16>(to + RING, whole(dy_from), bytes);
        async_commit();
        fetch_number -= LANES;
        const bool wraps = back(fetch_packet);
        x_from += wraps ? x_steps.wrapped : x_steps.whole;
        dy_from += wraps ? dy_steps.wrapped : dy_steps.whole;
    }

    // Loads the gradients to the right of the run that ends before packet `end`: zeros where a row ends.
    CAUSEWAY_DEVICE void enter(i32 end) {
#pragma unroll
        for (int i = 0; i < HALO; ++i) right[i] = 0.0f;
        if constexpr (DIVIDES || HALO == 0) return;
        const i32 entry = (i32)quotient((u32)end, a.pieces_divisor), packet = end - entry * (i32)a.pieces;
        if (packet == 0) return;
        const i32 t = packet * COUNT + lane - shift(address(a.x, entry, 0));
        float g = 0.0f;
        if (lane < HALO && (!RAGGED || t < (i32)a.seqlen)) g = gradient_at<Problem>(a, {entry, 0, (i32)a.seqlen}, entry, channel, t);
#pragma unroll
        for (int i = 0; i < HALO; ++i) right[i] = shuffle(g, i);
    }

    // Computes the lane's packet, and stores it if it `exists`. Past the last row x, its halo and dy are zero, so the packet adds zero to
    // the sums.
    CAUSEWAY_DEVICE void compute(const Place& place, bool exists) {
        const i32 packet = place.packet;
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
        // Elements of the packet that lie in its row begin at `from` and end before `to`. Past the row's end x and dy are zero, but pre may
        // overflow because of the halo, and 0 · ∞ is NaN.
        const i32 to = RAGGED ? (i32)a.seqlen - packet * COUNT + shift(place.at) : COUNT, from = packet == 0 ? shift(place.at) : 0;
        if (RAGGED && to < COUNT) {
#pragma unroll
            for (int v = 0; v < COUNT; ++v) g[v] = v < to ? g[v] : 0.0f;
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
            const float next = shuffle(!DIVIDES && lane == 0 ? right[i] : g[i], (u32)(lane + 1) % WAVE_SIZE);
            right[i] = g[i];
            g[COUNT + i] = is_last ? 0.0f : next;
        }
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            out[v] = weight[0] * g[v];
#pragma unroll
            for (int j = 1; j < WIDTH; ++j) out[v] = multiply_add(weight[j], g[v + j], out[v]);
        }
        if (!exists) return;
        const Packet<16> result = pack<X, 16>(out);
        if (!RAGGED || from == 0 && to >= COUNT) {
            store(whole(place.at), result);
        } else {
            store_some<X>(whole(place.at), result, from, to);
        }
    }

    const BackwardArguments& a;
    i32 channel, lane;
    i32 packets_back;                         // from a packet to that of the tile before, by its number in the row
    Steps x_steps, dy_steps, dx_steps;
    i32 fetch_number, fetch_count;            // the lane's packet that is fetched next: its number, with one before the run, and how many there are
    i32 fetch_packet;                         // as in Place
    char *x_from, *dy_from;
    u32 at;                                   // the lane's offset in the ring
    float weight[WIDTH], bias, sums[WIDTH + 1];
    float right[HALO + 1];            // g to the right of the tile, where that is not a row's end
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_flat_first(const BackwardArguments& a, u32 block = block_index<0>()) {
    FlatFirstBackward<Problem, Tile>(a).run(block);
}

}  // namespace causal_conv1d
}  // namespace causeway
