// Runs a kernel on a CPU, thread by thread.
//
// A block's threads are fibers of one OS thread: each runs until it meets a barrier or a wave exchange, then the next
// one is resumed. Several OS threads take blocks from one queue. The order of threads and of blocks is part of the
// launch, since a kernel that lacks a barrier is often right in one order and wrong in another. In the shuffled order
// each OS thread has several blocks under way and switches between them at random places, as a multiprocessor does:
// what blocks say to each other before they should is seen. Those of a cluster are always under way together.
//
// What makes a launch fail, with the source line of the kernel: threads that meet at different barriers (divergence),
// a wave exchange that a lane never reaches, a lane that reads one that does not exist, what is sent in a cluster too early, too late or
// to a mailbox that is not there, and a deadlock.
//
// The kernel calls the functions of namespace causeway_simulator at the end (portable.cuh declares them); the host
// calls causeway_simulator_launch.
#include <atomic>
#include <cstdarg>
#include <memory>
#include <mutex>
#include <thread>

#include "block.h"

namespace causeway_simulator {
namespace {

enum Order : unsigned { ASCENDING = 0, DESCENDING = 1, SHUFFLED = 2 };

// Blocks, or clusters of them, that an OS thread has under way in the shuffled order.
constexpr unsigned INTERLEAVED = 8;

// One launch, shared by all workers.
struct Launch {
    void (*call)(const void*);
    const void* arguments;
    unsigned grid[3];
    unsigned threads;
    unsigned cluster;
    unsigned shared_bytes;
    unsigned order;
    unsigned seed;
    StackPool* stacks;
    uint64_t clusters;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex message_lock;
    char* message;
    size_t message_bytes;
};

// Random numbers that depend on the seed alone: xorshift.
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(0x9e3779b97f4a7c15ull ^ seed) {}
    uint64_t operator()() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }
};

// One OS thread, and the clusters that it has under way.
class Worker {
public:
    explicit Worker(Launch& launch) : launch(launch), random(launch.seed) {
        sequence.resize(launch.threads);
        for (unsigned t = 0; t < launch.threads; ++t) {
            sequence[t] = launch.order == DESCENDING ? launch.threads - 1 - t : t;
        }
        if (launch.order != SHUFFLED) return;
        // Fisher and Yates.
        for (size_t i = sequence.size(); i > 1; --i) std::swap(sequence[i - 1], sequence[random() % i]);
    }

    void run();

