// Causal conv1d backward where neighbouring positions are neighbours in memory.
//
//              seqlen →
//   channel c  │ tile 0      │ tile 1      │ tile 2      │     a wave walks a row from its last tile to its first
//                                          ←─────────────
//              │lane 0│lane 1│ …                              a lane owns `COUNT` neighbouring positions of a tile
//
// Walking backwards, the W-1 values of g to the right of a tile are those of the tile before, carried in registers;
// the W-1 values of x to its left are in the tile that comes next, which the ring has fetched already. So x and dy are
// read once. Between lanes both halos move by shuffles.
//
// A block owns channels: `waves_per_channel` waves share the rows of a channel, or pieces of long rows; sums stay in
// registers to the end. Only with few channels do several blocks (`parts`) share a channel group.
//
// Ragged rows. Packets are as wide as the address of a row allows *after* moving the row's start back to a multiple of
// the packet: position t lies at u = t + shift, shift = (address of the row mod bytes of a packet) in elements, equal for x, dy
// and dx. Packets at both ends then hold foreign elements, which are masked; the read is within the tensor's memory
// except for its first and last packet, which are gathered by element.
//
// A tile that touches an end of its row, a boundary between sequences or a change of seq_idx takes the careful path;
// all others take the straight one.
//
// Cost per element: bytes: x, dy and dx once. Instructions, W = 4, SiLU, 16 bit: 24.5 as channel-last, + (5 shuffles,
// 5 selects, 20 for addresses and loop) / COUNT.
#pragma once
#include "causal_conv1d_backward.cuh"

