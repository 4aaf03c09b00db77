// Rings of stages: packets of x, dy and gates that the backward kernels prefetch. A thread reads back only what it fetched, so no
// barrier is needed.
//
// With asynchronous copies a ring lies in shared memory, and its prefetch distance costs no registers. Otherwise (AMD, sm_75,
// packets of 2 bytes) it lies in registers, of which there are enough for a distance of one.
#pragma once
#include "vector.cuh"

namespace causeway {
namespace causal_conv1d {

// Packets of rows. Odd: of 16-bit elements, and rows may begin in the middle of a word, so packets are moved in pieces.
template <int Bytes, bool Odd> struct RowAccess {
    static_assert(!Odd || Bytes % 4 == 0, "whole words");

    static CAUSEWAY_DEVICE Packet<Bytes> load(const char* address) {
        if constexpr (!Odd) {
            return causeway::load<Bytes>(address);
        } else {
            Packet<Bytes> packet;
#pragma unroll
            for (int i = 0; i < Bytes / 4; ++i) {
                const u32 low = causeway::load<2>(address + 4 * i).word[0], high = causeway::load<2>(address + 4 * i + 2).word[0];
                packet.word[i] = (low & 0xffff) | high << 16;
            }
            return packet;
        }
    }

    // As load where `wanted`; else zeros, and the address is not touched.
    static CAUSEWAY_DEVICE Packet<Bytes> load_if(bool wanted, const char* address) {
        if constexpr (!Odd) return causeway::load_if<Bytes>(wanted, address);
        return wanted ? load(address) : zero_packet<Bytes>();
    }

    static CAUSEWAY_DEVICE void store(char* address, const Packet<Bytes>& packet) {
        if constexpr (!Odd) {
            causeway::store(address, packet);
        } else if (is_odd(address)) {
            constexpr int LAST = Bytes / 4 - 1;
            causeway::store(address, Packet<2>{{packet.word[0]}});
#pragma unroll
            for (int i = 0; i < LAST; ++i) {
                causeway::store(address + 4 * i + 2, Packet<4>{{packet.word[i] >> 16 | packet.word[i + 1] << 16}});
            }
            causeway::store(address + 4 * LAST + 2, Packet<2>{{packet.word[LAST] >> 16}});
        } else {
#pragma unroll
            for (int i = 0; i < Bytes / 4; ++i) causeway::store(address + 4 * i, Packet<4>{{packet.word[i]}});
        }
    }

    // Whether a row begins in the middle of a word.
    static CAUSEWAY_DEVICE bool is_odd(const char* address) { return (reinterpret_cast<u64>(address) & 2) != 0; }
};

// A ring whose stages are chunks of Rows rows. In shared memory there are Stages stages, one of which is being read; in a stage,
// row r of thread i lies at ((Tensors·r + tensor) · Threads + i) · Bytes. In registers there is one stage, and a row is fetched as soon
// as the one in its place has been read.
//
// Of odd rows, the words are copied that a packet lies in, one more than it has; the first words of all threads lie before the second ones,
// and so on. Every word that is read holds an element of the packet: the planner sees to it that the tensor's lowest address begins one.
template <int Bytes, bool Odd, int Rows, int WantedStages, int Threads, int Tensors = 2> class RowRing {
    using Row = RowAccess<Bytes, Odd>;
    static constexpr int WORDS = Odd ? Bytes / 4 + 1 : 1, WORD_BYTES = Odd ? 4 : Bytes;

public:
    static constexpr bool ASYNC = HAS_ASYNC_COPY && Bytes >= 4;
    static_assert(ASYNC || !Odd, "registers hold whole packets");
    static constexpr int STAGES = ASYNC ? WantedStages : 1;
    static constexpr u32 SHARED_BYTES = ASYNC ? (u32)STAGES * Rows * Tensors * Threads * WORDS * WORD_BYTES : 0;

    CAUSEWAY_DEVICE RowRing() : thread_offset_(thread_index() * WORD_BYTES) {}

    // The prefetch distance, in stages.
    static constexpr int AHEAD = ASYNC ? STAGES - 1 : 1;

    // Fetches row `row` of the next free stage; zeros if not valid.
    CAUSEWAY_DEVICE void fetch(int row, const char* x, const char* dy, bool valid) {
        if constexpr (ASYNC) {
            copy(offset(fill_, row, 0), x, valid);
            copy(offset(fill_, row, 1), dy, valid);
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
            copy(offset(fill_, row, tensor), gate, valid);
        } else {
            ahead_[row][tensor] = valid ? load<Bytes>(gate) : zero_packet<Bytes>();
        }
    }

    // A row that was fetched from `address`.
    CAUSEWAY_DEVICE Packet<Bytes> read(int row, int tensor, const char* address) const {
        if constexpr (!ASYNC) {
            return ahead_[row][tensor];
        } else if constexpr (!Odd) {
            return load_shared<Bytes>(offset(read_, row, tensor));
        } else {
            u32 words[WORDS];
#pragma unroll
            for (int i = 0; i < WORDS; ++i) words[i] = load_shared<4>(offset(read_, row, tensor) + i * PLANE).word[0];
            const u32 shift = Row::is_odd(address) ? 16 : 0;
            Packet<Bytes> packet;
#pragma unroll
            for (int i = 0; i < WORDS - 1; ++i) packet.word[i] = (u32)(((u64)words[i + 1] << 32 | words[i]) >> shift);
            return packet;
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
    static constexpr u32 PLANE = (u32)Threads * WORD_BYTES;
    static constexpr u32 STAGE_BYTES = (u32)Rows * Tensors * WORDS * PLANE;
    static CAUSEWAY_DEVICE u32 next(u32 stage) {
        return stage + STAGE_BYTES == STAGES * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
    }
    CAUSEWAY_DEVICE u32 offset(u32 stage, int row, int tensor) const {
        return thread_offset_ + stage + (u32)(Tensors * row + tensor) * WORDS * PLANE;
    }

    static CAUSEWAY_DEVICE void copy(u32 to, const char* address, bool valid) {
        if constexpr (!Odd) {
            async_copy<Bytes>(to, address, valid);
        } else {
            const u32 odd = Row::is_odd(address) ? 2 : 0;
            const char* words = address - odd;
#pragma unroll
            for (int i = 0; i < WORDS - 1; ++i) async_copy<4>(to + i * PLANE, words + 4 * i, valid);
            // Of the last word only what belongs to the packet: the tensor may end with it.
            async_copy_first<4>(to + (WORDS - 1) * PLANE, words + Bytes, valid ? odd : 0);
        }
    }

    u32 thread_offset_, fill_ = 0, read_ = 0;
    Packet<Bytes> ahead_[ASYNC ? 1 : Rows][Tensors];
};

// A ring whose stages are tiles, for a walk that takes Unroll tiles per step: tile k of a step is *slot* k, a compile-time
// constant. In shared memory there are Stages stages: packet p of thread i in stage s lies at
// s · STAGE_BYTES + ((tensor · Packets + p) · Threads + i) · Bytes. In registers there are two.
//
// Indices: elements of seq_idx that a thread needs of a tile, a multiple of 4. They are copied with the tile. Loads return in
// the order in which they were issued, so an index loaded on its own would wait for all copies before it. In a stage, index k
// lies behind the packets, at (k / 4 · Threads + i) · 16 + k % 4 · 4.
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
