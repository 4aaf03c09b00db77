// Rings of stages: packets of x, dy and gates that the backward kernels prefetch. A thread reads back only what it fetched, so no
// barrier is needed.
//
// With asynchronous copies a ring lies in shared memory, and its prefetch distance costs no registers. Otherwise (AMD, sm_75,
// packets of 2 bytes) it lies in registers, of which there are enough for a distance of one.
#pragma once
#include "vector.cuh"

namespace causeway {
namespace causal_conv1d {

// Packets of rows that begin at multiples of `Access` bytes. With fewer than a packet has, the lanes of a wave have a *line*: as many bytes of a row as
// they have packets. It goes round them in pieces of `Access` bytes, 2 or 4, so that a packet's pieces lie a wave apart and the wave has neighbours in
// each access.
template <int Bytes, int Access> struct RowAccess {
    static constexpr int PIECES = Access < Bytes ? Bytes / Access : 1, PIECE = Bytes / PIECES;
    static constexpr int STEP = (int)WAVE_SIZE * PIECE;  // from piece to piece
    static_assert(PIECES == 1 || Access == 2 || Access == 4, "halves or whole words");

    static CAUSEWAY_DEVICE Packet<Bytes> load(const char* address) {
        return join([&](int i) { return causeway::load<PIECE>(address + i * STEP); });
    }

    // As load where `wanted`; else zeros, and the address is not touched.
    static CAUSEWAY_DEVICE Packet<Bytes> load_if(bool wanted, const char* address) {
        return join([&](int i) { return causeway::load_if<PIECE>(wanted, address + i * STEP); });
    }

    static CAUSEWAY_DEVICE Packet<Bytes> load_shared(u32 offset) {
        return join([&](int i) { return causeway::load_shared<PIECE>(offset, i * STEP); });
    }

    // Stores a packet's values: the pieces that begin in the `rest` bytes from the address on. Each is rounded on its own: taking one packet apart again
    // would cost an instruction more for each.
    template <typename T> static CAUSEWAY_DEVICE void store(char* address, const float (&values)[Bytes / sizeof(T)], i32 rest) {
        if constexpr (PIECES == 1) {
            causeway::store<Bytes>(address, pack<T, Bytes>(values));
        } else {
            constexpr int COUNT = PIECE / (int)sizeof(T);
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                float own[COUNT];
#pragma unroll
                for (int k = 0; k < COUNT; ++k) own[k] = values[i * COUNT + k];
                store_if<PIECE>(i * STEP < rest, address + i * STEP, pack<T, PIECE>(own));
            }
        }
    }

private:
    template <class Piece> static CAUSEWAY_DEVICE Packet<Bytes> join(const Piece& piece) {
        if constexpr (PIECES == 1) {
            return piece(0);
        } else {
            Packet<Bytes> packet = zero_packet<Bytes>();
#pragma unroll
            for (int i = 0; i < PIECES; ++i) packet.word[i * PIECE / 4] |= piece(i).word[0] << (i * PIECE % 4 * 8);
            return packet;
        }
    }
};

// A ring whose stages are chunks of Rows rows. In shared memory there are Stages stages, one of which is being read; in a stage,
// row r of thread i lies at ((Tensors·r + tensor) · Threads + i) · Bytes. In registers there is one stage, and a row is fetched as soon
// as the one in its place has been read.
template <int Bytes, int Rows, int WantedStages, int Threads, int Tensors = 2> class RowRing {
public:
    static constexpr bool ASYNC = HAS_ASYNC_COPY && Bytes >= 4;
    static constexpr int STAGES = ASYNC ? WantedStages : 1;
    static constexpr u32 SHARED_BYTES = ASYNC ? (u32)STAGES * Rows * Tensors * Threads * Bytes : 0;

    CAUSEWAY_DEVICE RowRing() : thread_offset_(thread_index() * Bytes) {}

    // The prefetch distance, in stages.
    static constexpr int AHEAD = ASYNC ? STAGES - 1 : 1;

    // Fetches row `row` of the next free stage; zeros if not valid.
    CAUSEWAY_DEVICE void fetch(int row, const char* x, const char* dy, bool valid) {
        if constexpr (ASYNC) {
            async_copy<Bytes>(offset(fill_, row, 0), x, valid);
            async_copy<Bytes>(offset(fill_, row, 1), dy, valid);
        } else if (valid) {
            ahead_[row][0] = load<Bytes>(x);
            ahead_[row][1] = load<Bytes>(dy);
        } else {
            ahead_[row][0] = ahead_[row][1] = zero_packet<Bytes>();
        }
    }

    // The same of another tensor, a gate.
    CAUSEWAY_DEVICE void fetch_gate(int row, int tensor, const char* gate, bool valid) {
        if constexpr (ASYNC) {
            async_copy<Bytes>(offset(fill_, row, tensor), gate, valid);
        } else {
            ahead_[row][tensor] = valid ? load<Bytes>(gate) : zero_packet<Bytes>();
        }
    }

    CAUSEWAY_DEVICE Packet<Bytes> read(int row, int tensor) const {
        if constexpr (!ASYNC) {
            return ahead_[row][tensor];
        } else {
            return load_shared<Bytes>(offset(read_, row, tensor));
        }
    }

    // Ends the fetches of a stage.
    CAUSEWAY_DEVICE void fetched() {
        if constexpr (ASYNC) {
            async_commit();
            fill_ = next(fill_);
        }
    }

    // Waits for the oldest of the `Ahead` stages that are in flight.
    template <int Ahead> CAUSEWAY_DEVICE void wait() {
        if constexpr (ASYNC) async_wait<Ahead - 1>();
    }

    CAUSEWAY_DEVICE void was_read() {
        if constexpr (ASYNC) read_ = next(read_);
    }

private:
    static constexpr u32 STAGE_BYTES = (u32)Rows * Tensors * Threads * Bytes;
    static CAUSEWAY_DEVICE u32 next(u32 stage) {
        return stage + STAGE_BYTES == STAGES * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
    }
    CAUSEWAY_DEVICE u32 offset(u32 stage, int row, int tensor) const {
        return thread_offset_ + stage + (u32)(Tensors * row + tensor) * Threads * Bytes;
    }

    u32 thread_offset_, fill_ = 0, read_ = 0;
    Packet<Bytes> ahead_[ASYNC ? 1 : Rows][Tensors];
};

// The same for rows that begin at any multiple of `Access` bytes, 2 or 4. The lanes of a wave copy a line together (see RowAccess), in the packets in
// which memory has it, one more than it fills: the address of each is a multiple of its size. Each lane then reads its own pieces. Where each lane
// copied its own, calls were bound by the instructions for that and by requests to the L2 cache.
//
// Chunks are fetched and read one after the other. All tensors have the same distance to a multiple of a packet in every row. What a packet
// holds beside the line, other channels or rows, is not read; the planner sees to it that a tensor's lowest address begins a packet.
template <int Bytes, int Access, int Rows, int Stages, int Threads, int Tensors = 2> class LineRing {
    static constexpr int LINES = Rows * Tensors, LANES = (int)WAVE_SIZE;
    static constexpr u32 LINE_BYTES = (LANES + 1) * Bytes, WAVE_BYTES = LINES * LINE_BYTES, STAGE_BYTES = Threads / LANES * WAVE_BYTES;
    // Whether the rows of every chunk have the distances to a multiple of a packet that those of the first one have.
    static constexpr bool STEADY = Rows * Access % Bytes == 0;
    static_assert(Threads % LANES == 0, "whole waves");
    static_assert((Bytes == 4 || Bytes == 8) && HAS_ASYNC_COPY, "whole words, copied asynchronously");

public:
    static constexpr bool ASYNC = true;
    static constexpr int AHEAD = Stages - 1;
    static constexpr u32 SHARED_BYTES = (u32)Stages * STAGE_BYTES;

    struct Line {
        const char* address;
        i32 pitch;  // from row to row
    };

    // `line(tensor)` is its line of the first row that is fetched, and `bytes` what a line has of the tensor's rows.
    template <class Lines> CAUSEWAY_DEVICE LineRing(i32 bytes, const Lines& line) {
        const u32 lane = lane_index();
        wave_ = thread_index() / LANES * WAVE_BYTES;
        own_ = (u32)opaque((i32)(lane * Bytes));
#pragma unroll
        for (int tensor = 0; tensor < Tensors; ++tensor) {
            const Line of = line(tensor);
            packets_[tensor] = {opaque(of.address + lane * Bytes), of.pitch};
        }
        rest_ = opaque(bytes - (i32)(lane * Bytes));
        // The last packet of a line: of each line of a chunk, another lane copies it.
        last_row_ = lane / Tensors;
        last_rest_ = opaque(bytes - LANES * Bytes);
#pragma unroll
        for (int tensor = 0; tensor < Tensors; ++tensor) {
            const Line of = line(tensor);
            if (lane % Tensors == tensor) last_ = {of.address + LANES * Bytes + (i64)last_row_ * of.pitch, of.pitch};
        }
        residue_ = (u32)(u64)line(0).address;
        if constexpr (STEADY) {
#pragma unroll
            for (int row = 0; row < Rows; ++row) at_[row] = (u32)opaque((i32)piece_of(row));
        }
    }

    // Fetches the next chunk, whose first row is t: rows from `end` on as zeros. Whole: there are rows up to the end of the chunk and one more.
    template <bool Whole> CAUSEWAY_DEVICE void fetch(i32 t, i32 end) {
        const u32 stage = fill_ + wave_;
#pragma unroll
        for (int row = 0; row < Rows; ++row) {
#pragma unroll
            for (int tensor = 0; tensor < Tensors; ++tensor) {
                packets_[tensor].template copy<Whole>(stage + own_ + (Tensors * row + tensor) * LINE_BYTES, row, rest_, t + row < end);
            }
        }
        if (own_ < (u32)LINES * Bytes) {
            last_.template copy<Whole>(stage + own_ / Bytes * LINE_BYTES + LANES * Bytes, 0, last_rest_, t + last_row_ < end);
        }
#pragma unroll
        for (int tensor = 0; tensor < Tensors; ++tensor) packets_[tensor].address += (i64)Rows * packets_[tensor].pitch;
        last_.address += (i64)Rows * last_.pitch;
    }

    // Ends the fetches of a stage.
    CAUSEWAY_DEVICE void fetched() {
        async_commit();
        fill_ = next(fill_);
    }

    CAUSEWAY_DEVICE Packet<Bytes> read(int row, int tensor) const {
        const u32 at = STEADY ? at_[row] : piece_of(row);
        return RowAccess<Bytes, Access>::load_shared(read_ + at + (u32)(Tensors * row + tensor) * LINE_BYTES);
    }

    // Waits for the oldest of the `Ahead` stages that are in flight, and for the lanes that read the stage that is filled next.
    template <int Ahead> CAUSEWAY_DEVICE void wait() {
        async_wait<Ahead - 1>();
        wave_barrier();
    }

    CAUSEWAY_DEVICE void was_read() {
        read_ = next(read_);
        if constexpr (!STEADY) residue_ += (u32)Rows * (u32)packets_[0].pitch;
    }

private:
    // A lane's bytes of a line, in every row: a packet begins at or before them.
    struct Packets {
        const char* address;
        i32 pitch;

        // `rest`: from the bytes on to the line's end.
        template <bool Whole> CAUSEWAY_DEVICE void copy(u32 to, i32 row, i32 rest, bool exists) const {
            const char* const at = address + (i64)row * pitch;
            const char* const packet = (const char*)((u64)at & ~(u64)(Bytes - 1));
            if constexpr (Whole) {
                // Bytes past the line's end belong to the row after it.
                async_copy<Bytes>(to, packet, rest > -Bytes);
            } else {
                const i32 before = (i32)((u32)(u64)at & (Bytes - 1));
                async_copy_first<Bytes>(to, packet, exists ? (u32)minimum(maximum(rest + before, 0), Bytes) : 0);
            }
        }
    };

    // Where the lane's first piece lies of a row of this chunk, in a stage and a line.
    CAUSEWAY_DEVICE u32 piece_of(int row) const {
        return wave_ + own_ / Bytes * Access + ((residue_ + (u32)row * (u32)packets_[0].pitch) & (Bytes - 1));
    }

    static CAUSEWAY_DEVICE u32 next(u32 stage) { return stage + STAGE_BYTES == Stages * STAGE_BYTES ? 0 : stage + STAGE_BYTES; }

    Packets packets_[Tensors], last_;
    i32 rest_, last_rest_, last_row_;
    u32 wave_, own_, fill_ = 0, read_ = 0;
    u32 residue_;  // an address of the row that is read next: the last bits count
    u32 at_[Rows];
};

template <bool InLines, int Bytes, int Access, int Rows, int Stages, int Threads, int Tensors> struct RingOfRows {
    using Type = RowRing<Bytes, Rows, Stages, Threads, Tensors>;
};
template <int Bytes, int Access, int Rows, int Stages, int Threads, int Tensors>
struct RingOfRows<true, Bytes, Access, Rows, Stages, Threads, Tensors> {
    using Type = LineRing<Bytes, Access, Rows, Stages, Threads, Tensors>;
};

// A ring whose stages are tiles, for a walk that takes Unroll tiles per step: tile k of a step is *slot* k, a compile-time
// constant. In shared memory there are Stages stages: packet p of thread i in stage s lies at
// s · STAGE_BYTES + ((tensor · Packets + p) · Threads + i) · Bytes. In registers there are two.
//
// Indices: elements of seq_idx that a thread needs of a tile, a multiple of 4. They are copied with the tile. Loads return in
// the order in which they were issued, so an index loaded on its own would wait for all copies before it. In a stage, index k
// lies after the packets, at (k / 4 · Threads + i) · 16 + k % 4 · 4.
template <int Bytes, int Packets, int Stages, int Threads, int Unroll, int Indices = 0, int Tensors = 2> class TileRing {
public:
    static constexpr bool ASYNC = HAS_ASYNC_COPY && Bytes >= 4;
    static constexpr int STAGES = ASYNC ? Stages : 2;
    static_assert(Unroll == 1 ? STAGES >= 2 : Unroll == 2, "the walk looks at the next tile");
    static_assert(Unroll == 1 || STAGES % Unroll == 0, "a step's tiles lie side by side");
    static constexpr u32 PACKET_BYTES = (u32)Tensors * Packets * Threads * Bytes, STAGE_BYTES = PACKET_BYTES + 4u * Indices * Threads;
    static_assert(Indices % 4 == 0, "indices are read by 16 bytes");
    static constexpr u32 SHARED_BYTES = ASYNC ? STAGES * STAGE_BYTES : 0;
    enum Tensor { X_TENSOR = 0, DY_TENSOR = 1, FIRST_GATE = 2, SECOND_GATE = 3 };

    CAUSEWAY_DEVICE TileRing() : now_(thread_index() * Bytes), end_(now_ + STAGES * STAGE_BYTES) {}

    // Fetches into the stage that is number `stage` from the first of this step on; zeros if not valid.
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

    // Fetches indices of a thread from number k on, `Access` bytes. The address is legal.
    template <int Access> CAUSEWAY_DEVICE void fetch_indices(int stage, int k, const i32* address) {
        if constexpr (ASYNC) {
            async_copy_near<Access>(indices_at(now_ + stage * STAGE_BYTES, k), address);
        } else {
            const Packet<Access> packet = load<Access>(address);
#pragma unroll
            for (int i = 0; i < Access / 4; ++i) ahead_indices_[stage][k + i] = (i32)packet.word[i];
        }
    }

    // Indices k … k + 3 of the tile in `slot`.
    CAUSEWAY_DEVICE void read_indices(int slot, int k, i32* four) const { read_indices(slot, now_ + slot * STAGE_BYTES, k, four); }

    // The same of the tile after it.
    CAUSEWAY_DEVICE void read_next_indices(int slot, int k, i32* four) const {
        if constexpr (ASYNC) {
            read_indices(0, slot + 1 < Unroll ? now_ + (slot + 1) * STAGE_BYTES : following(), k, four);
        } else {
            read_indices((slot + 1) % 2, 0, k, four);
        }
    }

    CAUSEWAY_DEVICE void commit() { async_commit(); }

    // Waits until the current tile and those after it, `Tiles` in all, have arrived.
    template <int Tiles> CAUSEWAY_DEVICE void wait() { async_wait<STAGES - Tiles>(); }

    CAUSEWAY_DEVICE Packet<Bytes> read(int slot, Tensor tensor, int p) const {
        if constexpr (ASYNC) {
            return load_shared<Bytes>(offset(now_ + slot * STAGE_BYTES, tensor, p));
        } else {
            return ahead_[slot][tensor][p];
        }
    }

    // The same of the tile after the one in `slot`.
    CAUSEWAY_DEVICE Packet<Bytes> read_next(int slot, Tensor tensor, int p) const {
        if constexpr (ASYNC) {
            const u32 stage = slot + 1 < Unroll ? now_ + (slot + 1) * STAGE_BYTES : following();
            return load_shared<Bytes>(offset(stage, tensor, p));
        } else {
            return ahead_[(slot + 1) % 2][tensor][p];
        }
    }

    // Frees the stage of the tile in `slot`, which has been read. Returns the stage that the next fetch goes to.
    CAUSEWAY_DEVICE int free(int slot) {
        if constexpr (ASYNC || Unroll > 1) {
            return slot;
        } else {
#pragma unroll
            for (int p = 0; p < Packets; ++p) {
#pragma unroll
                for (int i = 0; i < Tensors; ++i) ahead_[0][i][p] = ahead_[1][i][p];
            }
#pragma unroll
            for (int k = 0; k < Indices; ++k) ahead_indices_[0][k] = ahead_indices_[1][k];
            return 1;
        }
    }

    // To the next step.
    CAUSEWAY_DEVICE void advance() {
        if constexpr (ASYNC) now_ = following();
    }

private:
    static constexpr u32 STEP_BYTES = Unroll * STAGE_BYTES;
    static CAUSEWAY_DEVICE u32 offset(u32 stage, int tensor, int p) {
        return stage + (u32)(tensor * Packets + p) * Threads * Bytes;
    }
    CAUSEWAY_DEVICE u32 following() const {
        return now_ + STEP_BYTES == end_ ? now_ + STEP_BYTES - STAGES * STAGE_BYTES : now_ + STEP_BYTES;
    }

    // Where a thread's index k lies. now_ is an offset among packets of Bytes; indices lie among packets of 16 bytes.
    static CAUSEWAY_DEVICE u32 indices_at(u32 stage, int k) {
        return stage + thread_index() * (16 - Bytes) + PACKET_BYTES + (u32)(k / 4) * Threads * 16 + (u32)(k % 4) * 4;
    }

    CAUSEWAY_DEVICE void read_indices(int slot, u32 stage, int k, i32* four) const {
        Packet<16> packet;
        if constexpr (ASYNC) packet = load_shared<16>(indices_at(stage, k));
#pragma unroll
        for (int i = 0; i < 4; ++i) four[i] = ASYNC ? (i32)packet.word[i] : ahead_indices_[slot][k + i];
    }

    u32 now_, end_;
    Packet<Bytes> ahead_[ASYNC ? 1 : 2][Tensors][Packets];
    i32 ahead_indices_[2][ASYNC || Indices == 0 ? 1 : Indices];
};

}  // namespace causal_conv1d
}  // namespace causeway
