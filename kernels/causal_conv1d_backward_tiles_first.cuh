// Causal conv1d backward where neighbouring positions are neighbours in memory, for plain calls: waves with few registers each.
//
//              seqlen →
//   channel c  │ tile 0      │ tile 1      │ tile 2      │     a wave takes a piece of a row from its last tile to its
//                                          ←─────────────      first, then another piece
//              │lane 0│lane 1│ …                              a lane owns one packet of a tile
//
// Tiles are prefetched into a ring in shared memory, three tiles ahead, of which the next one has arrived, and from one piece into the next. A lane reads from there its
// packets and its halo of x, which another lane has copied: what lies side by side in a row does so in the ring, which wraps
// round at its ends. The halo of g, width-1 gradients to the right of a packet, moves by shuffles; that of a tile is kept from the
// tile walked before. Where a piece ends inside its row, width-1 lanes compute one gradient each.
//
// A piece is whole steps of two or four tiles. Those that reach past the row's end are walked tile by tile. A row's first tile begins with the sector
// of 32 bytes in which the row does. Where that is the sector's second half, the first lane lies before the row.
//
// Ragged rows begin and end inside a packet. Elements of a packet before its row belong to another row, and are set to zero in the ring.
// Elements past the row's end are not fetched.
//
// Cost per element: x, dy and dx once. Instructions with SiLU: the 24.5 of channel-last, and 3 shuffles, 3 selects and 10 to 20
// for addresses and loop, divided by COUNT, the positions of a packet.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

// A row begins equally far past a multiple of 16 bytes in x, dy and dx; rows may differ. The packet in which a row begins lies in the
// tensor's memory.
//
//   struct Tile {
//       static constexpr int threads;             of a block
//       static constexpr int waves_per_channel;   of a block; `parts` blocks have as many each
//       static constexpr bool split;              there are several parts
//       static constexpr bool whole_rows;         a row is one piece
//       static constexpr bool full;               no piece reaches past its row's end
//       static constexpr int row_bytes;           32 or 16: rows are whole packets, and their length is a multiple of so many bytes;
//                                                 the size of an element: rows begin or end inside a packet
//       static constexpr bool one_step;           a piece is one step of the walk
//       static constexpr int unroll;              tiles of a step, 2 or 4
//       static constexpr int weight_bytes;        see load_parameters
//   };
template <class Problem, class Tile> class TilesFirstBackward {
    using X = typename Problem::X;
    static constexpr int THREADS = Tile::threads, WAVES = THREADS / (int)WAVE_SIZE;
    static constexpr int WAVES_PER_CHANNEL = Tile::waves_per_channel, CHANNELS = WAVES / WAVES_PER_CHANNEL;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1, COUNT = ELEMENTS<X, 16>, SIZE = sizeof(X);
    // Tiles in the ring, and of a step.
    static constexpr int STAGES = 4, UNROLL = Tile::unroll;
    static constexpr bool WHOLE_ROWS = Tile::whole_rows, FULL = Tile::full, ONE_STEP = Tile::one_step;
    static constexpr bool RAGGED = Tile::row_bytes < 16;  // rows begin or end inside a packet
    static constexpr bool ODD = Tile::row_bytes < 32;     // or inside a sector of memory
    static constexpr int HALO_BYTES = HALO * SIZE <= 4 ? 4 : HALO * SIZE <= 8 ? 8 : 16;
    static constexpr u32 TILE_BYTES = WAVE_SIZE * 16, RING = STAGES * TILE_BYTES;
    static constexpr i32 STEP_BYTES = UNROLL * (i32)TILE_BYTES;
    static constexpr u32 SUMS_AT = WAVES * 2 * RING;
    static_assert(!PACKED<Problem> && !Problem::seq_idx, "plain rows");
    static_assert(!Problem::initial_states && !Problem::dinitial_states && !Problem::dfinal_states, "plain rows");
    static_assert(HALO <= COUNT, "near neighbours");
    static_assert(UNROLL == 4 || UNROLL == 2, "a step is the ring, or half of it");
    static_assert(!FULL || !ODD, "rows of whole tiles are an even number of packets");

public:
    CAUSEWAY_DEVICE explicit TilesFirstBackward(const BackwardArguments& a) : a(a) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        const u32 group = Tile::split ? quotient(block, a.parts_divisor) : block, part = Tile::split ? block - group * a.parts : 0;
        const u32 wave = thread_index() / WAVE_SIZE;
        channel = (i32)(group * CHANNELS + wave / WAVES_PER_CHANNEL);
#pragma unroll
        for (int j = 0; j <= WIDTH; ++j) sums[j] = 0.0f;
        if (channel < a.dim) walk(wave, (i32)(part * WAVES_PER_CHANNEL + wave % WAVES_PER_CHANNEL));
        write_channel_sums<Problem, CHANNELS, WAVES_PER_CHANNEL, Tile::split>(a, sums, SUMS_AT, group, part, channel);
    }

