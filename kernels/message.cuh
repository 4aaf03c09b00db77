// A message between two GPUs: elements of a tensor go into a room, memory that both GPUs reach, or come out of it.
//
//   room      [ flag of block 0 │ of block 1 │ … │ 64 flags, 32 bytes each ][ elements ]
//   sends     waits until a block's flag is 0, writes the block's elements, sets the flag to 1
//   receives  waits until a block's flag is 1, reads the block's elements, sets the flag to 0
//
// Elements are in the row-major order of (batch, dim, seqlen). Block 0 has the first 4096 bytes of them, block 1 the next, and block 0
// continues after the last one. So an element's block depends only on its offset, and a later message of any size waits until the
// data it overwrites has been read.
//
// Cost: a load and a store of each element, and a round trip to the room's memory for the flag.
#pragma once
#include "arguments.cuh"
#include "vector.cuh"

namespace causeway {

//   struct Tile {
//       static constexpr int element_bytes = 2;
//       static constexpr int bytes = 4;          of the neighbours that a thread has at a time, one or two
//       static constexpr int threads = 1024;     4096 / bytes
//       static constexpr int flags = 64;         of a room, and the bytes from one to the next
//       static constexpr int flag_bytes = 32;
//       static constexpr bool sends = true;      from the tensor to the room; false, from the room to the tensor
//   };

// Where an element of a tensor is.
struct Place {
    i64 batch, channel, position;
};

// Calls `move(address, places, count)` for the neighbours that a thread has at a time: where the first is in the room, where they are
// in the tensor, and how many of them there are.
template <class Tile, class Move> CAUSEWAY_DEVICE void exchange(const MessageArguments& a, const Move& move) {
    constexpr int COUNT = Tile::bytes / Tile::element_bytes;
    char* const room = (char*)a.room;
    u32* const flag = (u32*)(room + block_index<0>() * Tile::flag_bytes);
    await_flag(flag, Tile::sends ? 0 : 1);
    const u64 step = (u64)a.blocks * Tile::threads * COUNT;
    for (u64 first = ((u64)block_index<0>() * Tile::threads + thread_index()) * COUNT; first < a.elements; first += step) {
        const u64 row = first / a.seqlen, batch = row / a.dim;
        Place place = {(i64)batch, (i64)(row - batch * a.dim), (i64)(first - row * a.seqlen)}, places[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            places[k] = place;
            if (++place.position < (i64)a.seqlen) continue;
            place.position = 0;
            if (++place.channel < (i64)a.dim) continue;
            place.channel = 0;
            ++place.batch;
        }
        const int count = a.elements - first < COUNT ? (int)(a.elements - first) : COUNT;
        move(room + Tile::flags * Tile::flag_bytes + first * Tile::element_bytes, places, count);
    }
    set_flag(flag, Tile::sends ? 1 : 0);
}

// Sends what `element_at` gives for each place, as a packet of an element's bytes. Zeros may be written after the last element.
// Together: the elements of a packet are computed concurrently, which takes more registers.
template <class Tile, bool Together, class ElementAt>
CAUSEWAY_DEVICE void send_message(const MessageArguments& a, const ElementAt& element_at) {
    constexpr int COUNT = Tile::bytes / Tile::element_bytes;
    static_assert(COUNT <= 2, "one element, or two of 16 bits");
    exchange<Tile>(a, [&](char* address, const Place (&places)[COUNT], int count) {
        auto packet = zero_packet<Tile::bytes>();
        const auto include = [&](int k) {
            // Chosen, not indexed: where this is not unrolled, places would be kept in memory.
            const Packet<Tile::element_bytes> element = element_at(k == 0 ? places[0] : places[COUNT - 1]);
            if constexpr (COUNT == 1) {
                packet = element;
            } else {
                packet.word[0] |= element.word[0] << (16 * k);
            }
        };
        if constexpr (Together) {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                if (k < count) include(k);
            }
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k) include(k);
        }
        store(address, packet);
    });
}

template <class Tile> CAUSEWAY_DEVICE void message(const MessageArguments& a) {
    constexpr int BYTES = Tile::element_bytes, COUNT = Tile::bytes / BYTES;
    const auto address_of = [&](const Place& place) {
        const i64 at = place.batch * a.batch_stride + place.channel * a.dim_stride + place.position * a.seqlen_stride;
        return (char*)a.tensor + at * BYTES;
    };
    if constexpr (Tile::sends) {
        send_message<Tile, true>(a, [&](const Place& place) { return load<BYTES>(address_of(place)); });
    } else {
        exchange<Tile>(a, [&](const char* address, const Place (&places)[COUNT], int count) {
            const auto packet = load_mutable<Tile::bytes>(address);
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                if (k >= count) break;
                if constexpr (COUNT == 1) {
                    store(address_of(places[k]), packet);
                } else {
                    store(address_of(places[k]), Packet<2>{{packet.word[0] >> (16 * k) & 0xffffu}});
                }
            }
        });
    }
}

}  // namespace causeway
