// Causal conv1d backward where neighbouring positions are neighbours in memory, for plain calls whose rows are whole tiles: many
// waves with few registers each.
//
//              seqlen →
//   channel c  │ tile 0      │ tile 1      │ tile 2      │     a wave takes a piece of a row from its last tile to its
//                                          ←─────────────      first, then the same piece of its next row
//              │lane 0│lane 1│ …                              a lane owns one packet of a tile
//
// Tiles are prefetched into a ring in shared memory, three tiles ahead and from one row into the next. A lane reads from there its
// packets and its halo of x, which another lane has copied: what lies side by side in a row does so in the ring, which wraps
// round at its ends. The halo of g, width-1 gradients to the right of a packet, moves by shuffles; that of a tile is kept from the
// tile walked before. Where a piece ends inside its row, width-1 lanes compute one gradient each.
//
// Cost per element: x, dy and dx once. Instructions with SiLU: the 24.5 of channel-last, and 3 shuffles, 3 selects and 10 to 20
// for addresses and loop, divided by COUNT, the positions of a packet.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

// Rows begin on a multiple of 16 bytes and are whole tiles.
//
//   struct Tile {
//       static constexpr int threads;             of a block
//       static constexpr int waves_per_channel;   a multiple of the number of pieces of a row
//       static constexpr bool whole_rows;         a row is one piece
//       static constexpr int tiles;               of a piece, an even number
//       static constexpr int weight_bytes;        see load_parameters
//   };
template <class Problem, class Tile> class TilesFirstBackward {
    using X = typename Problem::X;
    static constexpr int THREADS = Tile::threads, WAVES = THREADS / (int)WAVE_SIZE;
    static constexpr int WAVES_PER_CHANNEL = Tile::waves_per_channel, CHANNELS = WAVES / WAVES_PER_CHANNEL;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1, COUNT = ELEMENTS<X, 16>, SIZE = sizeof(X);
    // Tiles in the ring, of a piece, and of a step of the walk.
    static constexpr int STAGES = 4, TILES = Tile::tiles, UNROLL = TILES % 4 == 0 ? 4 : 2;
    static constexpr bool ONE_STEP = TILES == UNROLL;
    static constexpr int HALO_BYTES = HALO * SIZE <= 4 ? 4 : HALO * SIZE <= 8 ? 8 : 16;
    static constexpr u32 TILE_BYTES = WAVE_SIZE * 16, RING = STAGES * TILE_BYTES;
    static constexpr u32 SUMS_AT = WAVES * 2 * RING;
    static_assert(!PACKED<Problem> && !Problem::seq_idx, "plain rows");
    static_assert(!Problem::initial_states && !Problem::dinitial_states && !Problem::dfinal_states, "plain rows");
    static_assert(HALO <= COUNT, "near neighbours");

public:
    CAUSEWAY_DEVICE explicit TilesFirstBackward(const BackwardArguments& a) : a(a) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        const u32 wave = thread_index() / WAVE_SIZE;
        channel = (i32)(block * CHANNELS + wave / WAVES_PER_CHANNEL);
#pragma unroll
        for (int j = 0; j <= WIDTH; ++j) sums[j] = 0.0f;
        if (channel < a.dim) walk(wave, wave % WAVES_PER_CHANNEL);
        write_channel_sums<Problem, CHANNELS, WAVES_PER_CHANNEL, false>(a, sums, SUMS_AT, block, 0, channel);
    }

