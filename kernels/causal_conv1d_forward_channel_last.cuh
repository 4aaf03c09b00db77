// Causal depthwise conv1d, forward, x[b, t, c] with stride 1 along dim.
//
//            dim →  lane 0   lane 1   …   lanes-1
//   t0-(width-1)  [ packet ][ packet ]            the halo: read again by this thread, from a cache
//        …
//   t0            [ packet ][ packet ]     …      one packet of neighbouring channels per thread and row
//   t0+1          [ packet ][ packet ]     …
//        …                                        a thread owns `rows` rows, a block `segments` times as many
//   t0+rows-1     [ packet ][ packet ]     …
//
// A thread starts all its loads, then walks down its rows with a window of the last `width` rows in registers. No shared
// memory, no barrier. Where rows allow only narrow packets, a thread has several of a row, a group of lanes apart. Per element, width 4, bf16: 4 FMA, 1 to unpack, 0.5 to pack, 5 for SiLU, about 1 for addresses
// and parameters.
//
// Gates are loaded with x, and multiplied in registers: B as the walk reaches a row, C before a row is stored.
//
// With a norm, the lanes of a head add their squares by shuffles, those of several rows together. So a wave stays together to its end.
// Where a head has two waves, these are a block, and pass on their sums through shared memory.
//
// The walk reads zeros before t = 0 and treats all rows as one sequence. Rows for which that is wrong are computed again
// afterwards with masked taps: the width-1 rows at a sequence's start, and rows beside a change of seq_idx.
//
//   struct Tile {
//       static constexpr int bytes = 16;         of a packet; every row of x, y, residual and gates allows it
//       static constexpr int more_packets = 0;   that a thread has of a row beside the first, `lanes` apart, where they are narrow
//       static constexpr int lanes = 32;         threads along dim
//       static constexpr int segments = 4;       threads along seqlen
//       static constexpr int rows = 8;           positions per thread
//       static constexpr int weight_bytes = 16;  see load_parameters
//       static constexpr int head_lanes = 8;     with a norm: threads that have a head's channels, a power of two; two waves at most
//   };
#pragma once
#include "causal_conv1d_forward.cuh"