    [[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 2, 3))) {
        char text[512];
        va_list values;
        va_start(values, format);
        vsnprintf(text, sizeof text, format, values);
        va_end(values);
        record(text);
        for (;;) leave();
    }

    void wait(Barrier& barrier, unsigned expected, Site site, const char* what) {
        if (barrier.waiting && !same(barrier.site, site)) {
            fail("%s at %s:%d while %u of %u threads wait at %s:%d", what, site.file, site.line, barrier.waiting,
                 expected, barrier.site.file, barrier.site.line);
        }
        barrier.site = site;
        if (++barrier.waiting == expected) return barrier.open();
        wait_for(barrier, site);
    }

    unsigned exchange(unsigned value, unsigned source, Site site) {
        const unsigned* const slots = share(value, site, "shuffle");
        const unsigned lanes = block->wave_threads(current / WAVE);
        source &= WAVE - 1;
        if (source >= lanes) {
            fail("shuffle at %s:%d reads lane %u of a wave of %u threads", site.file, site.line, source, lanes);
        }
        return slots[source];
    }

    // The same within groups of lanes that lie beside each other, of which each is by itself.
    unsigned exchange_within(unsigned value, unsigned lanes, unsigned distance, Site site) {
        if (distance >= lanes) fail("shuffle at %s:%d reads a lane %u away in groups of %u", site.file, site.line, distance, lanes);
        whole_wave(site);
        unsigned* const slots = block->group_slots[block->fibers[current].group_parity ^= 1];
        slots[current] = value;
        wait(block->group_barriers[current / lanes], lanes, site, "shuffle");
        return slots[current ^ distance];
    }

    unsigned votes(bool predicate, Site site) {
        const unsigned* const slots = share(predicate, site, "vote");
        unsigned result = 0;
        for (unsigned lane = 0; lane < block->wave_threads(current / WAVE); ++lane) result += slots[lane];
        return result;
    }

    void meet_wave(Site site) {
        const unsigned wave = whole_wave(site);
        wait(block->wave_barriers[wave], block->wave_threads(wave), site, "wave barrier");
    }

    void meet_block(Site site) { wait(block->barrier, block->alive, site, "block barrier"); }

    // Until it is waited for, what a copy brings is not there.
    void start_copy(unsigned offset, const void* from, unsigned count, unsigned bytes) {
        Fiber& fiber = block->fibers[current];
        memset(block->shared + offset, 0xff, bytes);
        fiber.copies.push_back({block->shared + offset, from, count, bytes, fiber.closed_groups});
    }

    void await_copies(unsigned pending) {
        Fiber& fiber = block->fibers[current];
        std::vector<Copy> rest;
        for (const Copy& copy : fiber.copies) {
            if (copy.group + pending >= fiber.closed_groups) {
                rest.push_back(copy);
            } else {
                memcpy(copy.to, copy.from, copy.count);
                memset(copy.to + copy.count, 0, copy.bytes - copy.count);
            }
        }
        fiber.copies = std::move(rest);
        // Others may fetch to where these came to, before they are read. Not always: it would be as good as a barrier.
        if (launch.order == SHUFFLED && random() % 2 != 0) leave();
    }

    void open_mailbox(unsigned at, Site site) {
        Mailbox& mailbox = block->mailbox;
        if (mailbox.at == Mailbox::CLOSED) {
            if (at % 8 != 0 || at + uint64_t(8) > launch.shared_bytes) fail("mailbox at byte %u at %s:%d", at, site.file, site.line);
            mailbox.at = at;
            memcpy(block->shared + at, &Mailbox::MARK, 8);
        }
        expect_mailbox(*block, at, site);
        if (++cluster->opened == launch.threads * cluster->blocks.size()) cluster->all_opened.open();
    }

    void await_mailboxes(unsigned at, unsigned bytes, bool announces, Site site) {
        expect_mailbox(*block, at, site);
        if (announces) {
            block->mailbox.announced = true;
            block->mailbox.expected = bytes;
            if (block->mailbox.complete()) block->mailbox.barrier.open();
        }
        if (cluster->all_opened.generation == 0) wait_for(cluster->all_opened, site);
    }

    void send(unsigned to, unsigned offset, unsigned value, unsigned at, Site site) {
        const char* const wrong = cluster->all_opened.generation == 0    ? "before all mailboxes of the cluster are open"
                                  : to >= cluster->blocks.size()         ? "to a block that the cluster does not have"
                                  : cluster->blocks[to]->alive == 0      ? "to a block that has ended"
                                  : offset + uint64_t(sizeof value) > launch.shared_bytes ? "to a place past the end of shared memory"
                                                                                : nullptr;
        if (wrong) fail("sends at %s:%d %s", site.file, site.line, wrong);
        Block& other = *cluster->blocks[to];
        expect_mailbox(other, at, site);
        memcpy(other.shared + offset, &value, sizeof value);
        other.mailbox.received += sizeof value;
        if (other.mailbox.complete()) other.mailbox.barrier.open();
    }

    void receive(unsigned at, Site site) {
        expect_mailbox(*block, at, site);
        if (!block->mailbox.complete()) wait_for(block->mailbox.barrier, site);
    }

    Launch& launch;
    Cluster* cluster = nullptr;  // whose turn it is, which of its blocks, and which of that one's threads
    Block* block = nullptr;
    unsigned current = 0;