namespace causeway {
namespace causal_conv1d {

// Tiles of x and dy under way. In shared memory, packet p of thread i in stage s lies at
// (((s · 2 + tensor) · Packets + p) · Threads + i) · Bytes. In registers there are two stages, which move up.
template <int Bytes, int Packets, int WantedStages, int Threads> class TileRing {
public:
    static constexpr bool ASYNC = HAS_ASYNC_COPY && Bytes >= 4;
    static constexpr int STAGES = ASYNC ? WantedStages : 2;
    static_assert(STAGES >= 2, "the walk looks at the next tile");
    enum Tensor { X_TENSOR = 0, DY_TENSOR = 1 };

    CAUSEWAY_DEVICE TileRing() : now_(thread_index() * Bytes), end_(now_ + STAGES * STAGE_BYTES) {}

    // Starts fetching into stage `stage` after the current one; reads as zero when not valid.
    CAUSEWAY_DEVICE void fetch(int stage, Tensor tensor, int p, const char* address, bool valid) {
        if constexpr (ASYNC) {
            async_copy<Bytes>(offset(now_ + stage * STAGE_BYTES, tensor, p), address, valid);
        } else {
            ahead_[stage][tensor][p] = valid ? load<Bytes>(address) : zero_packet<Bytes>();
        }
    }

    CAUSEWAY_DEVICE void put(int stage, Tensor tensor, int p, const Packet<Bytes>& packet) {
        if constexpr (ASYNC) {
            store_shared<Bytes>(offset(now_ + stage * STAGE_BYTES, tensor, p), packet);
        } else {
            ahead_[stage][tensor][p] = packet;
        }
    }

    CAUSEWAY_DEVICE void commit() { async_commit(); }

    // Waits until `Stages` stages from the current one on have arrived.
    template <int Stages> CAUSEWAY_DEVICE void wait() { async_wait<STAGES - Stages>(); }

    CAUSEWAY_DEVICE Packet<Bytes> read(Tensor tensor, int p) const {
        if constexpr (ASYNC) {
            return load_shared<Bytes>(offset(now_, tensor, p));
        } else {
            return ahead_[0][tensor][p];
        }
    }

    CAUSEWAY_DEVICE Packet<Bytes> read_next(Tensor tensor, int p) const {
        if constexpr (ASYNC) {
            return load_shared<Bytes>(offset(following(), tensor, p));
        } else {
            return ahead_[1][tensor][p];
        }
    }

    // The stage that fetches go to after the current one has been read: in shared memory its own place.
    static constexpr int FREED = ASYNC ? 0 : 1;
    CAUSEWAY_DEVICE void free_current() {
        if constexpr (!ASYNC) {
#pragma unroll
            for (int p = 0; p < Packets; ++p) {
                ahead_[0][0][p] = ahead_[1][0][p];
                ahead_[0][1][p] = ahead_[1][1][p];
            }
        }
    }
    CAUSEWAY_DEVICE void advance() {
        if constexpr (ASYNC) now_ = following();
    }

private:
    static constexpr u32 STAGE_BYTES = 2u * Packets * Threads * Bytes;
    static CAUSEWAY_DEVICE u32 offset(u32 stage, int tensor, int p) {
        return stage + (u32)(tensor * Packets + p) * Threads * Bytes;
    }
    CAUSEWAY_DEVICE u32 following() const {
        return now_ + STAGE_BYTES == end_ ? now_ + STAGE_BYTES - STAGES * STAGE_BYTES : now_ + STAGE_BYTES;
    }

    u32 now_, end_;
    Packet<Bytes> ahead_[ASYNC ? 1 : 2][2][Packets];
};

// A row, or a piece of one, that a group of lanes walks. `begin` and `end` are in u.
struct RowPiece {
    i64 row;
    const char *x, *dy;
    i32 shift, begin, end;
};

// Tile: threads of a block; bytes of a packet and packets per lane; lanes that walk a row together, a power of two;
// ragged (see above); stages under way; waves_per_channel.
template <class Problem, class Tile> class ChannelFirstBackward {
    using X = typename Problem::X;
    static constexpr int BYTES = Tile::bytes, PACKETS = Tile::packets, LANES = Tile::lanes, THREADS = Tile::threads;
    static constexpr int WAVES_PER_CHANNEL = Tile::waves_per_channel;
    static constexpr bool RAGGED = Tile::ragged;
    static constexpr int W = Problem::width, H = W - 1;
    static constexpr int SIZE = (int)sizeof(X);
    static constexpr int STEP = BYTES / SIZE;       // positions per packet
    static constexpr int COUNT = PACKETS * STEP;    // positions per lane
    static constexpr int TILE_POSITIONS = LANES * COUNT;
    static constexpr int GROUPS = (int)WAVE_SIZE / LANES;
    static constexpr int WAVES = THREADS / (int)WAVE_SIZE;
    static constexpr int CHANNELS = WAVES / WAVES_PER_CHANNEL;
    static constexpr bool PLACES = PACKED<Problem> || Problem::seq_idx;
    static constexpr bool HAS_CAREFUL = RAGGED || PLACES || Problem::dfinal_states;
    static constexpr int HALO_WORDS = SIZE == 4 ? H : (H + 1) / 2;
    static_assert(COUNT >= H, "halos come from the neighbouring lane alone");
    using Ring = TileRing<BYTES, PACKETS, Tile::stages, THREADS>;

public:
    CAUSEWAY_DEVICE explicit ChannelFirstBackward(const BackwardArguments& a)
        : a(a), seqlen((i32)a.seqlen), lane((i32)(lane_index() % LANES)),
          left_lane(lane_index() - lane + (lane + LANES - 1) % LANES),
          right_lane(lane_index() - lane + (lane + 1) % LANES) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        const u32 group = block / a.parts, part = block - group * a.parts;
        const u32 wave = thread_index() / WAVE_SIZE;
        const i64 first_channel = (i64)group * CHANNELS;
        channel = first_channel + wave / WAVES_PER_CHANNEL;
#pragma unroll
        for (int j = 0; j <= W; ++j) sums[j] = 0.0f;
        if (channel < a.dim) walk(part * WAVES_PER_CHANNEL + wave % WAVES_PER_CHANNEL);
        reduce(group, part, first_channel, wave);
    }

private:
    CAUSEWAY_DEVICE void walk(u32 walker) {
        jobs = (i32)a.batch * (i32)a.pieces;
        job_step = (i32)(a.parts * WAVES_PER_CHANNEL * GROUPS);
        tiles = (i32)a.piece / TILE_POSITIONS;
        const i32 first_job = (i32)walker * GROUPS;
        const i32 rounds = first_job < jobs ? (jobs - first_job + job_step - 1) / job_step : 0;
        const i32 group_job = first_job + (i32)lane_index() / LANES;
        i32 remaining = rounds * tiles;  // tiles to compute
        if (remaining == 0) return;

        Ring ring;
        fetch_job = group_job;
        fetch_tile = tiles - 1;
        fetch_remaining = remaining;
        fetching = piece(fetch_job);
#pragma unroll
        for (int s = 0; s < Ring::STAGES; ++s) fetch(ring, s);
#pragma unroll
        for (int j = 0; j < W; ++j) weight[j] = read_weight<Problem>(a, channel, j);
        bias = read_bias<Problem>(a, channel);
        i32 job = group_job, tile = tiles - 1;
        enter(job);
        if constexpr (PLACES) next_is_straight = one_sequence(tile);
        ring.template wait<1>();
        Packet<BYTES> x[PACKETS], next_x[PACKETS], dy[PACKETS];
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) x[p] = ring.read(Ring::X_TENSOR, p);

