// Causal conv1d backward where neighbouring positions are neighbours in memory.
//
//              seqlen →
//   channel c  │ tile 0      │ tile 1      │ tile 2      │     a wave walks a row from its last tile to its first
//                                          ←─────────────
//              │lane 0│lane 1│ …                              a lane owns `COUNT` neighbouring positions of a tile
//
// The halo of g, width-1 values to the right of a tile, comes from the tile that was walked before and stays in registers. The
// halo of x, width-1 values to the left, lies in the tile that comes next, which is in the ring already. So x and dy are
// read once. Between lanes both halos move by shuffles.
//
// A block owns channels. `waves_per_channel` waves share the rows of a channel, or pieces of long rows, and keep its sums in
// registers to the end. Several blocks (`parts`) may share a channel group.
//
// Ragged rows do not start or end on a multiple of the packet. Their tiles start at the multiple before the row: position t
// lies at u = t + shift, where shift is the distance in elements and the same for x, dy and dx. The packets at both ends then
// hold elements of other rows, which are masked. A packet that would reach past the tensor's memory is gathered by elements.
//
// Gates come through the ring too, and halos of B as those of x do: values are multiplied where a lane has both. dC is stored from
// the lane's own positions, dx and dB once the gradient of the product is complete.
//
// Three paths compute a tile. UNMASKED is for tiles that lie inside one row, one sequence and one index. MASKED is for those that
// touch an end of the row, a boundary of cu_seqlens or a change of seq_idx. EXACT compares indices tap by tap, where bits cannot
// tell (causal_conv1d_backward_masks.cuh).
//
// Cost per element: x, dy and dx once. Instructions, width 4, SiLU, 16 bit: the 24.5 of channel-last, and 5 shuffles, 5 selects
// and 20 for addresses and loop, divided by COUNT.
#pragma once
#include "causal_conv1d_backward_tiles.cuh"

