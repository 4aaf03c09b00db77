// A block of threads: who waits where, and what its waves exchange.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fiber.h"

namespace causeway_simulator {

// Source line of a kernel's call, as portable.cuh passes it.
struct Site {
    const char* file;
    int line;
};
inline bool same(const Site& a, const Site& b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

constexpr unsigned WAVE = CAUSEWAY_WAVE_SIZE;
constexpr unsigned MAX_THREADS = 1024;

struct Barrier {
    unsigned waiting = 0;
    unsigned generation = 0;
    Site site{};

    void open() {
        waiting = 0;
        ++generation;
    }
};

// An asynchronous copy to shared memory, of zeros if from nowhere.
struct Copy {
    unsigned char* to;
    const void* from;
    unsigned count, bytes, group;
};

struct Fiber {
    Context context{};
    Barrier* barrier = nullptr;  // what it waits for, if anything
    unsigned generation = 0;
    unsigned parity = 0;  // which of the two exchange slots the next exchange uses
    unsigned group_parity = 0;  // the same of exchanges within groups of lanes
    bool done = false;
    std::vector<Copy> copies;   // under way
    unsigned closed_groups = 0;  // of copies

    bool is_ready() const { return !done && !(barrier && barrier->generation == generation); }
};

// What the blocks of a cluster have sent to one of them. A thread waits for all of it at `barrier`. In shared memory it has 8 bytes, which
// a GPU counts in and which nobody else may write.
struct Mailbox {
    static constexpr unsigned CLOSED = ~0u;
    static constexpr uint64_t MARK = 0x6d61696c626f7821ull;
    unsigned at = CLOSED;
    bool announced = false;
    unsigned expected = 0, received = 0;
    Barrier barrier;

    bool complete() const { return announced && received == expected; }
};

// A block that is under way. It is reused for one block of the grid after the other.
class Block {
public:
    Block(unsigned threads, unsigned shared_bytes, StackPool& pool)
        : threads(threads), shared_bytes(shared_bytes), pool(pool), stacks(pool.take(threads)) {
        fibers.resize(threads);
        // Allocated to the byte, so that a sanitizer sees the first access past the end.
        void* memory = nullptr;
        if (posix_memalign(&memory, 64, shared_bytes ? shared_bytes : 1) == 0) {
            shared = static_cast<unsigned char*>(memory);
        }
    }
    ~Block() {
        free(shared);
        pool.give_back(std::move(stacks));
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    bool ready() const { return stacks->ready() && shared; }
    unsigned char* stack(unsigned thread) const { return (*stacks)[thread]; }

    void begin(const unsigned (&at)[3], void (*entry)()) {
        memcpy(index, at, sizeof index);
        // Every float that a thread reads before it is written is a NaN.
        memset(shared, 0xff, shared_bytes);
        alive = threads;
        cursor = 0;
        barrier = Barrier();
        for (unsigned w = 0; w * WAVE < threads; ++w) {
            wave_barriers[w] = Barrier();
            wave_exited[w] = false;
        }
        for (Barrier& group : group_barriers) group = Barrier();
        mailbox = Mailbox();
        for (unsigned t = 0; t < threads; ++t) {
            fibers[t] = Fiber();
            // Frames that begin at the same place of a page would push each other out of the cache.
            prepare_context(fibers[t].context, stack(t), STACK_BYTES - t % 64 * 64, entry);
        }
    }

    unsigned wave_threads(unsigned wave) const {
        const unsigned rest = threads - wave * WAVE;
        return rest < WAVE ? rest : WAVE;
    }

    // Where threads wait, and how many: "16 at kernels/a.cuh:12 and 16 at kernels/a.cuh:20".
    std::string waiting_places() const {
        std::map<std::string, unsigned> places;
        for (const Fiber& fiber : fibers) {
            if (fiber.done || fiber.is_ready()) continue;
            const Site site = fiber.barrier->site;
            ++places[std::string(site.file) + ":" + std::to_string(site.line)];
        }
        std::string text;
        for (const auto& [place, count] : places) {
            text += (text.empty() ? "" : " and ") + std::to_string(count) + " at " + place;
        }
        return text;
    }

    const unsigned threads, shared_bytes;
    unsigned index[3] = {0, 0, 0};
    unsigned alive = 0;  // threads that have not returned
    unsigned cursor = 0;  // place in the order of threads where the next turn goes on
    std::vector<Fiber> fibers;
    Barrier barrier;
    Barrier wave_barriers[MAX_THREADS / 32];
    bool wave_exited[MAX_THREADS / 32] = {};
    unsigned slots[2][MAX_THREADS];
    Barrier group_barriers[MAX_THREADS];
    unsigned group_slots[2][MAX_THREADS];
    Mailbox mailbox;
    unsigned char* shared = nullptr;

private:
    StackPool& pool;
    std::unique_ptr<Stacks> stacks;
};

// Blocks that run together: one, unless the kernel has clusters.
struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    unsigned turn = 0;    // the number of the block that goes on next
    unsigned opened = 0;  // threads that have opened their mailboxes
    Barrier all_opened;

    Block* first_alive() const {
        for (const auto& block : blocks) {
            if (block->alive) return block.get();
        }
        return nullptr;
    }
};

}  // namespace causeway_simulator
