//! The threads that tasks run on: those of the current rayon pool, or others that a caller lends.

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::Ieee754;

/// Threads of another library, which calls on a CPU can run on in place of rayon's: see [`on_threads`].
pub trait Threads: Sync {
    /// How many there are, the calling one among them.
    fn count(&self) -> usize;

    /// Calls `work` on as many of them as are free, and returns when all of these have. `work` never panics.
    fn run(&self, work: &(dyn Fn() + Sync));
}

thread_local! {
    static LENT: Cell<Option<&'static dyn Threads>> = const { Cell::new(None) };
}

/// Makes calls on a CPU run on these threads, where the calling thread makes them before `call` returns: what
/// `rayon::ThreadPool::install` does for a pool. Results have the same bits on all threads.
///
/// For a process whose other work has threads already: two libraries' threads that spin take processors from each other.
pub fn on_threads<R>(threads: &'static dyn Threads, call: impl FnOnce() -> R) -> R {
    /// Puts back what was there, whichever way the call ends.
    struct Back(Option<&'static dyn Threads>);
    impl Drop for Back {
        fn drop(&mut self) {
            LENT.set(self.0);
        }
    }
    let _back = Back(LENT.replace(Some(threads)));
    call()
}

/// How many threads tasks run on.
pub(super) fn count() -> usize {
    LENT.get().map_or_else(rayon::current_num_threads, |threads| threads.count().max(1))
}

/// Calls `task` with 0 to `count - 1`, on more threads than one if `parallel`. Not generic: a dynamic call is little beside a task.
pub(super) fn for_each(count: usize, parallel: bool, task: &(dyn Fn(usize) + Sync)) {
    if !parallel || count <= 1 {
        return (0..count).for_each(task);
    }
    let task = |index| {
        let _mode = Ieee754::enter();
        task(index);
    };
    match LENT.get() {
        Some(threads) => on_lent(threads, count, &task),
        None => (0..count).into_par_iter().with_max_len(1).for_each(task),
    }
}

/// Each thread takes its range of the tasks first, in order, so that it writes memory that lies together; then it helps the others.
fn on_lent(threads: &dyn Threads, count: usize, task: &(dyn Fn(usize) + Sync)) {
    let parts = threads.count().clamp(1, count);
    let ranges: Vec<TaskRange> = (0..parts).map(|part| TaskRange::of(count, part, parts)).collect();
    let arrived = AtomicUsize::new(0);
    let panicked: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
    let work = || {
        let first = arrived.fetch_add(1, Ordering::Relaxed);
        let tasks = (0..parts).flat_map(|ahead| ranges[(first + ahead) % parts].tasks());
        if let Err(cause) = panic::catch_unwind(AssertUnwindSafe(|| tasks.for_each(task))) {
            // The threads are not ours to unwind. The first panic is told, as by rayon.
            panicked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(cause);
        }
    };
    threads.run(&work);
    // What is left if there was no thread.
    work();
    if let Some(cause) = panicked.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        panic::resume_unwind(cause);
    }
}

/// Neighbouring tasks, given out one at a time; on cache lines of its own.
#[repr(align(128))]
struct TaskRange {
    next: AtomicUsize,
    end: usize,
}

impl TaskRange {
    fn of(count: usize, part: usize, parts: usize) -> Self {
        let Range { start, end } = part * count / parts..(part + 1) * count / parts;
        TaskRange { next: AtomicUsize::new(start), end }
    }

    /// Those that nobody has taken yet.
    fn tasks(&self) -> impl Iterator<Item = usize> {
        // The end of the region publishes what tasks write: relaxed order is enough here.
        std::iter::from_fn(|| Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|&task| task < self.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many threads, started for each call; more or fewer than they say.
    struct Started {
        said: usize,
        there: usize,
    }

    impl Threads for Started {
        fn count(&self) -> usize {
            self.said
        }

        fn run(&self, work: &(dyn Fn() + Sync)) {
            std::thread::scope(|scope| (0..self.there).for_each(|_| drop(scope.spawn(work))));
        }
    }

    /// Several numbers of threads, said and there.
    static THREADS: [Started; 4] = [
        Started { said: 3, there: 3 },
        Started { said: 3, there: 0 },
        Started { said: 0, there: 1 },
        Started { said: 2, there: 7 },
    ];

    #[test]
    fn every_task_is_done_once() {
        for threads in &THREADS {
            for tasks in [0, 1, 2, 3, 100] {
                let done: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                on_threads(threads, || {
                    for_each(tasks, true, &|task| {
                        done[task].fetch_add(1, Ordering::Relaxed);
                    });
                });
                assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{tasks} tasks");
            }
        }
    }

    #[test]
    fn threads_are_lent_for_one_call() {
        let before = count();
        on_threads(&THREADS[0], || {
            assert_eq!(count(), 3);
            on_threads(&THREADS[3], || assert_eq!(count(), 2));
            assert_eq!(count(), 3);
            let ended = panic::catch_unwind(|| on_threads(&THREADS[3], || panic!("on purpose")));
            assert!(ended.is_err() && count() == 3);
        });
        assert_eq!(count(), before);
    }

    #[test]
    fn a_panic_comes_back_to_the_caller() {
        let panicking =
            || on_threads(&THREADS[0], || for_each(10, true, &|task| assert_ne!(task, 7, "seven")));
        let cause = panic::catch_unwind(panicking).unwrap_err();
        let said = cause.downcast_ref::<String>().unwrap();
        assert!(said.contains("seven"), "{said}");
    }
}