namespace causeway {
namespace causal_conv1d {

// The walk, and the arithmetic of a tile. ChannelFirstTiles fetches, ChannelFirstMasks finds masks and describes Tile.
template <class Problem, class Tile> class ChannelFirstBackward : ChannelFirstTiles<Problem, Tile> {
    using Base = ChannelFirstTiles<Problem, Tile>;
    using typename Base::Exact, typename Base::Indices, typename Base::Masks, typename Base::Ring, typename Base::X;
    using Base::a, Base::channel, Base::computing, Base::dy_channel, Base::fetch_job, Base::row_indices, Base::job_step;
    using Base::jobs, Base::lane, Base::left_lane, Base::right_lane, Base::seqlen, Base::states, Base::states_ahead;
    using Base::before_row, Base::enter_sequences, Base::fetch, Base::fetch_piece, Base::final_state_gradient;
    using Base::find_masks, Base::hold_bounds, Base::load_states, Base::one_sequence, Base::piece, Base::read_indices;
    using Base::tiles, Base::x_channel, Base::b_channel, Base::c_channel, Base::B_TENSOR, Base::C_TENSOR;
    using Base::BYTES, Base::COUNT, Base::GROUPS, Base::HALO, Base::LANES, Base::PACKED_INITIAL, Base::PACKETS, Base::HAS_BOUNDARIES;
    using Base::RAGGED, Base::ROW_DFINAL, Base::ROW_STATES, Base::SIZE, Base::PER_PACKET, Base::THREADS, Base::TILE_POSITIONS;
    using Base::UNROLL, Base::WIDTH, Base::WHOLE_ROWS;
    static constexpr int WAVES = THREADS / (int)WAVE_SIZE;
    static constexpr int WAVES_PER_CHANNEL = Tile::waves_per_channel;
    static constexpr int CHANNELS = WAVES / WAVES_PER_CHANNEL;
    static constexpr bool HAS_MASKED = RAGGED || HAS_BOUNDARIES || ROW_DFINAL;
    static constexpr int HALO_WORDS = SIZE == 4 ? HALO : (HALO + 1) / 2;
    static constexpr u32 SUMS_AT = Ring::SHARED_BYTES;  // in shared memory, after the ring

public:
    CAUSEWAY_DEVICE explicit ChannelFirstBackward(const BackwardArguments& a) : Base(a) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        const u32 group = quotient(block, a.parts_divisor), part = block - group * a.parts;
        const u32 wave = thread_index() / WAVE_SIZE;
        channel = (i64)group * CHANNELS + wave / WAVES_PER_CHANNEL;
#pragma unroll
        for (int j = 0; j <= WIDTH; ++j) sums[j] = 0.0f;
        if (channel < a.dim) walk(part * WAVES_PER_CHANNEL + wave % WAVES_PER_CHANNEL);
        write_channel_sums<Problem, CHANNELS, WAVES_PER_CHANNEL, true>(a, sums, SUMS_AT, group, part, channel);
    }

private:
    CAUSEWAY_DEVICE void walk(u32 walker) {
        jobs = (i32)a.batch * (WHOLE_ROWS ? 1 : (i32)a.pieces);
        job_step = (i32)(a.parts * WAVES_PER_CHANNEL * GROUPS);
        tiles = (i32)a.piece / TILE_POSITIONS;
        const i32 first_job = (i32)walker * GROUPS;
        if (first_job >= jobs) return;
        x_channel = (const char*)a.x.data + channel * a.x.channel * SIZE;
        dy_channel = (const char*)a.dy.data + channel * a.dy.channel * SIZE;
        dx_channel = (char*)a.dx.data + channel * a.dx.channel * SIZE;
        if constexpr (Problem::B) b_channel = (const char*)a.b.data + channel * a.b.channel * SIZE;
        if constexpr (Problem::C) c_channel = (const char*)a.c.data + channel * a.c.channel * SIZE;

        Ring ring;
        i32 job = first_job + (i32)lane_index() / LANES;
        if constexpr (PACKED<Problem>) hold_bounds((i32)a.sequences);
        fetch_job = job;
        fetch_piece();
#pragma unroll
        for (int s = 0; s < Ring::STAGES; ++s) fetch(ring, s, s % UNROLL);
        load_weights<Problem, Tile::weight_bytes>(a, channel, weight, bias);
        states_ahead = load_states(job);
        enter(job);
        ring.template wait<1>();
        Packet<BYTES> x[PACKETS];
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            x[p] = ring.read(0, Ring::X_TENSOR, p);
            if constexpr (Problem::B) b[p] = ring.read(0, B_TENSOR, p);
        }

        for (i32 round = first_job; round < jobs; round += job_step) {
            i32 u = computing.begin + (tiles - 1) * TILE_POSITIONS + lane * COUNT;
            for (i32 tile = tiles - 1; tile >= 0; tile -= UNROLL) {
#pragma unroll
                for (int slot = 0; slot < UNROLL; ++slot) step(ring, slot, tile - slot, u, x);
                ring.advance();
                u -= UNROLL * TILE_POSITIONS;
            }
            job += job_step;
            if (round + job_step < jobs) enter(job);
        }
        async_wait<0>();
    }