private:
    // Where the lane's packet of a piece's last step begins, in the tile that is first in memory.
    struct Place {
        i32 entry;
        i32 lead;  // bytes of the row's first tile that lie before the row, fewer than 32
        i32 at;    // bytes from the row's begin
        i32 rest;  // bytes from there to the row's end; 0 or less past it
    };

    // Where steps have two tiles, the other half of the ring holds the next one.
    static constexpr u32 TURN = UNROLL == 4 ? 0 : 2 * TILE_BYTES;

    // Takes the pieces of the channel's rows whose numbers are `walker` plus a multiple of job_step().
    CAUSEWAY_DEVICE void walk(u32 wave, i32 walker) {
        jobs = (i32)a.batch * (WHOLE_ROWS ? 1 : (i32)a.pieces);
        if (walker >= jobs) return;
        load_weights<Problem, Tile::weight_bytes>(a, channel, weight, bias);
        lane = (i32)lane_index();
        fetch_job = walker;
        fetch_piece();
        // The walk goes backwards, and stages lie in the order of memory.
        const u32 ring = wave * 2 * RING;
        at = ring + TURN + lane * 16;
        before_last = lane > 0 ? at - HALO_BYTES : ring + (UNROLL == 4 ? RING : 2 * TILE_BYTES) - HALO_BYTES;
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            const u32 to = ((s / UNROLL) % 2 ? at ^ TURN : at) + (UNROLL - 1 - s % UNROLL) * TILE_BYTES;
            fetch(to, s % UNROLL);
        }