private:
    static void enter();

    // A GPU counts at the place that it is told, whatever is there.
    void expect_mailbox(const Block& of, unsigned at, Site site) {
        if (of.mailbox.at != at) fail("no mailbox at byte %u at %s:%d", at, site.file, site.line);
        if (memcmp(of.shared + at, &Mailbox::MARK, 8) != 0) fail("mailbox written over before %s:%d", site.file, site.line);
    }

    // Until somebody opens the barrier.
    void wait_for(Barrier& barrier, Site site) {
        barrier.site = site;
        Fiber& fiber = block->fibers[current];
        fiber.barrier = &barrier;
        fiber.generation = barrier.generation;
        leave();
        fiber.barrier = nullptr;
    }

    // Leaves a value for the lanes of the wave, and returns all of theirs. Two slots take turns: a lane may be at the
    // next exchange while another still reads this one.
    const unsigned* share(unsigned value, Site site, const char* what) {
        const unsigned wave = whole_wave(site);
        const unsigned parity = block->fibers[current].parity ^= 1;
        block->slots[parity][current] = value;
        wait(block->wave_barriers[wave], block->wave_threads(wave), site, what);
        return block->slots[parity] + wave * WAVE;
    }

    unsigned whole_wave(Site site) {
        const unsigned wave = current / WAVE;
        if (block->wave_exited[wave]) {
            fail("wave exchange at %s:%d after a lane of the wave has returned", site.file, site.line);
        }
        return wave;
    }

    void record(const char* text) {
        if (launch.failed.exchange(true)) return;
        std::lock_guard<std::mutex> hold(launch.message_lock);
        snprintf(launch.message, launch.message_bytes, "block (%u, %u, %u), thread %u: %s", block->index[0],
                 block->index[1], block->index[2], current, text);
    }

    // Back to the scheduler.
    void leave() {
#if defined(CAUSEWAY_ADDRESS_SANITIZER)
        void* fake = nullptr;
        // Without a place to keep it, the sanitizer frees the fake stack of a thread that has returned: megabytes each.
        const bool returned = block->fibers[current].done;
        __sanitizer_start_switch_fiber(returned ? nullptr : &fake, scheduler_stack, scheduler_stack_bytes);
#endif
        switch_context(block->fibers[current].context, scheduler);
#if defined(CAUSEWAY_ADDRESS_SANITIZER)
        __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_stack_bytes);
#endif
    }

    void resume(unsigned thread) {
        current = thread;
#if defined(CAUSEWAY_ADDRESS_SANITIZER)
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(&fake, block->stack(thread), STACK_BYTES);
#endif
        switch_context(scheduler, block->fibers[thread].context);
#if defined(CAUSEWAY_ADDRESS_SANITIZER)
        __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    }

    bool begin_next(Cluster& into);
    bool advance(Cluster& now, uint64_t steps);
    void advance(Block& now, uint64_t& steps);
    bool failed() const { return launch.failed.load(std::memory_order_relaxed); }

    Random random;
    std::vector<unsigned> sequence;
    Context scheduler{};
#if defined(CAUSEWAY_ADDRESS_SANITIZER)
    const void* scheduler_stack = nullptr;
    size_t scheduler_stack_bytes = 0;
#endif
};

thread_local Worker* worker = nullptr;

void Worker::enter() {
#if defined(CAUSEWAY_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(nullptr, &worker->scheduler_stack, &worker->scheduler_stack_bytes);
#endif
    Worker& w = *worker;
    w.launch.call(w.launch.arguments);
    Block& block = *w.block;
    const unsigned wave = w.current / WAVE;
    block.fibers[w.current].done = true;
    block.wave_exited[wave] = true;
    --block.alive;
    if (block.wave_barriers[wave].waiting) {
        const Site site = block.wave_barriers[wave].site;
        w.fail("returned while its wave waits at %s:%d", site.file, site.line);
    }
    // A barrier waits for the threads that have not returned.
    if (block.barrier.waiting && block.barrier.waiting == block.alive) block.barrier.open();
    for (;;) w.leave();
}