    // Computes tile `tile` of the piece, which lies in `slot` of the ring, and reads the x of the next one. This tile's x has been
    // read already. `u` is the lane's first position in the first tile of the step.
    CAUSEWAY_DEVICE void step(Ring& ring, int slot, i32 tile, i32 u, Packet<BYTES> (&x)[PACKETS]) {
        // Where several rows share a wave, each has one tile, and ends in it.
        bool unmasked = !HAS_MASKED || GROUPS == 1;
        if constexpr (RAGGED || ROW_DFINAL) {
            const i32 end = computing.begin + (tile + 1) * TILE_POSITIONS + (ROW_DFINAL ? HALO : 0);
            unmasked = unmasked && end <= computing.end;
            if constexpr (RAGGED) unmasked = unmasked && computing.begin + tile > 0;
        }
        Packet<BYTES> next_x[PACKETS], dy[PACKETS];
        Indices indices;
        ring.template wait<2>();
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            dy[p] = ring.read(slot, Ring::DY_TENSOR, p);
            next_x[p] = ring.read_next(slot, Ring::X_TENSOR, p);
            if constexpr (Problem::B) next_b[p] = ring.read_next(slot, B_TENSOR, p);
            if constexpr (Problem::C) c[p] = ring.read(slot, C_TENSOR, p);
        }
        read_indices(indices, ring, slot);
        fetch(ring, ring.free(slot), slot);
        if constexpr (HAS_BOUNDARIES) unmasked = one_sequence(indices, tile) && unmasked;
        Masks masks;
        if (unmasked) {
            compute<UNMASKED>(x, next_x, dy, masks, u, slot, tile);
        } else {
            if constexpr (HAS_BOUNDARIES) find_masks(masks, indices, tile, u - slot * TILE_POSITIONS - computing.shift);
            if (Problem::seq_idx && masks.exact) {
                if constexpr (Problem::seq_idx) compute<EXACT>(x, next_x, dy, masks, u, slot, tile);
            } else {
                compute<MASKED>(x, next_x, dy, masks, u, slot, tile);
            }
        }
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            x[p] = next_x[p];
            if constexpr (Problem::B) b[p] = next_b[p];
        }
    }

    // ---- a piece of a row begins -----------------------------------------------------------------------------------

    CAUSEWAY_DEVICE void enter(i32 job) {
        computing = piece(job);
        if constexpr (Problem::seq_idx) row_indices = a.seq_idx + computing.entry * a.seq_idx_strides.first;
        dx_row = dx_channel + (computing.entry * a.dx.entry - computing.shift) * SIZE;
        if constexpr (Problem::dB) db_row = row_of(a.db);
        if constexpr (Problem::dC) dc_row = row_of(a.dc);
        const bool exists = job < jobs;
#pragma unroll
        for (int i = 0; i < HALO; ++i) right[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < HALO_WORDS; ++i) left[i] = left_b[i] = 0;
        if constexpr (HAS_BOUNDARIES) enter_sequences();
        states = states_ahead;
        states_ahead = load_states(job + job_step);
        if constexpr (!WHOLE_ROWS || ROW_STATES) {
            float halo[HALO + 1], halo_b[HALO + 1];
#pragma unroll
            for (int i = 0; i < HALO; ++i) {
                const i32 t = computing.begin - computing.shift - HALO + i;
                halo[i] = 0.0f;
                // States are not gated: their factor is 1.
                halo_b[i] = 1.0f;
                if (ROW_STATES && computing.begin == 0) {
                    // With a shift, the states before the row go into the first lane's packet (clear_outside).
                    halo[i] = RAGGED ? (t >= -HALO ? before_row(t) : 0.0f) : states.initial[i];
                } else if (!WHOLE_ROWS && exists && t >= 0 && t < seqlen) {
                    halo[i] = read<X>(a.x, computing.entry, channel, t);
                    if constexpr (Problem::B) halo_b[i] = read<X>(a.b, computing.entry, channel, t);
                }
            }
#pragma unroll
            for (int i = 0; i < HALO_WORDS; ++i) {
                if constexpr (SIZE == 4) {
                    left[i] = as_bits(halo[i]);
                    if constexpr (Problem::B) left_b[i] = as_bits(halo_b[i]);
                } else {
                    // An odd halo begins in the upper half of its first word.
                    const int low = 2 * i - HALO % 2;
                    left[i] = pair<X>(low < 0 ? 0.0f : halo[low < 0 ? 0 : low], halo[low + 1]);
                    if constexpr (Problem::B) left_b[i] = pair<X>(low < 0 ? 0.0f : halo_b[low < 0 ? 0 : low], halo_b[low + 1]);
                }
            }
        }
        // Where a piece ends inside its row, HALO lanes compute one gradient each of those to its right.
        if constexpr (!WHOLE_ROWS && HALO > 0) {
            const i32 t = computing.end - computing.shift + lane;
            float g = 0.0f;
            if (exists && lane < HALO && t < seqlen) {
                const Span<i32> sequence = sequence_at<Problem, i32>(a, computing.entry, t);
                g = gradient_at<Problem>(a, {sequence.sequence, sequence.start, sequence.end}, computing.entry, channel, t);
            }
#pragma unroll
            for (int i = 0; i < HALO; ++i) {
                right[i] = shuffle(g, lane_index() - lane + i);
                if (HAS_BOUNDARIES && (this->right_cuts & ((2u << i) - 1u)) != 0) right[i] = 0.0f;
            }
        }
    }

    // ---- one tile --------------------------------------------------------------------------------------------------

    // EXACT: indices are compared tap by tap (see Masks).
    enum Path { UNMASKED, MASKED, EXACT };

    template <Path Way>
    CAUSEWAY_DEVICE void compute(const Packet<BYTES> (&x)[PACKETS], const Packet<BYTES> (&next_x)[PACKETS],
                                 const Packet<BYTES> (&dy)[PACKETS], const Masks& masks, i32 step_u, int slot, i32 tile) {
        constexpr bool Masked = Way != UNMASKED;
        constexpr bool ROLLED = Way == MASKED && HAS_BOUNDARIES;  // by windows that are cleared at boundaries
        // Only the last tile of a step can be a piece's first.
        const bool first_tile = slot == UNROLL - 1 && tile == 0;
        const i32 u = step_u - slot * TILE_POSITIONS;
        float values[HALO + COUNT], d[COUNT], g[COUNT + HALO], out[COUNT];
        float x_factors[COUNT], b_factors[COUNT], c_factors[COUNT];  // of the lane's positions

        // The HALO elements to the left: the last ones of the lane to the left, of the next tile, or of the row's halo.
        const bool edge = Problem::seq_idx && !Masked && this->edge;
        u32 words[HALO_WORDS + 1], words_b[HALO_WORDS + 1];
#pragma unroll
        for (int i = 0; i < HALO_WORDS; ++i) {
            const u32 own = last_word(x, HALO_WORDS - i), next = first_tile ? left[i] : edge ? 0 : last_word(next_x, HALO_WORDS - i);
            words[i] = shuffle(lane == LANES - 1 ? next : own, left_lane);
            if constexpr (Problem::B) {
                const u32 behind = first_tile ? left_b[i] : edge ? 0 : last_word(next_b, HALO_WORDS - i);
                words_b[i] = shuffle(lane == LANES - 1 ? behind : last_word(b, HALO_WORDS - i), left_lane);
            }
        }
#pragma unroll
        for (int i = 0; i < HALO; ++i) {
            values[i] = halo_element(words, i);
            if constexpr (Problem::B) values[i] = gated<Problem>(halo_element(words_b, i), values[i]);
        }
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            float part[PER_PACKET];
            unpack<X>(x[p], part);
#pragma unroll
            for (int i = 0; i < PER_PACKET; ++i) values[HALO + p * PER_PACKET + i] = part[i];
            unpack<X>(dy[p], part);
#pragma unroll
            for (int i = 0; i < PER_PACKET; ++i) d[p * PER_PACKET + i] = part[i];
            if constexpr (Problem::B) unpack_into(b_factors, p, b[p]);
            if constexpr (Problem::C) unpack_into(c_factors, p, c[p]);
        }
        if constexpr (Problem::B) {
#pragma unroll
            for (int v = 0; v < COUNT; ++v) {
                x_factors[v] = values[HALO + v];
                values[HALO + v] = gated<Problem>(b_factors[v], x_factors[v]);
            }
        }

        Exact exact;
        if constexpr (Way == EXACT) this->find_exact(exact, masks, u - computing.shift);
        if constexpr (Way == EXACT && Problem::seq_idx) {
            // A select, since 0 · NaN would be NaN.
#pragma unroll
            for (int v = 0; v < COUNT; ++v) values[HALO + v] = this->cuts(masks, v, 0) ? 0.0f : values[HALO + v];
        }
        float begun[COUNT];  // what dx starts from
        if constexpr (Masked) {
            clear_outside(values, d, u);
#pragma unroll
            for (int v = 0; v < COUNT; ++v) begun[v] = final_state_gradient(masks, u - computing.shift + v, v);
        }
        bool gathered = false;
        if constexpr (Masked && PACKED_INITIAL) {
            gathered = !wave_all(!masks.crowded);
            if (gathered) gather_gradients(g, c_factors, u);
        }
        if (!gathered) {
            float window[WIDTH];  // what the taps of a position read
            if constexpr (ROLLED) {
#pragma unroll
                for (int j = 1; j < WIDTH; ++j) window[j] = 0.0f;
#pragma unroll
                for (int v = 1 - HALO; v < 0; ++v) this->roll_taps(masks, window, values[HALO + v - 1], v);
            }
#pragma unroll
            for (int v = 0; v < COUNT; ++v) {
                if constexpr (ROLLED && HALO > 0) this->roll_taps(masks, window, values[HALO + v - 1], v);
                float taps[WIDTH];
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) {
                    taps[j] = ROLLED && j > 0 ? window[j] : values[HALO + v - j];
                    if constexpr (Way == EXACT) taps[j] = this->exact_tap(masks, exact, values, v, j);
                }
                float pre = bias, forward_pre = bias;
                if constexpr (Problem::silu) {
#pragma unroll
                    for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j], taps[j], pre);
                }
                if constexpr (Problem::dC) {
#pragma unroll
                    for (int j = WIDTH - 1; j >= 0; --j) forward_pre = multiply_add(weight[j], taps[j], forward_pre);
                    if constexpr (FORWARD_ORDER<Problem>) pre = forward_pre;
                }
                if constexpr (Problem::C) {
                    const float dy = d[v];
                    d[v] = gated<Problem>(c_factors[v], dy);
                    // From here on they are dC.
                    if constexpr (Problem::dC) c_factors[v] = multiply_rn(dy, kept<Problem>(activate<Problem>(forward_pre)));
                }
                g[v] = activation_gradient<Problem::silu>(pre, d[v]);
                if ((Problem::silu || Problem::C) && !in_row<Masked>(u, v)) g[v] = 0.0f;
                // A dy of 0 would not do: with an infinite bias g would be a NaN.
                if constexpr (Way == EXACT && Problem::seq_idx) {
                    g[v] = this->cuts(masks, v, 0) ? 0.0f : g[v];
                    if constexpr (Problem::dC) c_factors[v] = this->cuts(masks, v, 0) ? 0.0f : c_factors[v];
                }
                if constexpr (Problem::dbias) sums[WIDTH] += g[v];
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) sums[j] = multiply_add(g[v], taps[j], sums[j]);
            }
        }

        // The HALO gradients to the right: the first ones of the lane to the right, or of the tile before.