namespace causeway {
namespace causal_conv1d {

// What one thread of the channel-last kernel works on: a part of each of the rows first … first+rows-1. Whole: all that it reads, halo
// included, exists.
template <class Problem, class Tile, bool Whole> struct LastThread {
    using X = typename Problem::X;
    static constexpr CAUSEWAY_DEVICE int waves_of_head() {
        if constexpr (Problem::norm) return Tile::head_lanes > (int)WAVE_SIZE ? Tile::head_lanes / (int)WAVE_SIZE : 1;
        return 1;
    }
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1, ROWS = Tile::rows, BYTES = Tile::bytes;
    static constexpr int PACKETS = 1 + Tile::more_packets, EACH = ELEMENTS<X, BYTES>, CHANNELS = PACKETS * EACH;
    static constexpr int APART = Tile::lanes * EACH;  // channels from packet to packet
    static_assert(PACKETS == 1 || !Problem::norm, "the lanes of a head lie side by side");
    static constexpr bool HAS_BOUNDARIES = Problem::seq_idx || Problem::cu_seqlens != 0;
    // Waves that share a head, and rows whose norms are computed together.
    static constexpr int HEAD_WAVES = waves_of_head();
    static constexpr int BATCH = !Problem::norm || CHANNELS == 1 ? 1 : CHANNELS > 4 ? 4 : ROWS < 8 ? ROWS : 8;
    static_assert(ROWS % BATCH == 0, "rows of whole batches");

    const ForwardArguments& a;
    i64 entry;
    i32 channel, first, seqlen;
    float weight[CHANNELS][WIDTH], bias[CHANNELS];
    u32 exchange = 0;  // where the waves of a head leave sums for each other next, in shared memory

    // A thread's part of a row: channels channel + k·APART … of packet k.
    struct Part {
        Packet<BYTES> packet[PACKETS];
    };

    // The distance from the thread's first channel to its channel number c.
    static CAUSEWAY_DEVICE i32 distance(int c) { return c / EACH * APART + c % EACH; }
    // Whether packet k lies in the row. That of an active thread's first packet does.
    CAUSEWAY_DEVICE bool has(int k) const { return Whole || k == 0 || channel + k * APART < (i32)a.dim; }

    // The part that begins at `address`, where `wanted`. Before stores: see load_before_stores.
    template <bool BeforeStores = false> CAUSEWAY_DEVICE Part read(bool wanted, const char* address) const {
        Part part;
#pragma unroll
        for (int k = 0; k < PACKETS; ++k) {
            const char* const from = address + k * APART * (int)sizeof(X);
            if constexpr (BeforeStores) {
                part.packet[k] = load_before_stores<BYTES>(wanted && has(k), from);
            } else {
                part.packet[k] = wanted && has(k) ? load<BYTES>(from) : zero_packet<BYTES>();
            }
        }
        return part;
    }

    // The same by load_if.
    CAUSEWAY_DEVICE Part read_if(bool wanted, const char* address) const {
        Part part;
#pragma unroll
        for (int k = 0; k < PACKETS; ++k) {
            part.packet[k] = load_if<BYTES>(wanted && has(k), address + k * APART * (int)sizeof(X));
        }
        return part;
    }

    static CAUSEWAY_DEVICE void unpack_part(const Part& part, float (&values)[CHANNELS]) {
#pragma unroll
        for (int k = 0; k < PACKETS; ++k) {
            float own[EACH];
            unpack<X>(part.packet[k], own);
#pragma unroll
            for (int i = 0; i < EACH; ++i) values[k * EACH + i] = own[i];
        }
    }

    CAUSEWAY_DEVICE void load_weights(bool active) {
#pragma unroll
        for (int k = 0; k < PACKETS; ++k) {
            float weights[EACH][WIDTH], biases[EACH];
            load_parameters<Problem, EACH, Tile::weight_bytes>(a.weight, a.weight_strides, a.bias, a.bias_stride,
                                                               active && has(k) ? channel + k * APART : 0, weights, biases);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                bias[k * EACH + i] = biases[i];
#pragma unroll
                for (int w = 0; w < WIDTH; ++w) weight[k * EACH + i][w] = weights[i][w];
            }
        }
    }

    // The address of row `first`. Its neighbours are step() bytes apart, which fits 32 bits.
    CAUSEWAY_DEVICE const char* row(const void* base, Strides3 strides) const {
        return (const char*)at<X>(base, entry * strides.batch + channel) + (i64)first * step(strides);
    }
    static CAUSEWAY_DEVICE i32 step(Strides3 strides) { return (i32)strides.seqlen * (i32)sizeof(X); }

    // What taps read of a row: x times its gate.
    static CAUSEWAY_DEVICE void unpack_row(const Part& x, const Part& gate, float (&values)[CHANNELS]) {
        unpack_part(x, values);
        if constexpr (Problem::B) {
            float factors[CHANNELS];
            unpack_part(gate, factors);
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) values[c] = gated<Problem>(factors[c], values[c]);
        }
    }

