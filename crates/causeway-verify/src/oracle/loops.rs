//! How the oracle's loops are compiled and spread over cores. What they compute does not depend on it.

use rayon::prelude::*;

/// Loops over whole rows, `#[inline(always)]` all the way down.
pub(super) trait Loops {
    type Output;
    fn run(self) -> Self::Output;
}

/// Runs loops in the widest vectors that the processor is sure to gain from. Rust neither fuses nor reorders
/// floating-point operations, so that results are the same with all of them.
pub(super) fn vectorised<L: Loops>(loops: L) -> L::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2<L: Loops>(loops: L) -> L::Output {
            loops.run()
        }

        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { with_avx2(loops) };
        }
    }
    loops.run()
}

/// Elements from which on waking other threads takes less time than they save.
const ENOUGH: usize = 1 << 15;

/// Results for all items, in their order, on all cores if they have `elements` enough between them. `scratch` is made
/// anew for each core.
pub(super) fn map_all<T: Send, S: Default, R: Send>(
    elements: usize,
    items: Vec<T>,
    work: impl Fn(&mut S, T) -> R + Sync,
) -> Vec<R> {
    if elements < ENOUGH {
        let mut scratch = S::default();
        return items.into_iter().map(|item| work(&mut scratch, item)).collect();
    }
    items.into_par_iter().map_init(S::default, |scratch, item| work(scratch, item)).collect()
}