#pragma unroll
        for (int i = 0; i < HALO; ++i) {
            const float sent = Masked && this->stays(masks, i) ? 0.0f : g[i];
            g[COUNT + i] = shuffle(lane == 0 ? right[i] : sent, right_lane);
            right[i] = edge ? 0.0f : sent;
        }
        if constexpr (Masked && HAS_BOUNDARIES) {
            float reaching[WIDTH];  // the gradients that reach a position
#pragma unroll
            for (int v = COUNT - 1; v >= 0; --v) {
                // Boundaries between this lane and the next have been applied by the sender.
                if constexpr (ROLLED) {
                    if (v < COUNT - 1) roll(reaching, g[v + 1], this->cuts(masks, v + 1, 1));
                }
                out[v] = multiply_add(weight[0], g[v], begun[v]);
#pragma unroll
                for (int j = 1; j < WIDTH; ++j) {
                    if (!ROLLED || v == COUNT - 1) reaching[j] = g[v + j];
                    if constexpr (Way == EXACT) {
                        if (this->cuts(masks, exact, v + j, j)) reaching[j] = 0.0f;
                    }
                    out[v] = multiply_add(weight[j], reaching[j], out[v]);
                }
            }
        } else {
#pragma unroll
            for (int v = 0; v < COUNT; ++v) {
                out[v] = Masked ? multiply_add(weight[0], g[v], begun[v]) : weight[0] * g[v];
#pragma unroll
                for (int j = 1; j < WIDTH; ++j) out[v] = multiply_add(weight[j], g[v + j], out[v]);
            }
        }
        if constexpr (Problem::B) {
#pragma unroll
            for (int v = 0; v < COUNT; ++v) {
                const float product = kept<Problem>(out[v]);
                out[v] = multiply_rn(b_factors[v], product);
                x_factors[v] = multiply_rn(x_factors[v], product);
                if constexpr (Way == EXACT && Problem::seq_idx) {
                    // Padding takes nothing, whatever its factors are.
                    if (this->cuts(masks, v, 0)) out[v] = x_factors[v] = 0.0f;
                }
            }
        }