private:
    CAUSEWAY_DEVICE void walk(u32 wave, u32 walker) {
        const i32 batch = (i32)a.batch;
        const i32 first_entry = Tile::whole_rows ? (i32)walker : (i32)quotient(walker, a.pieces_divisor);
        const i32 piece = (i32)walker - first_entry * (Tile::whole_rows ? 1 : (i32)a.pieces);
        const i32 entry_step = Tile::whole_rows ? WAVES_PER_CHANNEL : (i32)quotient(WAVES_PER_CHANNEL, a.pieces_divisor);
        if (first_entry >= batch) return;
        load_weights<Problem, Tile::weight_bytes>(a, channel, weight, bias);
        lane = (i32)lane_index();
        // Offset of the lane's first byte in the first tile, in memory, of the piece's last step.
        const i32 last = ((piece + 1) * TILES - UNROLL) * (i32)TILE_BYTES + lane * 16;
        fetch_x = start(a.x, first_entry) + last;
        fetch_dy = start(a.dy, first_entry) + last;
        fetch_entry = first_entry;
        fetch_at = 0;
        const i64 x_step = entry_step * a.x.entry * SIZE, dy_step = entry_step * a.dy.entry * SIZE;
        // Fetches tile `slot` of a step into the stage at `to`.
        const auto fetch = [&](u32 to, int slot) {
            const bool valid = fetch_entry < batch;
            const i32 offset = (UNROLL - 1 - slot) * (i32)TILE_BYTES;
            async_copy<16>(to, fetch_x + (ONE_STEP ? 0 : fetch_at) + offset, valid);
            async_copy<16>(to + RING, fetch_dy + (ONE_STEP ? 0 : fetch_at) + offset, valid);
            async_commit();
            if (slot < UNROLL - 1) return;
            if constexpr (!ONE_STEP) {
                fetch_at -= UNROLL * (i32)TILE_BYTES;
                if (fetch_at > -TILES * (i32)TILE_BYTES) return;
                fetch_at = 0;
            }
            fetch_entry += entry_step;
            // Addresses stay legal where nothing is read.
            if (fetch_entry >= batch) return;
            fetch_x += x_step;
            fetch_dy += dy_step;
        };
        // `at` is the lane's offset in the stage of the step's last slot. The walk goes backwards, and stages lie in the order of
        // memory. Where steps have two tiles, the other half of the ring holds the next step.
        const u32 ring = wave * 2 * RING;
        u32 at = ring + (UNROLL == 4 ? 0 : 2 * TILE_BYTES) + lane * 16;
        u32 before_last = lane > 0 ? at - HALO_BYTES : ring + (UNROLL == 4 ? RING : 2 * TILE_BYTES) - HALO_BYTES;
        constexpr u32 TURN = UNROLL == 4 ? 0 : 2 * TILE_BYTES;
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            const u32 to = ((s / UNROLL) % 2 ? at ^ TURN : at) + (UNROLL - 1 - s % UNROLL) * TILE_BYTES;
            fetch(to, s % UNROLL);
        }
        char* dx = (char*)start(a.dx, first_entry) + last;
        const i64 dx_step = entry_step * a.dx.entry * SIZE;