        for (; remaining > 0; --remaining) {
            ring.template wait<2>();
#pragma unroll
            for (int p = 0; p < PACKETS; ++p) {
                dy[p] = ring.read(Ring::DY_TENSOR, p);
                next_x[p] = ring.read_next(Ring::X_TENSOR, p);
            }
            ring.free_current();
            fetch(ring, Ring::FREED);
            ring.advance();
            const bool first_tile = tile == 0;
            const bool edge = HAS_CAREFUL && ((first_tile && computing.begin == 0) || tile_end(tile) > seqlen - H);
            const bool straight = !edge && (!PLACES || next_is_straight);
            if (straight || !HAS_CAREFUL) {
                compute<false>(x, next_x, dy, tile);
            } else {
                compute<true>(x, next_x, dy, tile);
            }
#pragma unroll
            for (int p = 0; p < PACKETS; ++p) x[p] = next_x[p];
            if (first_tile) {
                tile = tiles - 1;
                job += job_step;
                enter(job);
            } else {
                --tile;
            }
            if constexpr (PLACES) next_is_straight = one_sequence(tile);
        }
        async_wait<0>();
    }

    // u of a tile's end. Groups of one wave walk whole rows, so it is the same for all lanes.
    CAUSEWAY_DEVICE i32 tile_end(i32 tile) const { return computing.begin + (tile + 1) * TILE_POSITIONS; }

    CAUSEWAY_DEVICE RowPiece piece(i32 job) const {
        RowPiece out;
        const bool exists = job < jobs;
        if (!exists) job = 0;
        out.row = a.pieces == 1 ? job : job / (i32)a.pieces;
        out.begin = a.pieces == 1 ? 0 : (job - (i32)out.row * (i32)a.pieces) * (i32)a.piece;
        const i64 x_row = (i64)(u64)a.x.data + (out.row * a.x.row + channel * a.x.channel) * SIZE;
        const i64 dy_row = (i64)(u64)a.dy.data + (out.row * a.dy.row + channel * a.dy.channel) * SIZE;
        out.shift = RAGGED ? (i32)(x_row & (BYTES - 1)) / SIZE : 0;
        out.x = (const char*)(x_row - out.shift * SIZE);
        out.dy = (const char*)(dy_row - out.shift * SIZE);
        out.end = minimum(seqlen + out.shift, out.begin + (i32)a.piece);
        if (!exists) out.end = out.begin;
        return out;
    }