#pragma unroll
        for (int result = 0; result < 1 + Problem::dB + Problem::dC; ++result) {
            const bool is_db = Problem::dB && result == 1;
            char* const row = result == 0 ? dx_row : is_db ? db_row : dc_row;
            const float(&values_out)[COUNT] = result == 0 ? out : is_db ? x_factors : c_factors;
#pragma unroll
            for (int p = 0; p < PACKETS; ++p) {
                float part[PER_PACKET];
#pragma unroll
                for (int i = 0; i < PER_PACKET; ++i) part[i] = values_out[p * PER_PACKET + i];
                const i32 at = u + p * PER_PACKET;
                char* const address = row + (i64)step_u * SIZE + (p * PER_PACKET - slot * TILE_POSITIONS) * SIZE;
                if (!RAGGED || !Masked || (at >= computing.shift && at + PER_PACKET <= computing.end)) {
                    // Where rows share a wave, lanes without a row have an empty piece.
                    const bool full = Tile::full && GROUPS == 1;
                    if (full || at < computing.end) store(address, pack<X, BYTES>(part));
                } else {
#pragma unroll
                    for (int i = 0; i < PER_PACKET; ++i) {
                        if (at + i >= computing.shift && at + i < computing.end) store_element((X*)address + i, part[i]);
                    }
                }
            }
        }
    }

    // An element of the halo, from its words.
    static CAUSEWAY_DEVICE float halo_element(const u32 (&words)[HALO_WORDS + 1], int i) {
        if constexpr (SIZE == 4) {
            return as_float(words[i]);
        } else {
            const int k = i + HALO % 2;
            return k % 2 == 0 ? element<X, 0>(Packet<4>{{words[k / 2]}}) : element<X, 1>(Packet<4>{{words[k / 2]}});
        }
    }

    static CAUSEWAY_DEVICE void unpack_into(float (&values)[COUNT], int p, const Packet<BYTES>& packet) {
        float part[PER_PACKET];
        unpack<X>(packet, part);
#pragma unroll
        for (int i = 0; i < PER_PACKET; ++i) values[p * PER_PACKET + i] = part[i];
    }

    // The row that is walked, of a tensor that is written.
    CAUSEWAY_DEVICE char* row_of(const Memory& view) const {
        return (char*)view.data + (channel * view.channel + computing.entry * view.entry - computing.shift) * SIZE;
    }

    // Computes the lane's gradients, and adds to its sums, from memory alone: for tiles in which a lane meets the initial states of
    // more than one sequence.
    // `dc` becomes the gradient of the gate.
    CAUSEWAY_DEVICE void gather_gradients(float (&g)[COUNT + HALO], float (&dc)[COUNT], i32 u) {
#pragma unroll 1
        for (i32 v = 0; v < COUNT; ++v) {
            const i32 t = u - computing.shift + v;
            float gradient = 0.0f, activation = 0.0f;
            if (u + v >= computing.shift && u + v < computing.end) {
                const Span<i32> span = sequence_at<Problem, i32>(a, computing.entry, t);
                const Span<i64> sequence = {span.sequence, span.start, span.end};
                gradient = gradient_at<Problem>(a, sequence, computing.entry, channel, t);
                const i32 index = position_index<Problem>(a, computing.entry, t);
                if constexpr (Problem::dC) {
                    if (index >= 0) {
                        const float pre = pre_at<Problem, true>(a, sequence, computing.entry, channel, t, index);
                        activation = multiply_rn(read<X>(a.dy, computing.entry, channel, t), kept<Problem>(activate<Problem>(pre)));
                    }
                }
                sums[WIDTH] += gradient;
                // One tap at a time: with all of them in flight, wide windows would spill.
#pragma unroll 1
                for (int j = 0; j < WIDTH; ++j) {
                    const auto tap = load_tap<Problem>(a, sequence, computing.entry, channel, t, index, j);
                    float product = gradient * element<X, 0>(tap);
                    if constexpr (Problem::B) {
                        const float value = element<X, 0>(tap);
                        product = gradient * gated_tap<Problem>(a, sequence, computing.entry, channel, t, index, j, value);
                    }
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) sums[i] += i == j ? product : 0.0f;
                }
            }
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                g[i] = i == v ? gradient : g[i];
                if constexpr (Problem::dC) dc[i] = i == v ? activation : dc[i];
            }
        }
    }

    // Word `back` from the end of a lane's packets.
    static CAUSEWAY_DEVICE u32 last_word(const Packet<BYTES> (&packets)[PACKETS], int back) {
        constexpr int WORDS = BYTES < 4 ? 1 : BYTES / 4;
        if constexpr (BYTES >= 4) {
            const int word = PACKETS * WORDS - back;
            return packets[word / WORDS].word[word % WORDS];
        } else {
            const int element = 2 * (PACKETS / 2 - back);
            return packets[element].word[0] | packets[element + 1].word[0] << 16;
        }
    }

    // Whether position v of the lane lies in its row. Outside, dy is 0, but pre may overflow, and 0 times that is a NaN.
    template <bool Masked> CAUSEWAY_DEVICE bool in_row(i32 u, int v) const {
        if constexpr (RAGGED) return !Masked || (u + v >= computing.shift && u + v < computing.end);
        // A packet lies in a row as a whole. Where rows share a wave, lanes may have no row.
        return (Tile::full && GROUPS == 1) || u + v / PER_PACKET * PER_PACKET < computing.end;
    }

    // Replaces what lies outside the row, halo included: by initial states before it and by zeros after it.
    CAUSEWAY_DEVICE void clear_outside(float (&values)[HALO + COUNT], float (&d)[COUNT], i32 u) const {
        if constexpr (RAGGED) {
#pragma unroll
            for (int i = 0; i < HALO + COUNT; ++i) {
                const i32 at = u - HALO + i, t = at - computing.shift;
                if (t >= 0 && at < computing.end) continue;
                values[i] = t < 0 ? before_row(t) : 0.0f;
                if (i >= HALO) d[i - HALO] = 0.0f;
            }
        }
    }

    char *dx_channel, *dx_row, *db_row, *dc_row;
    Packet<BYTES> b[PACKETS], next_b[PACKETS], c[PACKETS];  // gates of the tile, and of the next one
    u32 left_b[HALO_WORDS + 1];
    float weight[WIDTH], bias, sums[WIDTH + 1];
    float right[HALO + 1];        // g to the right of the tile (lane 0)
    u32 left[HALO_WORDS + 1];  // x to the left of the piece
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_channel_first(const BackwardArguments& a, u32 block = block_index<0>()) {
    run_or_states<ChannelFirstBackward<Problem, Tile>, Problem, Tile::threads>(a, block);
}

}  // namespace causal_conv1d
}  // namespace causeway
