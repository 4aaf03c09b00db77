// Runs a kernel on a CPU, thread by thread.
//
// A block's threads are fibers of one OS thread: each runs until it meets a barrier or a wave exchange, then the next
// one is resumed. Several OS threads take blocks from one queue. The order of threads and of blocks is part of the
// launch, since a kernel that lacks a barrier is often right in one order and wrong in another.
//
// What makes a launch fail, with the source line of the kernel: threads that meet at different barriers (divergence),
// a wave exchange that a lane never reaches, a lane that reads one that does not exist, and a deadlock.
//
// The kernel calls the functions of namespace causeway_simulator (portable.cuh declares them); the host calls
// causeway_simulator_launch.
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#include <sanitizer/common_interface_defs.h>
#endif
#endif

// ---- fibers --------------------------------------------------------------------------------------------------------

namespace {

#if defined(SANITIZED)
constexpr size_t STACK_BYTES = 512 << 10;
#else
constexpr size_t STACK_BYTES = 128 << 10;
#endif

#if defined(__x86_64__)
using Context = void*;
// Saves the callee-saved registers and the stack pointer, and resumes the other side. Signal masks and floating-point
// modes are the same on both sides.
extern "C" void causeway_simulator_switch(void** save, void* resume);
asm(R"(.text
.globl causeway_simulator_switch
.hidden causeway_simulator_switch
causeway_simulator_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");
void switch_context(Context& save, Context& resume) { causeway_simulator_switch(&save, resume); }
void prepare(Context& context, unsigned char* stack, void (*entry)()) {
    // The return address of the first switch; the stack is 8 bytes off 16 at a function's entry.
    void** top = reinterpret_cast<void**>(stack + STACK_BYTES) - 2;
    *top = reinterpret_cast<void*>(entry);
    context = top - 6;
}
#else
using Context = ucontext_t;
void switch_context(Context& save, Context& resume) { swapcontext(&save, &resume); }
void prepare(Context& context, unsigned char* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
#endif

struct Barrier {
    unsigned waiting = 0;
    unsigned generation = 0;
    int site = 0;
};

enum class State { Ready, Done };

struct Fiber {
    Context context;
    Barrier* barrier = nullptr;  // what it waits for, if anything
    unsigned generation = 0;
    unsigned parity = 0;  // which of the two exchange slots the next exchange uses
    State state = State::Ready;
};

// One launch, shared by all workers.
struct Launch {
    void (*call)(const void*);
    const void* arguments;
    unsigned grid[3];
    unsigned threads;
    unsigned shared_bytes;
    unsigned order;
    unsigned seed;
    uint64_t blocks;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex message_lock;
    char* message;
    size_t message_bytes;
};

enum Order : unsigned { ASCENDING = 0, DESCENDING = 1, SHUFFLED = 2 };

constexpr unsigned WAVE = CAUSEWAY_WAVE_SIZE;
constexpr unsigned MAX_THREADS = 1024;

// One OS thread, and the block that it runs.
class Worker {
public:
    explicit Worker(Launch& launch) : launch(launch), fibers(launch.threads) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        stride = STACK_BYTES + page;
        void* memory = mmap(nullptr, stride * launch.threads, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            stacks = nullptr;
            return;
        }
        stacks = static_cast<unsigned char*>(memory);
        // A guard below every stack: an overflow faults instead of changing a neighbour.
        for (unsigned t = 0; t < launch.threads; ++t) mprotect(stacks + t * stride, page, PROT_NONE);
        guard = page;
        // Allocated to the byte, so that a sanitizer sees the first access past the end.
        void* block_memory = nullptr;
        if (posix_memalign(&block_memory, 64, launch.shared_bytes ? launch.shared_bytes : 1) == 0) {
            shared = static_cast<unsigned char*>(block_memory);
        }
    }

    ~Worker() {
        if (stacks) munmap(stacks, stride * launch.threads);
        free(shared);
    }

    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

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

    void wait(Barrier& barrier, unsigned expected, int site, const char* what) {
        if (barrier.waiting && barrier.site != site) {
            fail("%s at line %d while other threads wait at line %d", what, site, barrier.site);
        }
        barrier.site = site;
        if (++barrier.waiting == expected) {
            barrier.waiting = 0;
            ++barrier.generation;
            return;
        }
        Fiber& fiber = fibers[current];
        fiber.barrier = &barrier;
        fiber.generation = barrier.generation;
        leave();
        fiber.barrier = nullptr;
    }

    unsigned wave_threads(unsigned wave) const {
        const unsigned rest = launch.threads - wave * WAVE;
        return rest < WAVE ? rest : WAVE;
    }

    unsigned exchange(unsigned value, unsigned source, int site) {
        const unsigned wave = current / WAVE, lanes = wave_threads(wave);
        expect_whole_wave(wave, site);
        const unsigned parity = fibers[current].parity ^= 1;
        slots[parity][current] = value;
        wait(wave_barriers[wave], lanes, site, "shuffle");
        source &= WAVE - 1;
        if (source >= lanes) fail("shuffle at line %d reads lane %u of a wave of %u threads", site, source, lanes);
        return slots[parity][wave * WAVE + source];
    }

    unsigned count(bool predicate, int site) {
        const unsigned wave = current / WAVE, lanes = wave_threads(wave);
        expect_whole_wave(wave, site);
        const unsigned parity = fibers[current].parity ^= 1;
        slots[parity][current] = predicate;
        wait(wave_barriers[wave], lanes, site, "vote");
        unsigned result = 0;
        for (unsigned lane = 0; lane < lanes; ++lane) result += slots[parity][wave * WAVE + lane];
        return result;
    }

    void meet_wave(int site) {
        const unsigned wave = current / WAVE;
        expect_whole_wave(wave, site);
        wait(wave_barriers[wave], wave_threads(wave), site, "wave barrier");
    }

    void meet_block(int site) { wait(block_barrier, alive, site, "block barrier"); }

    Launch& launch;
    unsigned current = 0;
    unsigned block[3] = {0, 0, 0};
    unsigned char* shared = nullptr;

private:
    static void enter();

    void expect_whole_wave(unsigned wave, int site) {
        if (wave_exited[wave]) fail("wave exchange at line %d after a lane of the wave has returned", site);
    }

    void record(const char* text) {
        if (launch.failed.exchange(true)) return;
        std::lock_guard<std::mutex> hold(launch.message_lock);
        snprintf(launch.message, launch.message_bytes, "block (%u, %u, %u), thread %u: %s", block[0], block[1], block[2],
                 current, text);
    }

    // Back to the scheduler.
    void leave() {
#if defined(SANITIZED)
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(&fake, scheduler_stack, scheduler_stack_bytes);
#endif
        switch_context(fibers[current].context, scheduler);
#if defined(SANITIZED)
        __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_stack_bytes);
#endif
    }

    void resume(unsigned thread) {
        current = thread;
#if defined(SANITIZED)
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(&fake, stacks + thread * stride + guard, STACK_BYTES);
#endif
        switch_context(scheduler, fibers[thread].context);
#if defined(SANITIZED)
        __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    }

    void run_block(uint64_t index);
    void schedule();

    std::vector<Fiber> fibers;
    std::vector<unsigned> sequence;
    Barrier block_barrier;
    Barrier wave_barriers[MAX_THREADS / 32];
    bool wave_exited[MAX_THREADS / 32];
    unsigned slots[2][MAX_THREADS];
    unsigned alive = 0;
    Context scheduler;
    unsigned char* stacks = nullptr;
    size_t stride = 0, guard = 0;
#if defined(SANITIZED)
    const void* scheduler_stack = nullptr;
    size_t scheduler_stack_bytes = 0;
#endif
};

thread_local Worker* worker = nullptr;

void Worker::enter() {
#if defined(SANITIZED)
    __sanitizer_finish_switch_fiber(nullptr, &worker->scheduler_stack, &worker->scheduler_stack_bytes);
#endif
    worker->launch.call(worker->launch.arguments);
    Worker& w = *worker;
    w.fibers[w.current].state = State::Done;
    w.wave_exited[w.current / WAVE] = true;
    --w.alive;
    if (w.wave_barriers[w.current / WAVE].waiting) {
        w.fail("returned while its wave waits at line %d", w.wave_barriers[w.current / WAVE].site);
    }
    // A barrier waits for the threads that have not returned.
    if (w.block_barrier.waiting && w.block_barrier.waiting == w.alive) {
        w.block_barrier.waiting = 0;
        ++w.block_barrier.generation;
    }
    for (;;) w.leave();
}

// A permutation of 0 … count-1 that depends on the seed alone (Fisher and Yates, with xorshift numbers).
void shuffle_order(std::vector<unsigned>& order, unsigned seed) {
    uint64_t state = 0x9e3779b97f4a7c15ull ^ seed;
    for (size_t i = order.size(); i > 1; --i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::swap(order[i - 1], order[state % i]);
    }
}

void Worker::schedule() {
    while (alive) {
        bool progress = false;
        for (unsigned thread : sequence) {
            Fiber& fiber = fibers[thread];
            if (fiber.state == State::Done) continue;
            if (fiber.barrier && fiber.barrier->generation == fiber.generation) continue;
            progress = true;
            resume(thread);
            if (launch.failed.load(std::memory_order_relaxed)) return;
        }
        if (!progress) {
            for (unsigned thread : sequence) {
                if (fibers[thread].state == State::Done) continue;
                current = thread;
                char text[96];
                snprintf(text, sizeof text, "waits for ever at line %d", fibers[thread].barrier->site);
                record(text);
                return;
            }
        }
    }
}

void Worker::run_block(uint64_t index) {
    block[0] = static_cast<unsigned>(index % launch.grid[0]);
    block[1] = static_cast<unsigned>(index / launch.grid[0] % launch.grid[1]);
    block[2] = static_cast<unsigned>(index / launch.grid[0] / launch.grid[1]);
    // Every float that a thread reads before it is written is a NaN.
    memset(shared, 0xff, launch.shared_bytes);
    alive = launch.threads;
    block_barrier = Barrier();
    for (unsigned w = 0; w * WAVE < launch.threads; ++w) {
        wave_barriers[w] = Barrier();
        wave_exited[w] = false;
    }
    for (unsigned t = 0; t < launch.threads; ++t) {
        fibers[t] = Fiber();
        prepare(fibers[t].context, stacks + t * stride + guard, enter);
    }
    schedule();
}

void Worker::run() {
    if (!stacks || !shared) {
        record("no memory for the threads' stacks");
        return;
    }
    sequence.resize(launch.threads);
    for (unsigned t = 0; t < launch.threads; ++t) {
        sequence[t] = launch.order == DESCENDING ? launch.threads - 1 - t : t;
    }
    if (launch.order == SHUFFLED) shuffle_order(sequence, launch.seed);
    worker = this;
    while (!launch.failed.load(std::memory_order_relaxed)) {
        const uint64_t turn = launch.next.fetch_add(1);
        if (turn >= launch.blocks) break;
        uint64_t index = turn;
        if (launch.order == DESCENDING) index = launch.blocks - 1 - turn;
        // An odd step that is prime to any grid below 2^31 visits every block once.
        if (launch.order == SHUFFLED) index = (turn * 2147483647ull + launch.seed) % launch.blocks;
        run_block(index);
    }
    worker = nullptr;
}

}  // namespace

