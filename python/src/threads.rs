//! Threads for calls on the processor.
//!
//! A process that was forked has none of its parent's threads, and a pool of the parent's would wait for them for
//! ever. So pools belong to a process, and the list of them can be read and extended without a lock, which a fork
//! could leave locked. Pools live until the process ends; there is one per number of threads that was asked for.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;
use rayon::{ThreadPool, ThreadPoolBuilder};

struct Node {
    process: u32,
    threads: usize,
    pool: ThreadPool,
    next: *const Node,
}

static POOLS: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());

/// This process's pool of so many threads; 0 for as many as there are processors (or `RAYON_NUM_THREADS`).
pub fn pool(threads: usize) -> PyResult<&'static ThreadPool> {
    let process = std::process::id();
    let mut node: *const Node = POOLS.load(Ordering::Acquire);
    while !node.is_null() {
        // SAFETY: nodes are complete when they are put into the list, and are never freed or changed after that.
        let this = unsafe { &*node };
        if this.process == process && this.threads == threads {
            return Ok(&this.pool);
        }
        node = this.next;
    }
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("causeway-{index}"))
        .build()
        .map_err(|error| PyRuntimeError::new_err(format!("threads cannot be started: {error}")))?;
    let mut head = POOLS.load(Ordering::Acquire);
    let new = Box::leak(Box::new(Node { process, threads, pool, next: head }));
    // Where two threads meet here, both pools stay, and the newer one is found first.
    while let Err(found) = POOLS.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
        head = found;
        new.next = head;
    }
    Ok(&new.pool)
}