#pragma unroll 1
        for (i32 entry = first_entry; entry < batch; entry += entry_step) {
            enter(entry, piece);
            i32 dx_at = 0;
#pragma unroll 1
            for (i32 step = ONE_STEP ? 1 : TILES / UNROLL; step > 0; --step) {
#pragma unroll
                for (int slot = 0; slot < UNROLL; ++slot) {
                    // This tile and the next have arrived, and all lanes have read the tile before.
                    async_wait<STAGES - 3>();
                    wave_barrier();
                    fetch(slot > 0 ? at + (UNROLL - slot) * TILE_BYTES : at ^ TURN, (slot + STAGES - 1) % UNROLL);
                    const u32 own = at + (UNROLL - 1 - slot) * TILE_BYTES;
                    const bool last_slot = slot == UNROLL - 1;
                    compute(own, last_slot ? before_last : own - HALO_BYTES,
                            dx + (ONE_STEP ? 0 : dx_at) + (UNROLL - 1 - slot) * (i32)TILE_BYTES,
                            last_slot && (ONE_STEP || step == 1));
                }
                at ^= TURN;
                before_last ^= TURN;
                dx_at -= UNROLL * (i32)TILE_BYTES;
                if constexpr (ONE_STEP) break;
            }
            dx += dx_step;
        }
        async_wait<0>();
    }

    CAUSEWAY_DEVICE const char* start(const Memory& view, i32 entry) const {
        return (const char*)view.data + (entry * view.entry + channel * view.channel) * (i64)SIZE;
    }

    // Loads the halos on both sides of a piece; zeros where the row ends.
    CAUSEWAY_DEVICE void enter(i32 entry, i32 piece) {
#pragma unroll
        for (int i = 0; i < HALO; ++i) right[i] = 0.0f;
        left = zero_packet<HALO_BYTES>();
        if constexpr (!Tile::whole_rows && HALO > 0) {
            const i32 length = TILES * (i32)WAVE_SIZE * COUNT, begin = piece * length;
            if (piece > 0) left = load<HALO_BYTES>(start(a.x, entry) + (i64)begin * SIZE - HALO_BYTES);
            if (piece + 1 < (i32)a.pieces) {
                float g = 0.0f;
                if (lane < HALO) g = edge_gradient(entry, begin + length + lane);
#pragma unroll
                for (int i = 0; i < HALO; ++i) right[i] = shuffle(g, i);
            }
        }
    }

    // g at a position whose taps all lie in the row.
    CAUSEWAY_DEVICE float edge_gradient(i32 entry, i32 t) const {
        const float dy = load_element((const X*)start(a.dy, entry) + t);
        float pre = bias;
        if constexpr (Problem::silu) {
            const X* const x = (const X*)start(a.x, entry) + t;
            float taps[WIDTH];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) taps[j] = load_element(x - j);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j], taps[j], pre);
        }
        return activation_gradient<Problem::silu>(pre, dy);
    }

    // Computes the tile at `own` in shared memory, with the lane's halo of x at `before`. `is_first`: of its piece.
    CAUSEWAY_DEVICE void compute(u32 own, u32 before, char* dx, bool is_first) {
        float x[HALO + COUNT], d[COUNT], g[COUNT + HALO], out[COUNT];
        {
            float part[COUNT];
            unpack<X>(load_shared<16>(own), part);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) x[HALO + i] = part[i];
            unpack<X>(load_shared<16>(own + RING), d);
        }
        if constexpr (HALO > 0) {
            constexpr int HELD = ELEMENTS<X, HALO_BYTES>;
            Packet<HALO_BYTES> halo = load_shared<HALO_BYTES>(before);
#pragma unroll
            for (int i = 0; i < HALO_BYTES / 4; ++i) halo.word[i] = is_first && lane == 0 ? left.word[i] : halo.word[i];
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
            if constexpr (Problem::dbias) sums[WIDTH] += g[v];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) sums[j] = multiply_add(g[v], x[HALO + v - j], sums[j]);
        }
#pragma unroll
        for (int i = 0; i < HALO; ++i) {
            g[COUNT + i] = shuffle(lane == 0 ? right[i] : g[i], (u32)(lane + 1) % WAVE_SIZE);
            right[i] = g[i];
        }
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            out[v] = weight[0] * g[v];
#pragma unroll
            for (int j = 1; j < WIDTH; ++j) out[v] = multiply_add(weight[j], g[v + j], out[v]);
        }
        store(dx, pack<X, 16>(out));
    }

    const BackwardArguments& a;
    i32 channel, lane, fetch_entry, fetch_at;
    const char *fetch_x, *fetch_dy;
    float weight[WIDTH], bias, sums[WIDTH + 1];
    float right[HALO + 1];        // g to the right of the tile
    Packet<HALO_BYTES> left;   // x to the left of the piece
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_tiles_first(const BackwardArguments& a, u32 block = block_index<0>()) {
    TilesFirstBackward<Problem, Tile>(a).run(block);
}

}  // namespace causal_conv1d
}  // namespace causeway
