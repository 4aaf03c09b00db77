//! PyTorch's own threads: the team of the OpenMP library that PyTorch is built with.
//!
//! After an operation of PyTorch's, its threads spin for some milliseconds. Threads of another pool would compete with them for the
//! processors, so calls with tensors of PyTorch's run on the team while it spins. It is reached by GCC's entry point, which the OpenMP
//! libraries of LLVM and Intel have too.
//!
//! While the team sleeps, calls run on a pool of our own: the calling thread of a team spins too, and where a virtual machine had put
//! caller and worker on one processor, small calls took 8 ms, as PyTorch's own operations do there.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use causeway::backend::cpu::Threads;

/// `GOMP_parallel`: calls a function with its argument on so many threads, the calling one among them, and waits for all. The last argument
/// is of flags, of which none is needed.
type Parallel = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

static PARALLEL: OnceLock<Parallel> = OnceLock::new();

/// Whether this process was forked since the extension was loaded. Then it has none of the team's threads, and GCC's library would wait for
/// them for ever.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Called when the extension is loaded.
#[cfg(target_os = "linux")]
pub fn watch_forks() {
    unsafe extern "C" fn in_child() {
        IS_FORKED.store(true, Ordering::Relaxed);
    }
    // SAFETY: what runs in the child stores to an atomic, and nothing else. Where there is no memory to note it, no team is used.
    if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
        IS_FORKED.store(true, Ordering::Relaxed);
    }
}

/// Nobody asks, as below.
#[cfg(not(target_os = "linux"))]
pub fn watch_forks() {}

/// Finds the team of the PyTorch that this process has loaded, if its operations run on one.
#[cfg(target_os = "linux")]
pub fn find() {
    use libloading::os::unix::Library;

    let Some(library) = crate::libtorch::loaded("libtorch_cpu.so") else { return };
    // As PyTorch's libraries found it: first among what the whole process sees, then among what they need.
    for library in [Library::this(), library] {
        // SAFETY: the name is that of a C function with these arguments.
        if let Ok(parallel) = unsafe { library.get::<Parallel>(b"GOMP_parallel") } {
            // Another thread may have found it too.
            let _ = PARALLEL.set(*parallel);
        }
        // The libraries stay, and so does the handle.
        std::mem::forget(library);
    }
}

/// None: library names on other systems are untested.
#[cfg(not(target_os = "linux"))]
pub fn find() {}

/// Most threads of a team: above, calls run on a pool of their own.
const MOST: usize = 1024;

/// So many threads, for calls to run on; None where only a pool of their own will do.
pub fn team(threads: usize) -> Option<&'static dyn Threads> {
    static TEAMS: [Team; MOST + 1] = {
        let mut teams = [const { Team(0) }; MOST + 1];
        let mut threads = 0;
        while threads <= MOST {
            teams[threads] = Team(threads);
            threads += 1;
        }
        teams
    };
    let team = TEAMS.get(threads)?;
    let is_usable = threads == 1 || (threads > 1 && team.is_there_and_awake());
    is_usable.then_some(team as _)
}

/// What a thread that makes calls knows of its team: every such thread has one of its own.
#[derive(Clone, Copy)]
struct Known {
    /// One of the team's other threads, if there was one.
    member: Option<Id>,
    /// The most threads that it has had.
    threads: usize,
}

thread_local! {
    static KNOWN: Cell<Known> = const { Cell::new(Known { member: None, threads: 1 }) };
}

/// A thread by its number in the system.
type Id = i32;

/// Whether a thread of this process is running: whether its CPU clock advances. Also true once it has ended.
#[cfg(target_os = "linux")]
fn is_awake(thread: Id) -> bool {
    // The number that Linux gives to the clock of a thread.
    let clock = (!thread << 3) | 6;
    let read = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is to be written. A thread that has ended has no clock, and that is an error.
        (unsafe { libc::clock_gettime(clock, &raw mut time) } == 0).then_some((time.tv_sec, time.tv_nsec))
    };
    let before = read();
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(1) {
        std::hint::spin_loop();
    }
    before.is_none() || read() != before
}

/// The calling thread.
#[cfg(target_os = "linux")]
fn this_thread() -> Id {
    // SAFETY: asks for a number.
    unsafe { libc::gettid() }
}

/// Where `find` finds none, nobody asks.
#[cfg(not(target_os = "linux"))]
fn is_awake(_: Id) -> bool {
    false
}

/// As above.
#[cfg(not(target_os = "linux"))]
fn this_thread() -> Id {
    0
}

/// A team of this many threads.
struct Team(usize);

/// What its threads are given.
struct Work<'a> {
    work: &'a (dyn Fn() + Sync),
    /// The calling thread.
    caller: Id,
    /// Another one, or 0.
    member: AtomicI32,
}

impl Team {
    /// An unknown team, or one with fewer threads, is used, to learn it.
    fn is_there_and_awake(&self) -> bool {
        if PARALLEL.get().is_none() || IS_FORKED.load(Ordering::Relaxed) {
            return false;
        }
        let known = KNOWN.get();
        if known.threads < self.0 {
            // Threads that it starts take over the caller's floating-point mode, which has to be that of the program, not of a call.
            self.run(&|| ());
            return true;
        }
        known.member.is_some_and(is_awake)
    }
}

impl Threads for Team {
    fn count(&self) -> usize {
        self.0
    }

    fn run(&self, work: &(dyn Fn() + Sync)) {
        unsafe extern "C" fn call(work: *mut c_void) {
            // SAFETY: the argument is the one below, which lives until all threads are done, and of which only an atomic is written.
            let Work { work, caller, member } = unsafe { &*work.cast::<Work>() };
            let this = this_thread();
            if this != *caller {
                member.store(this, Ordering::Relaxed);
            }
            work();
        }
        // Alone, the caller does what is left.
        if self.0 > 1
            && let Some(parallel) = PARALLEL.get()
        {
            let mut work = Work { work, caller: this_thread(), member: AtomicI32::new(0) };
            // SAFETY: it returns when all threads have. `work` may be called on several threads at once, and never panics.
            unsafe { parallel(call, (&raw mut work).cast(), self.0 as c_uint, 0) };
            let member = Some(work.member.into_inner()).filter(|&member| member != 0);
            KNOWN.set(Known { member, threads: self.0.max(KNOWN.get().threads) });
        }
    }
}