    // Divides rows by the norm of the head, which lanes beside each other have: all lanes of the wave take part, and all threads of the
    // block where heads have several waves.
    template <int Rows> CAUSEWAY_DEVICE void divide(float (&rows)[Rows][CHANNELS]) {
        if constexpr (!Problem::norm) {
            return;
        } else if constexpr (CHANNELS == 1 || HEAD_WAVES == 1 && Rows == 1) {
#pragma unroll
            for (int r = 0; r < Rows; ++r) divide_by_norm<Tile::head_lanes>(rows[r], a.norm);
        } else {
            using Sums = SumsOfHead<Tile::head_lanes / HEAD_WAVES, Rows>;
            float sums[Rows];
#pragma unroll
            for (int r = 0; r < Rows; ++r) sums[r] = squares_of_thread(rows[r]);
            Sums::add(sums);
            if constexpr (HEAD_WAVES > 1) add_other_wave<Sums>(sums);
#pragma unroll
            for (int i = 0; i < Sums::HELD; ++i) sums[i] = factor_of_head(sums[i], a.norm);
#pragma unroll
            for (int r = 0; r < Rows; ++r) {
                const float factor = Sums::get(sums, r);
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) rows[r][c] *= factor;
            }
        }
    }

    // Adds what the other wave of a head has. A block has one head then, so its two waves do the same throughout. What a wave leaves is
    // overwritten by the call after the next one, and no wave gets there before the other has read it.
    template <class Sums, int Rows> CAUSEWAY_DEVICE void add_other_wave(float (&sums)[Rows]) {
        static_assert(HEAD_WAVES == 2 && Tile::lanes == Tile::head_lanes && Tile::segments == 1, "two waves, one head");
        constexpr u32 PLACE = BATCH * 4;
        const u32 own = exchange + thread_index() / WAVE_SIZE * PLACE, other = exchange + (1 - thread_index() / WAVE_SIZE) * PLACE;
        const u32 at = Sums::first() * 4;
#pragma unroll
        for (int i = 0; i < Sums::HELD; ++i) store_shared<4>(own + at + i * 4, Packet<4>{{as_bits(sums[i])}});
        block_barrier();
#pragma unroll
        for (int i = 0; i < Sums::HELD; ++i) sums[i] += as_float(load_shared<4>(other + at + i * 4).word[0]);
        exchange ^= 2 * PLACE;
    }

    CAUSEWAY_DEVICE void write(bool wanted, i32 t, float (&sums)[CHANNELS], const Part& residual) const {
        if constexpr (Problem::residual) {
            float add[CHANNELS];
            unpack_part(residual, add);
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) sums[c] = add_rn(sums[c], add[c]);
        }
        char* y = (char*)row(a.y, a.y_strides) + (i64)(t - first) * step(a.y_strides);
        // A single packet is packed without a copy. With one, the compiler starts the last loads of a walk late.
        if constexpr (PACKETS == 1) return store_if<BYTES>(wanted && (Whole || t < seqlen), y, pack<X, BYTES>(sums));