// Takes a cluster from the queue; false if there is none left.
bool Worker::begin_next(Cluster& into) {
    const uint64_t turn = launch.next.fetch_add(1);
    if (turn >= launch.clusters) return false;
    uint64_t number = turn;
    if (launch.order == DESCENDING) number = launch.clusters - 1 - turn;
    // An odd step that is prime to any grid below 2^31 visits every cluster once.
    if (launch.order == SHUFFLED) number = (turn * 2147483647ull + launch.seed) % launch.clusters;
    into.turn = launch.order == DESCENDING ? launch.cluster - 1 : 0;
    into.opened = 0;
    into.all_opened = Barrier();
    for (unsigned i = 0; i < into.blocks.size(); ++i) {
        const uint64_t at_block = number * launch.cluster + i;
        const unsigned at[3] = {
            static_cast<unsigned>(at_block % launch.grid[0]),
            static_cast<unsigned>(at_block / launch.grid[0] % launch.grid[1]),
            static_cast<unsigned>(at_block / launch.grid[0] / launch.grid[1]),
        };
        into.blocks[i]->begin(at, enter);
    }
    return true;
}

// Resumes threads of a block that can go on, at most `steps` times, which it counts down.
void Worker::advance(Block& now, uint64_t& steps) {
    block = &now;
    unsigned passed = 0;
    while (now.alive && steps > 0 && passed <= launch.threads) {
        const unsigned thread = sequence[now.cursor];
        now.cursor = now.cursor + 1 == launch.threads ? 0 : now.cursor + 1;
        if (!now.fibers[thread].is_ready()) {
            ++passed;
            continue;
        }
        passed = 0;
        --steps;
        resume(thread);
        if (failed()) return;
    }
}

// The same for the blocks of a cluster; false once all have ended, or one has failed.
bool Worker::advance(Cluster& now, uint64_t steps) {
    cluster = &now;
    if (launch.order == SHUFFLED) now.turn = static_cast<unsigned>(random() % launch.cluster);
    const unsigned size = launch.cluster, next = launch.order == DESCENDING ? size - 1 : 1;
    unsigned idle = 0;  // blocks in a row of which no thread could go on
    while (steps > 0 && idle < size) {
        const uint64_t before = steps;
        advance(*now.blocks[now.turn], steps);
        if (failed()) return false;
        idle = steps == before ? idle + 1 : 0;
        now.turn = (now.turn + next) % size;
    }
    Block* const alive = now.first_alive();
    if (alive && steps > 0) {
        block = alive;
        for (current = 0; alive->fibers[current].done;) ++current;
        char text[512];
        snprintf(text, sizeof text, "waits for ever: threads wait %s", alive->waiting_places().c_str());
        record(text);
        return false;
    }
    return alive != nullptr;
}

void Worker::run() {
    worker = this;
    std::vector<std::unique_ptr<Cluster>> clusters;
    const unsigned most = launch.order == SHUFFLED ? INTERLEAVED : 1;
    bool queue = true;
    while (!failed()) {
        while (queue && clusters.size() < most && launch.next.load() < launch.clusters) {
            clusters.push_back(std::make_unique<Cluster>());
            for (unsigned i = 0; i < launch.cluster; ++i) {
                clusters.back()->blocks.push_back(std::make_unique<Block>(launch.threads, launch.shared_bytes, *launch.stacks));
                block = clusters.back()->blocks.back().get();
                if (!block->ready()) return record("no memory for the threads' stacks");
            }
            queue = begin_next(*clusters.back());
            if (!queue) clusters.pop_back();
        }
        if (clusters.empty()) break;
        const size_t turn = launch.order == SHUFFLED ? random() % clusters.size() : 0;
        // Now a single thread, now the whole cluster.
        const uint64_t steps = launch.order == SHUFFLED ? 1ull << random() % 12 : UINT64_MAX;
        if (advance(*clusters[turn], steps) || failed()) continue;
        queue = queue && begin_next(*clusters[turn]);
        if (!queue) clusters.erase(clusters.begin() + static_cast<long>(turn));
    }
    worker = nullptr;
}

}  // namespace

