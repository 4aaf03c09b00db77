//! The same bits for any number of threads, and every time.

use proptest::prelude::*;

use crate::config;
use crate::conv1d::{Conv1d, Results, conv1d, run};

fn bytes(results: &Results) -> Vec<&[u8]> {
    results.outputs.named().chain(results.gradients.named()).map(|(_, tensor)| tensor.bytes()).collect()
}

/// One call in pools of 1, 2 and 3 threads, and again in each.
fn check_bits(problem: &Conv1d) -> Result<(), TestCaseError> {
    use std::sync::LazyLock;
    static POOLS: LazyLock<Vec<rayon::ThreadPool>> = LazyLock::new(|| {
        (1..=3).map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap()).collect()
    });
    let tensors = problem.tensors();
    let reference = POOLS[0].install(|| run(problem, &tensors));
    for (threads, pool) in POOLS.iter().enumerate() {
        for _ in 0..2 {
            let again = pool.install(|| run(problem, &tensors));
            prop_assert!(bytes(&again) == bytes(&reference), "{} threads: {problem:?}", threads + 1);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn bits_do_not_depend_on_threads_or_repetition(problem in conv1d()) {
        check_bits(&problem)?;
    }
}

proptest! {
    #![proptest_config(config(12))]

    /// Sizes for which the work is split: along dim, along batch, and along one long row.
    #[test]
    fn bits_do_not_depend_on_threads_for_large_shapes(
        problem in conv1d(),
        shape in prop::sample::select(vec![
            [2, 300, 501], [1, 3, 60_003], [129, 2, 600], [1, 700, 333], [3, 33, 4_001],
        ]),
        channel_last in any::<bool>(),
        width in 1..=6i64,
    ) {
        let batch = if problem.cu_seqlens.is_some() { 1 } else { shape[0] };
        let mut problem = Conv1d { shape: [batch, shape[1], shape[2]], width, ..problem };
        let order = if channel_last { [0, 2, 1] } else { [0, 1, 2] };
        for placement in &mut problem.placements {
            *placement = placement.clone().dense(&order);
        }
        check_bits(&problem)?;
    }
}