#pragma unroll
        for (int k = 0; k < PACKETS; ++k) {
            float own[EACH];
#pragma unroll
            for (int i = 0; i < EACH; ++i) own[i] = sums[k * EACH + i];
            store_if<BYTES>(wanted && (Whole || t < seqlen) && has(k), y + k * APART * (int)sizeof(X), pack<X, BYTES>(own));
        }
    }

    // Whether those of rows first-HALO … first+ROWS-1 that exist carry one index and none is padding. Lanes that share a
    // segment share the reads of its indices, so all lanes of the wave take part.
    CAUSEWAY_DEVICE bool one_index() const {
        constexpr int LANES = Tile::lanes < (int)WAVE_SIZE ? Tile::lanes : (int)WAVE_SIZE;
        const i32 from = minimum(maximum(first - HALO, 0), seqlen - 1), count = minimum(first + ROWS, seqlen) - from;
        const i32 lane = (i32)(lane_index() % LANES);
        const i32* indices = at<i32>(a.seq_idx, entry * a.seq_idx_strides.first) + from;
        const u32 index = load<4>(indices).word[0];
        u32 differs = index & 0x80000000u;
#pragma unroll
        for (int k = 0; k < HALO + ROWS; k += LANES) {
            u32 own = index;
            if (lane + k < count) own = load<4>(indices + lane + k).word[0];
            differs |= own ^ index;
        }
        // Lanes past the last channel count: they have read indices too. Lanes past the last row do not.
        return wave_all(differs == 0 || first >= seqlen);
    }

    // The mask of row t. Bit k: the row k positions back carries another index, so its tap is left out; bit 0: row t is padding.
    // A sequence's initial states carry the index of its first row. The content of cu_seqlens may be wrong: no index after row
    // t is read.
    CAUSEWAY_DEVICE u32 cut_taps(i32 t, i32 start) const {
        const i32* indices = at<i32>(a.seq_idx, entry * a.seq_idx_strides.first);
        u32 own[WIDTH];
#pragma unroll
        for (int back = 0; back < WIDTH; ++back) own[back] = load<4>(indices + maximum(t - back, minimum(start, t))).word[0];
        u32 cut = own[0] >> 31;
#pragma unroll
        for (int back = 1; back < WIDTH; ++back) cut |= (u32)(own[back] != own[0]) << back;
        return cut;
    }

    // One row without the taps that are masked. Taps before its sequence read initial states. All of its loads are in flight
    // together.
    CAUSEWAY_DEVICE void masked_row(i32 t, const Span<i32>& span, u32 cut, bool is_wanted = true) {
        const char* x = row(a.x, a.x_strides) + (i64)(t - first) * step(a.x_strides);
        const i32 reach = t - span.start;
        Part parts[WIDTH], gates[WIDTH], gate;
        Packet<sizeof(X)> states[HALO + 1][CHANNELS];
        if constexpr (Problem::B) {
            const char* b = row(a.b, a.b_strides) + (i64)(t - first) * step(a.b_strides);
#pragma unroll
            for (int back = 0; back < WIDTH; ++back) {
                const bool counts = (cut >> back & 1) == 0 && (back == 0 || back <= reach);
                gates[back] = read_if(counts, b - (i64)back * step(a.b_strides));
            }
        }
        if constexpr (Problem::C) gate = read(true, row(a.c, a.c_strides) + (i64)(t - first) * step(a.c_strides));
#pragma unroll
        for (int back = 0; back < WIDTH; ++back) {
            const bool wanted = (cut >> back & 1) == 0, inside = back == 0 || back <= reach;
            parts[back] = read_if(wanted && inside, x - (i64)back * step(a.x_strides));
            if constexpr (Problem::initial_states) {
                if (back == 0) continue;
                const X* from = at<X>(a.initial_states, span.sequence * a.initial_strides.batch +
                                                            channel * a.initial_strides.dim +
                                                            (HALO - back + reach) * a.initial_strides.seqlen);
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    const bool exists = wanted && !inside && reach >= 0 && has(c / EACH);
                    states[back][c] = load_if<sizeof(X)>(exists, from + distance(c) * a.initial_strides.dim);
                }
            }
        }
        Part residual;
        if constexpr (Problem::residual) {
            residual = read(true, row(a.residual, a.residual_strides) + (i64)(t - first) * step(a.residual_strides));
        }
        float rows[1][CHANNELS], (&sums)[CHANNELS] = rows[0];
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) sums[c] = bias[c];
#pragma unroll
        for (int back = HALO; back >= 0; --back) {
            float values[CHANNELS];
            unpack_row(parts[back], gates[back], values);
            if constexpr (Problem::initial_states) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    if (back > 0 && back > reach) values[c] = element<X, 0>(states[back][c]);
                }
            }
            // A masked tap is left out, not multiplied by 0: its weight may be infinite.
            if (back == 0 || ((cut >> back & 1) == 0 && (back <= reach || Problem::initial_states))) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) sums[c] = multiply_add(weight[c][HALO - back], values[c], sums[c]);
            }
        }
        float factors[CHANNELS] = {};
        if constexpr (Problem::C) unpack_part(gate, factors);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) sums[c] = (cut & 1) != 0 ? 0.0f : activate_gated<Problem>(sums[c], factors[c]);
        divide(rows);
        write(is_wanted, t, sums, residual);
    }

    // The sequence of the first row that this thread reads, or one before it; all lanes of the wave take part.
    CAUSEWAY_DEVICE Span<i32> find() const {
        Span<i32> span{(i32)entry, 0, seqlen};
        if constexpr (Problem::cu_seqlens != 0) {
            // The segments of a wave are in order, so the first lane's is the first.
            const i32 from = minimum(maximum(first - HALO, 0), seqlen - 1);
            span = boundaries().find_by_wave((i32)shuffle((u32)from, 0));
        }
        return span;
    }

    CAUSEWAY_DEVICE Boundaries<Problem::cu_seqlens, i32> boundaries() const {
        return {a.cu_seqlens, 1, (i32)a.sequences, seqlen};
    }

    // Computes again the rows with masked taps and those that read states.
    CAUSEWAY_DEVICE void redo(Span<i32> span) {
#pragma unroll 1
        for (i32 t = first; t < minimum(first + ROWS, seqlen); ++t) {
            if constexpr (Problem::cu_seqlens != 0) boundaries().advance(span, t);
            const u32 cut = cut_taps(t, span.start);
            const bool early = (Problem::cu_seqlens != 0 || Problem::initial_states) && t - span.start < HALO;
            if (cut != 0 || early) masked_row(t, span, cut);
        }
    }

    // The same with a norm, for which a wave stays together: where any of its threads has such a row, all compute one, and those that
    // have none read and write nothing.
    CAUSEWAY_DEVICE void redo_by_wave(Span<i32> span, bool active) {
#pragma unroll 1
        for (i32 i = 0; i < ROWS; ++i) {
            const i32 t = minimum(first + i, seqlen - 1);
            u32 cut = 0;
            if constexpr (Problem::cu_seqlens != 0) boundaries().advance(span, t);
            if constexpr (Problem::seq_idx) cut = cut_taps(t, span.start);
            const bool early = t - span.start < HALO && (span.start != 0 || Problem::initial_states);
            const bool wanted = active && first + i < seqlen && (cut != 0 || early);
            if (!wave_all(!wanted)) masked_row(t, span, wanted ? cut : 0xffffffffu, wanted);
        }
    }

    // Computes again the rows that lie less than HALO after the start of a sequence.
    CAUSEWAY_DEVICE void redo_starts(Span<i32> span) {
        const i32 end = minimum(first + ROWS, seqlen);
#pragma unroll 1
        while (span.start < end) {
            // The walk has read zeros before the first sequence. That is right if there are no states.
            if (span.start != 0 || Problem::initial_states) {
                const i32 last = minimum(minimum(span.start + HALO, span.end), end);
#pragma unroll 1
                for (i32 t = maximum(span.start, first); t < last; ++t) masked_row(t, span, 0);
            }
            // The boundary after the segment's end is not loaded: the thread would wait for it.
            if constexpr (Problem::cu_seqlens == 0) break;
            if (span.end >= end || !boundaries().next(span)) break;
        }
    }
};