// ---- what kernels call ---------------------------------------------------------------------------------------------

unsigned thread_index() { return worker->current; }
unsigned block_index(int axis) { return worker->block->index[axis]; }
unsigned char* shared_memory() { return worker->block->shared; }
void meet_block(Site site) { worker->meet_block(site); }
void meet_wave(Site site) { worker->meet_wave(site); }
unsigned exchange(unsigned value, unsigned source_lane, Site site) { return worker->exchange(value, source_lane, site); }
unsigned exchange_within(unsigned value, unsigned lanes, unsigned distance, Site site) {
    return worker->exchange_within(value, lanes, distance, site);
}
unsigned votes(bool predicate, Site site) { return worker->votes(predicate, site); }
void start_copy(unsigned offset, const void* from, unsigned count, unsigned bytes) {
    worker->start_copy(offset, from, count, bytes);
}
void close_copies() { ++worker->block->fibers[worker->current].closed_groups; }
void await_copies(unsigned pending) { worker->await_copies(pending); }
void open_mailbox(unsigned mailbox, Site site) { worker->open_mailbox(mailbox, site); }
void await_mailboxes(unsigned mailbox, unsigned bytes, bool announces, Site site) {
    worker->await_mailboxes(mailbox, bytes, announces, site);
}
void send(unsigned block, unsigned offset, unsigned value, unsigned mailbox, Site site) {
    worker->send(block, offset, value, mailbox, site);
}
void receive(unsigned mailbox, Site site) { worker->receive(mailbox, site); }

}  // namespace causeway_simulator

// ---- what the host calls -------------------------------------------------------------------------------------------

// Runs a grid to its end. Returns 0, or 1 with a sentence in `message`. `stacks` is where the process keeps the address of stacks that
// launches take over from each other: null at first.
extern "C" int causeway_simulator_launch(void (*call)(const void*), const void* arguments, const unsigned* grid,
                                         unsigned threads, unsigned cluster, unsigned shared_bytes, unsigned order,
                                         unsigned seed, unsigned workers, std::atomic<causeway_simulator::StackPool*>* stacks,
                                         char* message, size_t message_bytes) {
    using namespace causeway_simulator;
    if (threads == 0 || threads > MAX_THREADS) {
        snprintf(message, message_bytes, "a block has 1 to %u threads, not %u", MAX_THREADS, threads);
        return 1;
    }
    if (cluster == 0 || grid[0] % cluster != 0) {
        snprintf(message, message_bytes, "a grid of %u blocks has no clusters of %u", grid[0], cluster);
        return 1;
    }
    Launch launch;
    launch.call = call;
    launch.arguments = arguments;
    for (int axis = 0; axis < 3; ++axis) launch.grid[axis] = grid[axis];
    launch.threads = threads;
    launch.cluster = cluster;
    launch.shared_bytes = shared_bytes;
    launch.order = order;
    launch.seed = seed;
    launch.stacks = &StackPool::at(*stacks);
    launch.clusters = static_cast<uint64_t>(grid[0] / cluster) * grid[1] * grid[2];
    launch.message = message;
    launch.message_bytes = message_bytes;
    // Several in parallel, where there are several.
    if (workers > launch.clusters) workers = static_cast<unsigned>(launch.clusters);
    std::vector<std::thread> others;
    for (unsigned i = 1; i < workers; ++i) others.emplace_back([&launch] { Worker(launch).run(); });
    Worker(launch).run();
    for (std::thread& other : others) other.join();
    return launch.failed.load() ? 1 : 0;
}