    // Fetches the next tile of this lane's rows into a stage.
    CAUSEWAY_DEVICE void fetch(Ring& ring, int stage) {
        if (fetch_remaining > 0) {
            const i32 u = fetching.begin + fetch_tile * TILE_POSITIONS + lane * COUNT;
#pragma unroll
            for (int p = 0; p < PACKETS; ++p) {
                const i32 at = u + p * STEP;
                const char *x = fetching.x + (i64)at * SIZE, *dy = fetching.dy + (i64)at * SIZE;
                if constexpr (RAGGED) {
                    const bool wanted = at < fetching.end && at + STEP > fetching.shift;
                    const bool whole = at >= fetching.shift && at + STEP <= seqlen + fetching.shift;
                    if (wanted && !whole && outside(x, dy)) {
                        ring.put(stage, Ring::X_TENSOR, p, gather(x, at));
                        ring.put(stage, Ring::DY_TENSOR, p, gather(dy, at));
                    } else {
                        ring.fetch(stage, Ring::X_TENSOR, p, x, wanted);
                        ring.fetch(stage, Ring::DY_TENSOR, p, dy, wanted);
                    }
                } else {
                    ring.fetch(stage, Ring::X_TENSOR, p, x, at < fetching.end);
                    ring.fetch(stage, Ring::DY_TENSOR, p, dy, at < fetching.end);
                }
            }
            --fetch_remaining;
            if (fetch_tile == 0) {
                fetch_tile = tiles - 1;
                fetch_job += job_step;
                fetching = piece(fetch_job);
            } else {
                --fetch_tile;
            }
        }
        ring.commit();
    }

    // True for a packet that is not wholly inside the memory between a tensor's first and last element.
    CAUSEWAY_DEVICE bool outside(const char* x, const char* dy) const {
        return (i64)(u64)x < a.x_begin || (i64)(u64)x + BYTES > a.x_end || (i64)(u64)dy < a.dy_begin ||
               (i64)(u64)dy + BYTES > a.dy_end;
    }

    // The packet at u = `at` by its elements, zero outside the row.
    CAUSEWAY_DEVICE Packet<BYTES> gather(const char* address, i32 at) const {
        float values[STEP];
#pragma unroll
        for (int i = 0; i < STEP; ++i) {
            const i32 t = at + i - fetching.shift;
            values[i] = t >= 0 && t < seqlen ? load_element((const X*)address + i) : 0.0f;
        }
        return pack<X, BYTES>(values);
    }

    // ---- a piece of a row begins -----------------------------------------------------------------------------------

