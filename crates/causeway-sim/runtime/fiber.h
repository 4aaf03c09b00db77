// Fibers: threads of a block that an OS thread resumes one after the other.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CAUSEWAY_ADDRESS_SANITIZER 1
#include <sanitizer/common_interface_defs.h>
#endif
#endif

namespace causeway_simulator {

#if defined(CAUSEWAY_ADDRESS_SANITIZER)
// Red zones around every local variable.
constexpr size_t STACK_BYTES = 1 << 20;
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
inline void switch_context(Context& save, Context& resume) { causeway_simulator_switch(&save, resume); }
inline void prepare_context(Context& context, unsigned char* stack, size_t bytes, void (*entry)()) {
    // The return address of the first switch; the stack is 8 bytes off 16 at a function's entry.
    void** top = reinterpret_cast<void**>(stack + bytes) - 2;
    *top = reinterpret_cast<void*>(entry);
    context = top - 6;
}
#else
using Context = ucontext_t;
inline void switch_context(Context& save, Context& resume) { swapcontext(&save, &resume); }
inline void prepare_context(Context& context, unsigned char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
#endif

// The stacks of a block's threads, each with a page below it that must not be touched: an overflow faults instead of
// changing a neighbour.
class Stacks {
public:
    explicit Stacks(unsigned count) : count(count), page(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
        void* place = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (place == MAP_FAILED) return;
        memory = static_cast<unsigned char*>(place);
        for (unsigned i = 0; i < count; ++i) mprotect((*this)[i] - page, page, PROT_NONE);
    }
    ~Stacks() {
        if (memory) munmap(memory, bytes());
    }
    Stacks(const Stacks&) = delete;
    Stacks& operator=(const Stacks&) = delete;

    bool ready() const { return memory != nullptr; }
    unsigned size() const { return count; }
    unsigned char* operator[](unsigned i) const { return memory + i * (STACK_BYTES + page) + page; }

private:
    size_t bytes() const { return count * (STACK_BYTES + page); }

    unsigned count;
    size_t page;
    unsigned char* memory = nullptr;
};

// Stacks of blocks that have ended, for those that come. To map and protect them takes longer than a small launch. The units of
// a process share one, which the host keeps.
class StackPool {
public:
    // The pool whose address is kept at `place`. It lives as long as the process.
    static StackPool& at(std::atomic<StackPool*>& place) {
        if (StackPool* found = place.load()) return *found;
        auto made = std::make_unique<StackPool>();
        StackPool* found = nullptr;
        return place.compare_exchange_strong(found, made.get()) ? *made.release() : *found;
    }

    std::unique_ptr<Stacks> take(unsigned count) {
        std::lock_guard<std::mutex> hold(lock);
        for (auto& stacks : free) {
            if (stacks->size() != count) continue;
            std::swap(stacks, free.back());
            auto found = std::move(free.back());
            free.pop_back();
            kept -= count;
            return found;
        }
        return std::make_unique<Stacks>(count);
    }

    void give_back(std::unique_ptr<Stacks> stacks) {
#if !defined(CAUSEWAY_ADDRESS_SANITIZER)  // What it says of frames on a stack lasts until the stack is unmapped.
        std::lock_guard<std::mutex> hold(lock);
        if (!stacks->ready() || kept + stacks->size() > MOST) return;
        kept += stacks->size();
        free.push_back(std::move(stacks));
#endif
    }

private:
    // A thread touches 8 to 16 KiB of its stack.
    static constexpr unsigned MOST = 8192;

    std::mutex lock;
    std::vector<std::unique_ptr<Stacks>> free;
    unsigned kept = 0;  // stacks of all of them
};

}  // namespace causeway_simulator