// ---- what kernels call ---------------------------------------------------------------------------------------------

namespace causeway_simulator {
unsigned thread_index() { return worker->current; }
unsigned block_index(int axis) { return worker->block[axis]; }
unsigned grid_size(int axis) { return worker->launch.grid[axis]; }
unsigned char* shared_memory() { return worker->shared; }
void block_barrier(int site) { worker->meet_block(site); }
void wave_barrier(int site) { worker->meet_wave(site); }
unsigned shuffle(unsigned value, unsigned source_lane, int site) { return worker->exchange(value, source_lane, site); }
unsigned count(bool predicate, int site) { return worker->count(predicate, site); }
}  // namespace causeway_simulator

// ---- what the host calls -------------------------------------------------------------------------------------------

// Runs a grid to its end. Returns 0, or 1 with a sentence in `message`.
extern "C" int causeway_simulator_launch(void (*call)(const void*), const void* arguments, const unsigned* grid,
                                         unsigned threads, unsigned shared_bytes, unsigned order, unsigned seed,
                                         unsigned workers, char* message, size_t message_bytes) {
    if (threads == 0 || threads > MAX_THREADS) {
        snprintf(message, message_bytes, "a block has 1 to %u threads, not %u", MAX_THREADS, threads);
        return 1;
    }
    Launch launch;
    launch.call = call;
    launch.arguments = arguments;
    for (int axis = 0; axis < 3; ++axis) launch.grid[axis] = grid[axis];
    launch.threads = threads;
    launch.shared_bytes = shared_bytes;
    launch.order = order;
    launch.seed = seed;
    launch.blocks = static_cast<uint64_t>(grid[0]) * grid[1] * grid[2];
    launch.message = message;
    launch.message_bytes = message_bytes;
    if (workers > launch.blocks) workers = static_cast<unsigned>(launch.blocks);
    std::vector<std::thread> others;
    for (unsigned i = 1; i < workers; ++i) others.emplace_back([&launch] { Worker(launch).run(); });
    Worker(launch).run();
    for (std::thread& other : others) other.join();
    return launch.failed.load() ? 1 : 0;
}