#pragma unroll 1
        for (i32 job = walker; job < jobs; job += job_step()) {
            const Place place = last_step(job);
            dx = (char*)address(a.dx, place);
            enter(place, job);
            left_over = (i32)a.piece;
            // Steps that reach past the row's end. All but the last one lie past it as a whole.
            for (i32 rest = place.rest; !FULL && rest < STEP_BYTES - lane * 16; rest += STEP_BYTES) {
                if (RAGGED && left_over <= 0) break;  // the last piece of a row with a short lead may be empty
#pragma unroll 1
                for (int slot = 0; slot < UNROLL; ++slot) advance<true>(slot, rest);
                next_step();
            }
#pragma unroll 1
            while (left_over > 0) {
#pragma unroll
                for (int slot = 0; slot < UNROLL; ++slot) advance<false>(slot, 0);
                next_step();
            }
        }
        async_wait<0>();
    }

    CAUSEWAY_DEVICE i32 job_step() const { return (Tile::split ? (i32)a.parts : 1) * WAVES_PER_CHANNEL; }

    CAUSEWAY_DEVICE void fetch_piece() {
        const Place place = last_step(fetch_job);
        fetch_left = (i32)a.piece;
        fetch_rest = place.rest;
        fetch_x = address(a.x, place);
        fetch_dy = address(a.dy, place);
    }

    // Fetches tile `slot` of a step into the stage at `to`: zeros outside of the row, and when there are no more pieces. A packet that a row
    // begins in is fetched as a whole.
    CAUSEWAY_DEVICE void fetch(u32 to, int slot) {
        const i32 offset = (UNROLL - 1 - slot) * (i32)TILE_BYTES;
        bool valid = fetch_job < jobs && (FULL || offset < fetch_rest);
        if (ODD && slot == UNROLL - 1) valid = valid && fetch_rest < (i32)a.seqlen * SIZE + 16;
        const u32 bytes = !valid ? 0 : RAGGED ? (u32)minimum(fetch_rest - offset, 16) : 16;
        async_copy_first<16>(to, fetch_x + offset, bytes);
        async_copy_first<16>(to + RING, fetch_dy + offset, bytes);
        async_commit();
        if (slot < UNROLL - 1) return;
        if constexpr (!ONE_STEP) {
            fetch_x -= STEP_BYTES;
            fetch_dy -= STEP_BYTES;
            if constexpr (!FULL) fetch_rest += STEP_BYTES;
            fetch_left -= STEP_BYTES / SIZE;
            if (fetch_left > 0) return;
        }
        fetch_job += job_step();
        if (fetch_job < jobs) fetch_piece();
    }

    // Computes tile `slot` of a step. Masked: `rest` is as in Place.
    template <bool Masked> CAUSEWAY_DEVICE void advance(int slot, i32 rest) {
        const bool last_slot = slot == UNROLL - 1;
        const bool is_first = last_slot && (ONE_STEP || left_over == STEP_BYTES / SIZE);
        const i32 offset = (UNROLL - 1 - slot) * (i32)TILE_BYTES;
        const u32 own = at + offset;
        // This tile and the next have arrived, and all lanes have read the tile before.
        async_wait<STAGES - 3>();
        if (RAGGED && is_first) clear_before(own);
        wave_barrier();
        fetch(slot > 0 ? at + (UNROLL - slot) * TILE_BYTES : at ^ TURN, (slot + STAGES - 1) % UNROLL);
        if (Masked && offset >= rest + lane * 16) return;  // the whole tile lies past the row's end
        compute<Masked>(own, last_slot ? before_last : own - HALO_BYTES, dx + offset, rest - offset, is_first);
    }

    // Sets elements of the lane's packet of a row's first tile that lie before the row to zero.
    CAUSEWAY_DEVICE void clear_before(u32 own) const {
        if (before <= 0 || before >= COUNT) return;
        clear_first<X>(own, before);
        clear_first<X>(own + RING, before);
    }

    CAUSEWAY_DEVICE void next_step() {
        at ^= TURN;
        before_last ^= TURN;
        dx -= STEP_BYTES;
        left_over -= STEP_BYTES / SIZE;
    }

    CAUSEWAY_DEVICE Place last_step(i32 job) const {
        Place place;
        place.entry = WHOLE_ROWS ? job : (i32)quotient((u32)job, a.pieces_divisor);
        const i32 end = (WHOLE_ROWS ? 1 : job - place.entry * (i32)a.pieces + 1) * (i32)a.piece;
        place.lead = ODD ? (i32)((u64)start(a.x, place.entry) % 32) : 0;
        place.at = end * SIZE - STEP_BYTES + lane * 16 - place.lead;
        place.rest = (i32)a.seqlen * SIZE - place.at;
        return place;
    }

    CAUSEWAY_DEVICE const char* address(const Memory& view, const Place& place) const {
        return start(view, place.entry) + place.at;
    }

    CAUSEWAY_DEVICE const char* start(const Memory& view, i32 entry) const {
        return (const char*)view.data + (entry * view.entry + channel * view.channel) * (i64)SIZE;
    }

    // Loads the halos on both sides of a piece; zeros where the row ends.
    CAUSEWAY_DEVICE void enter(const Place& place, i32 job) {
#pragma unroll
        for (int i = 0; i < HALO; ++i) right[i] = 0.0f;
        left = zero_packet<HALO_BYTES>();
        const i32 piece = WHOLE_ROWS ? 0 : job - place.entry * (i32)a.pieces;
        if constexpr (ODD) before = piece == 0 ? (place.lead - lane * 16) / SIZE : 0;
        if constexpr (!WHOLE_ROWS && HALO > 0) {
            const i32 begin = piece * (i32)a.piece - place.lead / SIZE, end = begin + (i32)a.piece;
            if (piece > 0 && (!RAGGED || begin < (i32)a.seqlen)) left = load<HALO_BYTES>(start(a.x, place.entry) + (i64)begin * SIZE - HALO_BYTES);
            if (piece + 1 < (i32)a.pieces) {
                float g = 0.0f;
                if (lane < HALO && (!RAGGED || end + lane < (i32)a.seqlen)) g = edge_gradient(place.entry, end + lane);
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

    // Computes the tile at `own` in shared memory, with the lane's halo of x at `halo_at`. `is_first`: of its piece. Masked: `rest` bytes from
    // the lane's packet on lie in the row. Past that, x and dy are zero, but pre may overflow because of the halo, and 0 · ∞ is NaN. (What
    // 0 times an infinite x adds to dweight is unspecified.)
    template <bool Masked> CAUSEWAY_DEVICE void compute(u32 own, u32 halo_at, char* dx, i32 rest, bool is_first) {
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
            Packet<HALO_BYTES> halo = load_shared<HALO_BYTES>(halo_at);
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
            if (Masked && rest <= (RAGGED ? v * SIZE : 0)) g[v] = 0.0f;
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
        const Packet<16> packet = pack<X, 16>(out);
        const i32 from = ODD && is_first ? before : 0;  // the elements before it lie before the row
        if ((!Masked || rest >= (RAGGED ? 16 : 1)) && from <= 0) {
            store(dx, packet);
        } else if constexpr (RAGGED) {
            store_some<X>(dx, packet, from, Masked ? rest / SIZE : COUNT);
        }
    }

    const BackwardArguments& a;
    i32 channel, lane, jobs;
    // The step that is fetched: its piece, the positions that are left of that, `rest` as in Place, and the lane's addresses.
    i32 fetch_job, fetch_left, fetch_rest;
    const char *fetch_x, *fetch_dy;
    // The step that is computed: the lane's offset in the stage of its last slot, that of its halo there, the lane's address of dx, and the
    // positions that are left of its piece.
    u32 at, before_last;
    char* dx;
    i32 left_over;
    float weight[WIDTH], bias, sums[WIDTH + 1];
    i32 before;                  // elements of the lane's packet of the piece's first tile that lie before the row; 0 or less if none does
    float right[HALO + 1];       // g to the right of the tile
    Packet<HALO_BYTES> left;     // x to the left of the piece
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_tiles_first(const BackwardArguments& a, u32 block = block_index<0>()) {
    TilesFirstBackward<Problem, Tile>(a).run(block);
}

}  // namespace causal_conv1d
}  // namespace causeway
