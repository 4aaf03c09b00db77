//! Rows that are cut in two. The second half, computed without its halo and then corrected for it, is what the whole row has there, and the
//! gradient of a halo that is an initial state is the one that the second half's backward pass gives.
//!
//! Cuts are drawn by a seed. Faults in the kernels have to be noticed, those of a list by every run, and edits that a seed draws by
//! `cargo test --profile checked -p causeway-sim --test halo -- --ignored --nocapture`.

mod cut;
mod faults;

#[path = "../../examples/mutate/cpp_edits.rs"]
mod cpp_edits;
#[path = "../../examples/mutate/random.rs"]
mod random;
#[path = "../../examples/mutate/tokens.rs"]
mod tokens;

use std::sync::Arc;

use causeway_sim::Simulator;
use rayon::prelude::*;

use cut::Cut;
use random::Random;

fn setting(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok().filter(|value| !value.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is {value:?}: expected a number")))
}

/// Cuts that a seed draws.
fn cuts(seed: u64, count: usize) -> Vec<Cut> {
    let mut random = Random::new(seed);
    (0..count).map(|_| Cut::drawn(&mut random)).collect()
}

#[test]
fn the_second_half_of_a_row_is_that_of_the_whole_one() {
    let seed = setting("CAUSEWAY_TEST_SEED").unwrap_or(1);
    for (device, count) in [("sim:32", 24), ("sim:64", 8)] {
        let simulator = Arc::new(Simulator::open(device).unwrap());
        let cuts = cuts(seed, setting("CAUSEWAY_TEST_CUTS").map_or(count, |count| count as usize));
        let differs = |(number, cut): (usize, &Cut)| {
            let what = cut.compare(&simulator).err()?;
            Some(format!("{device}, cut {number} of seed {seed}: {what}: {cut:?}"))
        };
        let different: Vec<_> = cuts.par_iter().enumerate().filter_map(differs).collect();
        assert!(different.is_empty(), "{}", different.join("\n"));
    }
}