// Loads all that a thread reads, walks down its rows, and mends those for which the walk was wrong.
template <class Problem, class Tile, bool Whole>
CAUSEWAY_DEVICE void compute_rows(LastThread<Problem, Tile, Whole>& thread, bool active) {
    using Thread = LastThread<Problem, Tile, Whole>;
    using X = typename Problem::X;
    constexpr int WIDTH = Thread::WIDTH, HALO = Thread::HALO, ROWS = Thread::ROWS, CHANNELS = Thread::CHANNELS, BATCH = Thread::BATCH;
    const ForwardArguments& a = thread.a;
    const i32 first = thread.first, seqlen = thread.seqlen;
    using Part = typename Thread::Part;
    Part parts[HALO + ROWS], gates[HALO + ROWS], results[ROWS], residual[ROWS];
    const char* x = thread.row(a.x, a.x_strides);
    const i32 x_step = Thread::step(a.x_strides);
#pragma unroll
    for (int i = 0; i < HALO + ROWS; ++i) {
        const i32 t = first - HALO + i;
        const bool inside = active && (Whole || (i < HALO ? t >= 0 : t < seqlen));
        parts[i] = thread.template read<Problem::seq_idx>(inside, x + (i64)(i - HALO) * x_step);
    }
    if constexpr (Problem::B) {
        const char* b = thread.row(a.b, a.b_strides);
        const i32 step = Thread::step(a.b_strides);
#pragma unroll
        for (int i = 0; i < HALO + ROWS; ++i) {
            const i32 t = first - HALO + i;
            const bool inside = active && (Whole || (i < HALO ? t >= 0 : t < seqlen));
            gates[i] = thread.read(inside, b + (i64)(i - HALO) * step);
        }
    }
    if constexpr (Problem::C) {
        const char* c = thread.row(a.c, a.c_strides);
        const i32 step = Thread::step(a.c_strides);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) results[i] = thread.read(active && (Whole || first + i < seqlen), c + (i64)i * step);
    }
    if constexpr (Problem::residual) {
        const char* from = thread.row(a.residual, a.residual_strides);
        const i32 step = Thread::step(a.residual_strides);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) residual[i] = thread.read(active && (Whole || first + i < seqlen), from + (i64)i * step);
    }
    // Weight and bias are loaded before the search in cu_seqlens, so that both are waited for together. With states or indices
    // as well, the registers that this takes cost more than it gains.
    constexpr bool PARAMETERS_FIRST = Problem::cu_seqlens != 0 && !Problem::seq_idx && !Problem::initial_states;
    if constexpr (PARAMETERS_FIRST) thread.load_weights(active);
    const Span<i32> span = thread.find();
    bool one_index = true;
    if constexpr (Problem::seq_idx) one_index = thread.one_index();
    if constexpr (!PARAMETERS_FIRST) thread.load_weights(active);

    // Row i of the walk is window[i % width].
    float window[WIDTH][CHANNELS];
