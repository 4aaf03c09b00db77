//! PyTorch's own threads: the team of the OpenMP library that PyTorch is built with.
//!
//! After an operation of PyTorch's, its threads wait actively for some milliseconds. Threads of another pool would share the processors
//! with them, so calls with tensors of PyTorch's run on these while they are awake. They are reached by GCC's entry point, which the
//! OpenMP libraries of LLVM and Intel have too.
//!
//! While they sleep, calls run on a pool of our own: a team's calling thread waits actively as well, and where a virtual machine woke both
//! on one processor, small calls took 8 ms, as PyTorch's own operations do there. Calls that follow closely on each other wake them.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use causeway::backend::cpu::Threads;

/// `GOMP_parallel`: calls a function with its argument on so many threads, the calling one among them, and waits for all. The last argument
/// is of flags, of which none is needed.
type Parallel = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

static PARALLEL: OnceLock<Parallel> = OnceLock::new();

/// The process that the extension was loaded in: one that was forked since has none of the team's threads, and GCC's library would wait
/// for them for ever.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Called when the extension is loaded.
pub fn note_process() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
}

/// Finds the team of the PyTorch that this process has loaded, if its operations run on one.
#[cfg(target_os = "linux")]
pub fn find() {
    use libloading::os::unix::{Library, RTLD_LAZY};

    /// Finds a library that is loaded, and loads none.
    const RTLD_NOLOAD: i32 = 4;
    // SAFETY: no code is loaded, and so none is run.
    let Ok(library) = (unsafe { Library::open(Some("libtorch_cpu.so"), RTLD_LAZY | RTLD_NOLOAD) }) else {
        return;
    };
    // SAFETY: the name is that of a C function with these arguments. It is looked for in the library and those that it needs.
    if let Ok(parallel) = unsafe { library.get::<Parallel>(b"GOMP_parallel") } {
        // Another thread may have found it too.
        let _ = PARALLEL.set(*parallel);
    }
    // PyTorch's libraries stay, and so does this one's handle.
    std::mem::forget(library);
}

/// None: what other systems' libraries are called has not been tried.
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
    let is_usable = threads == 1 || (threads > 1 && Known::LAST.get().is_usable());
    TEAMS.get(threads).filter(|_| is_usable).map(|team| team as _)
}

/// Notes the end of a call that ran on no team.
pub fn note_end() {
    Known::LAST.set(Known { end: Some(Instant::now()), ..Known::LAST.get() });
}

/// A thread by its number in the system.
type Id = i32;

/// What a thread that makes calls knows of its team: every such thread has one of its own.
#[derive(Clone, Copy)]
struct Known {
    /// One of the team's other threads, if it is known.
    member: Option<Id>,
    /// When a call of this thread ended last.
    end: Option<Instant>,
}

impl Known {
    thread_local! {
        static LAST: Cell<Known> = const { Cell::new(Known { member: None, end: None }) };
    }

    /// Whether the team is there, and awake or about to be. One that is not known is used, to know it.
    fn is_usable(&self) -> bool {
        /// Calls that follow each other as closely may have woken the team for the next one.
        const CLOSELY: Duration = Duration::from_micros(200);

        if PARALLEL.get().is_none() || PROCESS.load(Ordering::Relaxed) != std::process::id() {
            return false;
        }
        self.end.is_some_and(|end| end.elapsed() < CLOSELY) || self.member.is_none_or(is_awake)
    }
}

/// Whether a thread of this process is running, which is whether its time passes; true of one that has ended, too.
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
            Known::LAST.set(Known { member, end: Some(Instant::now()) });
        }
    }
}