    CAUSEWAY_DEVICE void enter(i32 job) {
        computing = piece(job);
        const bool exists = job < jobs;
        dx_row = (char*)a.dx.data + ((computing.row * a.dx.row + channel * a.dx.channel) - computing.shift) * SIZE;
        float halo[H + 1];
#pragma unroll
        for (int i = 0; i < H; ++i) {
            right[i] = 0.0f;
            halo[i] = 0.0f;
        }
        if (exists) {
#pragma unroll
            for (int i = 0; i < H; ++i) {
                const i32 t = computing.begin - computing.shift - H + i;
                if (t < 0) {
                    halo[i] = before_row(t);
                } else if (t < seqlen) {
                    halo[i] = read<X>(a.x, computing.row, channel, t);
                }
            }
            if (computing.end < seqlen + computing.shift) {
#pragma unroll
                for (int i = 0; i < H; ++i) {
                    const i32 t = computing.end - computing.shift + i;
                    if (t < seqlen) right[i] = gradient_at<Problem>(a, computing.row, channel, t);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < HALO_WORDS; ++i) {
            if constexpr (SIZE == 4) {
                left[i] = as_bits(halo[i]);
            } else {
                constexpr int ODD = H % 2;
                left[i] = pair<X>(2 * i - ODD < 0 ? 0.0f : halo[2 * i - ODD < 0 ? 0 : 2 * i - ODD], halo[2 * i + 1 - ODD]);
            }
        }
    }

    // x at t < 0 of the row: its initial states.
    CAUSEWAY_DEVICE float before_row(i32 t) const {
        if (!Problem::initial_states || PACKED<Problem> || t < -H) return 0.0f;
        return read<X>(a.initial_states, computing.row, channel, H + t);
    }

    // ---- one tile --------------------------------------------------------------------------------------------------

    template <bool Careful>
    CAUSEWAY_DEVICE void compute(const Packet<BYTES> (&x)[PACKETS], const Packet<BYTES> (&next_x)[PACKETS],
                                 const Packet<BYTES> (&dy)[PACKETS], i32 tile) {
        const i32 u = computing.begin + tile * TILE_POSITIONS + lane * COUNT;
        const bool first_tile = tile == 0;
        float values[H + COUNT], d[COUNT], g[COUNT + H], out[COUNT];

        // The H elements to the left: the last ones of the lane to the left, of the next tile, or of the row's halo.
        u32 words[HALO_WORDS + 1];
#pragma unroll
        for (int i = 0; i < HALO_WORDS; ++i) {
            const u32 own = last_word(x, HALO_WORDS - i), next = first_tile ? left[i] : last_word(next_x, HALO_WORDS - i);
            words[i] = shuffle(lane == LANES - 1 ? next : own, left_lane);
        }
#pragma unroll
        for (int i = 0; i < H; ++i) {
            if constexpr (SIZE == 4) {
                values[i] = as_float(words[i]);
            } else {
                const int k = i + H % 2;
                values[i] = k % 2 == 0 ? element<X, 0>(Packet<4>{{words[k / 2]}}) : element<X, 1>(Packet<4>{{words[k / 2]}});
            }
        }
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            float part[STEP];
            unpack<X>(x[p], part);
#pragma unroll
            for (int i = 0; i < STEP; ++i) values[H + p * STEP + i] = part[i];
            unpack<X>(dy[p], part);
#pragma unroll
            for (int i = 0; i < STEP; ++i) d[p * STEP + i] = part[i];
        }

        Places places;
        if constexpr (Careful) {
            mask(values, d, u);
            if constexpr (PLACES) find_places(places, u - computing.shift);
        }
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            float taps[W], pre = bias;
#pragma unroll
            for (int j = 0; j < W; ++j) {
                taps[j] = values[H + v - j];
                if constexpr (Careful && PLACES) taps[j] = place_tap(places, v, j, taps[j]);
            }
            if constexpr (Problem::silu) {
#pragma unroll
                for (int j = 0; j < W; ++j) pre = multiply_add(weight[j], taps[j], pre);
            }
            g[v] = activation_gradient<Problem::silu>(pre, d[v]);
            if constexpr (Careful && Problem::seq_idx) {
                if (places.indices[H + v] < 0) g[v] = 0.0f;
            }
            if constexpr (Problem::dbias) sums[W] += g[v];
#pragma unroll
            for (int j = 0; j < W; ++j) sums[j] = multiply_add(g[v], taps[j], sums[j]);
        }

        // The H gradients to the right: the first ones of the lane to the right, or of the tile before.
#pragma unroll
        for (int i = 0; i < H; ++i) {
            g[COUNT + i] = shuffle(lane == 0 ? right[i] : g[i], right_lane);
            right[i] = g[i];
        }
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            if constexpr (Careful) {
                out[v] = final_state_gradient(places, u - computing.shift + v, v);
#pragma unroll
                for (int j = 0; j < W; ++j) {
                    bool reaches = true;
                    if constexpr (PACKED<Problem>) reaches = j <= places.reach[v + j];
                    if constexpr (Problem::seq_idx) {
                        reaches = reaches && places.indices[H + v + j] == places.indices[H + v];
                    }
                    if (reaches) out[v] = multiply_add(weight[j], g[v + j], out[v]);
                }
            } else {
                out[v] = weight[0] * g[v];
#pragma unroll
                for (int j = 1; j < W; ++j) out[v] = multiply_add(weight[j], g[v + j], out[v]);
            }
        }
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            float part[STEP];
#pragma unroll
            for (int i = 0; i < STEP; ++i) part[i] = out[p * STEP + i];
            const i32 at = u + p * STEP;
            char* const address = dx_row + (i64)at * SIZE;
            if (!RAGGED || !Careful || (at >= computing.shift && at + STEP <= computing.end)) {
                if (at < computing.end) store(address, pack<X, BYTES>(part));
            } else {
#pragma unroll
                for (int i = 0; i < STEP; ++i) {
                    if (at + i >= computing.shift && at + i < computing.end) store_element((X*)address + i, part[i]);
                }
            }
        }
    }

    // Word `back` from the end of a lane's packets.
    static CAUSEWAY_DEVICE u32 last_word(const Packet<BYTES> (&packets)[PACKETS], int back) {
        constexpr int PER_PACKET = BYTES < 4 ? 1 : BYTES / 4;
        if constexpr (BYTES >= 4) {
            const int word = PACKETS * PER_PACKET - back;
            return packets[word / PER_PACKET].word[word % PER_PACKET];
        } else {
            const int element = 2 * (PACKETS / 2 - back);
            return packets[element].word[0] | packets[element + 1].word[0] << 16;
        }
    }

    // What lies outside the row, halo included: initial states before it, zero after it.
    CAUSEWAY_DEVICE void mask(float (&values)[H + COUNT], float (&d)[COUNT], i32 u) const {
        if constexpr (RAGGED) {
#pragma unroll
            for (int i = 0; i < H + COUNT; ++i) {
                const i32 at = u - H + i, t = at - computing.shift;
                if (t >= 0 && at < computing.end) continue;
                values[i] = t < 0 ? before_row(t) : 0.0f;
                if (i >= H) d[i - H] = 0.0f;
            }
        }
    }

    // ---- places: which sequence a position is in, and the index it carries -----------------------------------------

    // Of a lane's positions and the H to their right; indices also of the H to their left.
    struct Places {
        i32 indices[PLACES ? 2 * H + COUNT : 1];
        i32 reach[PLACES ? COUNT + H : 1];
        i32 left[PLACES ? COUNT : 1];
        i32 sequence[PLACES ? COUNT : 1];
        i32 first_index[PLACES ? COUNT : 1];
    };

    CAUSEWAY_DEVICE i32 index_at(i32 t) const {
        return position_index<Problem>(a, computing.row, t < 0 ? 0 : t < seqlen ? t : seqlen - 1);
    }

    CAUSEWAY_DEVICE void find_places(Places& places, i32 first) const {
        if constexpr (Problem::seq_idx) {
#pragma unroll
            for (int i = 0; i < 2 * H + COUNT; ++i) places.indices[i] = index_at(first - H + i);
        }
        if constexpr (PACKED<Problem>) {
            Span<i32> span = sequence_at<Problem, i32>(a, 0, first < 0 ? 0 : first < seqlen ? first : seqlen - 1);
#pragma unroll
            for (int i = 0; i < COUNT + H; ++i) {
                const i32 t = first + i;
                boundaries<Problem, i32>(a).advance(span, t);
                places.reach[i] = t - span.start;
                if (i < COUNT) {
                    places.left[i] = span.end - t;
                    places.sequence[i] = span.sequence;
                    if constexpr (Problem::seq_idx) places.first_index[i] = index_at(span.start);
                }
            }
        }
    }

    // What tap j of position v reads, given what lies j positions to its left.
    CAUSEWAY_DEVICE float place_tap(const Places& places, int v, int j, float value) const {
        if constexpr (PACKED<Problem>) {
            const i32 reach = places.reach[v];
            if (j > reach) {
                if (!Problem::initial_states || reach < 0) return 0.0f;
                if (Problem::seq_idx && places.first_index[v] != places.indices[H + v]) return 0.0f;
                return read<X>(a.initial_states, places.sequence[v], channel, H + reach - j);
            }
        }
        if constexpr (Problem::seq_idx) {
            if (places.indices[H + v - j] != places.indices[H + v]) return 0.0f;
        }
        return value;
    }

    CAUSEWAY_DEVICE float final_state_gradient(const Places& places, i32 t, int v) const {
        if constexpr (Problem::dfinal_states) {
            if (t < 0 || t >= seqlen) return 0.0f;
            i32 left = seqlen - t;
            i64 sequence = computing.row;
            if constexpr (PACKED<Problem>) {
                left = places.left[v];
                sequence = places.sequence[v];
            }
            if constexpr (Problem::seq_idx) {
                if (places.indices[H + v] < 0) return 0.0f;
            }
            if (left > 0 && left <= H) return read<X>(a.dfinal_states, sequence, channel, H - left);
        }
        return 0.0f;
    }

    // True when a tile of the current piece and the H positions on both its sides lie in one sequence, away from
    // where dfinal_states is added, and carry one index.
    CAUSEWAY_DEVICE bool one_sequence(i32 tile) {
        const i32 first = computing.begin + tile * TILE_POSITIONS - computing.shift - H, count = TILE_POSITIONS + 2 * H;
        bool same = true;
        if constexpr (PACKED<Problem>) {
            const i32 from = first < 0 ? 0 : first < seqlen ? first : seqlen - 1;
            if (from < straight_span.start || from >= straight_span.end) {
                straight_span = sequence_at<Problem, i32>(a, 0, from);
            }
            same = first >= 0 && first + count <= straight_span.end;
        }
        if constexpr (Problem::seq_idx) {
            const i32 reference = index_at(first + H);
            same = same && reference >= 0;
#pragma unroll
            for (int i = 0; i < (TILE_POSITIONS + 2 * H + LANES - 1) / LANES; ++i) {
                const i32 k = i * LANES + lane;
                same = same && index_at(first + (k < count ? k : count - 1)) == reference;
            }
        }
        return wave_all(same);
    }

    // ---- sums over lanes, the channel's waves, then blocks ---------------------------------------------------------

    CAUSEWAY_DEVICE void reduce(u32 group, u32 part, i64 first_channel, u32 wave) {
        constexpr int COUNT_PER_CHANNEL = Problem::dbias ? W + 1 : W;
#pragma unroll
        for (u32 offset = WAVE_SIZE / 2; offset > 0; offset >>= 1) {
#pragma unroll
            for (int j = 0; j < COUNT_PER_CHANNEL; ++j) sums[j] += shuffle_xor(sums[j], offset);
        }
        block_barrier();  // the ring is free now
        if (lane_index() == 0) {
#pragma unroll
            for (int j = 0; j < COUNT_PER_CHANNEL; ++j) write_shared((wave * COUNT_PER_CHANNEL + j) * 4, sums[j]);
        }
        block_barrier();
        sum_over_blocks<THREADS>(
            a.workspace, a.counters, group, part, a.parts, CHANNELS * COUNT_PER_CHANNEL, WAVES * COUNT_PER_CHANNEL * 4,
            [&](int i) {
                const int c = i / COUNT_PER_CHANNEL, j = i - c * COUNT_PER_CHANNEL;
                float sum = 0.0f;
#pragma unroll
                for (int w = 0; w < WAVES_PER_CHANNEL; ++w) {
                    sum += read_shared(((c * WAVES_PER_CHANNEL + w) * COUNT_PER_CHANNEL + j) * 4);
                }
                return sum;
            },
            [&](int i, float sum) {
                const i64 c = first_channel + i / COUNT_PER_CHANNEL;
                if (c < a.dim) write_sum<Problem>(a, c, i % COUNT_PER_CHANNEL, sum);
            });
    }

    const BackwardArguments& a;
    const i32 seqlen, lane;
    const u32 left_lane, right_lane;
    i64 channel;
    i32 jobs, job_step, tiles;
    RowPiece fetching, computing;
    i32 fetch_job, fetch_tile, fetch_remaining;
    char* dx_row;
    bool next_is_straight;
    Span<i32> straight_span = {0, 0, 0};
    float weight[W], bias, sums[W + 1];
    float right[H + 1];           // g to the right of the tile (lane 0)
    u32 left[HALO_WORDS + 1];     // x to the left of the piece
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_channel_first(const BackwardArguments& a) {
    const u32 block = block_index<0>();
    if constexpr (Problem::dinitial_states) {
        if (block >= a.sum_blocks) return initial_states_gradient<Problem, Tile::threads>(a, block - a.sum_blocks);
    }
    ChannelFirstBackward<Problem, Tile>(a).run(block);
}

}  // namespace causal_conv1d
}  // namespace causeway