#pragma unroll
    for (int i = 0; i < HALO; ++i) {
        Thread::unpack_row(parts[i], gates[i], window[i]);
    }
#pragma unroll
    for (int begin = 0; begin < ROWS; begin += BATCH) {
        float rows[BATCH][CHANNELS];
#pragma unroll
        for (int r = 0; r < BATCH; ++r) {
            const int i = begin + r;
            float(&sums)[CHANNELS] = rows[r];
            Thread::unpack_row(parts[HALO + i], gates[HALO + i], window[(HALO + i) % WIDTH]);
            float factors[CHANNELS] = {};
            if constexpr (Problem::C) Thread::unpack_part(results[i], factors);
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                sums[c] = thread.bias[c];
#pragma unroll
                for (int w = 0; w < WIDTH; ++w) {
                    sums[c] = multiply_add(thread.weight[c][w], window[(i + w) % WIDTH][c], sums[c]);
                }
                sums[c] = activate_gated<Problem>(sums[c], factors[c]);
            }
        }
        thread.divide(rows);
#pragma unroll
        for (int r = 0; r < BATCH; ++r) thread.write(active, first + begin + r, rows[r], residual[begin + r]);
    }
    if constexpr (Problem::norm) {
        if (Problem::cu_seqlens != 0 || Problem::initial_states || !one_index) thread.redo_by_wave(span, active);
        return;
    }
    if (!active) return;
    if (!one_index) {
        thread.redo(span);
    } else if constexpr (Problem::cu_seqlens != 0 || Problem::initial_states) {
        thread.redo_starts(span);
    }
}

template <class Problem, class Tile>
CAUSEWAY_DEVICE void forward_channel_last(const ForwardArguments& a, u32 block = block_index<0>()) {
    using Thread = LastThread<Problem, Tile, false>;
    constexpr int THREADS = Tile::lanes * Tile::segments;

    const i64 entry = layered_block(a.batches_per_layer);
    if (entry >= a.batch) return;
    if constexpr (Problem::final_states) {
        if (block < a.state_blocks) return write_final_states<Problem, THREADS>(a, entry, block);
        block -= a.state_blocks;
    }
    const u32 row_block = quotient(block, a.tile_divisor);
    const u32 channel_block = block - row_block * a.tile_divisor.value;
    const u32 lane = channel_block * (Tile::lanes * Thread::PACKETS) + thread_index() % Tile::lanes;
    const u32 segment = row_block * Tile::segments + thread_index() / Tile::lanes;
    const i32 seqlen = (i32)a.seqlen;
    Thread thread{a, entry, (i32)(lane * Thread::EACH), (i32)(segment * Tile::rows), seqlen};
    const bool active = thread.channel < (i32)a.dim && thread.first < seqlen;
    if (!Thread::HAS_BOUNDARIES && !Problem::norm && !active) return;
    if constexpr (Thread::PACKETS > 1 && !Thread::HAS_BOUNDARIES) {
        // Whether each of many narrow packets exists is not asked where all of the block's do. That is the same for all lanes, which would
        // take turns if they went two ways; the other conditions differ at a sequence's ends alone.
        const i32 next_block = (i32)((channel_block + 1) * (Tile::lanes * Thread::CHANNELS));
        if (next_block <= (i32)a.dim && thread.first >= Thread::HALO && thread.first + Thread::ROWS <= seqlen) {
            LastThread<Problem, Tile, true> whole{a, entry, thread.channel, thread.first, seqlen};
            return compute_rows(whole, true);
        }
    }
    compute_rows(thread, active);
}

}  // namespace causal_conv1d
}  // namespace causeway
