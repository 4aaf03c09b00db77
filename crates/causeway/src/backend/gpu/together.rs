//! Several launches as one: those that know nothing of each other, as the query, key and value of a layer do.
//!
//! ```text
//! grid axis 0   [ blocks of the first | blocks of the second | blocks of the third ]
//! arguments     { ends, …, first's arguments, second's, third's }
//! ```
//!
//! The kernel has the body of each member with the constants that its planner chose, and a block is told its number within its
//! member. A member has the bits that it has alone under the same plan.

use super::argument::{ARGUMENT_BYTES, WORKSPACE_ALIGNMENT};
use super::choice::{ArgumentType, Attribute, Choice, LaunchBounds, Together};
use super::launch::most_blocks;
use super::plan::{DeviceFacts, Plan, Vendor};

/// The device as one member of a joined launch sees it: multiprocessors in proportion to its bytes, of `total` bytes of all members.
pub(crate) fn fraction(facts: &DeviceFacts, bytes: u64, total: u64) -> DeviceFacts {
    let multiprocessors = u128::from(facts.multiprocessors) * u128::from(bytes) / u128::from(total.max(1));
    DeviceFacts { multiprocessors: (multiprocessors as u32).max(1), ..facts.clone() }
}

/// Joins launches into one. None unless all have the same block size and none uses clusters or TMA.
pub(crate) fn join(plans: &[Plan], facts: &DeviceFacts) -> Option<Plan> {
    let kernels: Vec<_> = plans.iter().map(|plan| plan.choice.kernel()).collect::<Option<_>>()?;
    let &[(_, first), _, ..] = &*kernels else { return None };
    let is_plain = |bounds: &LaunchBounds| {
        (bounds.threads, bounds.cluster, bounds.attribute) == (first.threads, 1, Attribute::Plain)
    };
    let has_struct = |argument: &ArgumentType| matches!(argument, ArgumentType::Struct(_));
    let fits = kernels.iter().all(|(kernel, bounds)| is_plain(bounds) && has_struct(&kernel.argument));
    if !fits || plans.iter().any(|plan| plan.block != plans[0].block || !plan.tensor_maps.is_empty()) {
        return None;
    }

    let most = most_blocks(facts, first.threads);
    let ends = plans.iter().scan(0u32, |end, plan| {
        *end = end.checked_add(plan.grid[0]).filter(|&end| u64::from(end) <= most)?;
        Some(*end)
    });
    let ends: Vec<u32> = ends.collect();
    let [rows, layers] = [1, 2].map(|axis| plans.iter().map(|plan| plan.grid[axis]).collect::<Vec<_>>());
    let padding = plans.len() % 2;
    let header = [&ends[..], &rows, &layers, &[0][..padding]].concat();
    let mut arguments = bytemuck::cast_slice(&header).to_vec();
    let blocks = *ends.get(plans.len() - 1)?;

    // The joined launch is programmatic if every member's is, though together they may move more than one such launch would.
    let waits = plans.iter().all(|plan| plan.programmatic_launch);
    // The most registers that one of them has. On sm_75, f32 loops with and without a norm need a few more registers joined than alone.
    let least = kernels.iter().map(|(_, bounds)| bounds.resident).min()?;
    let is_turing = facts.vendor == Vendor::Nvidia && facts.compute_capability() < 80;
    let resident = if is_turing && least * first.threads == 384 { 2 } else { least };
    let together = Together {
        members: plans.iter().map(|plan| plan.choice.clone().without_waiting()).collect(),
        bounds: LaunchBounds { resident, ..first },
        waits,
        even: [&rows, &layers].iter().all(|sizes| sizes.iter().all(|size| size == &sizes[0])),
    };
    let [grid_rows, grid_layers] = [rows, layers].map(|sizes| sizes.into_iter().max().unwrap_or(1));

    let (mut workspace_bytes, mut counters) = (0u64, 0u32);
    let (mut workspace_at, mut counters_at) = (Vec::new(), Vec::new());
    for plan in plans {
        let base = arguments.len();
        arguments.extend(&plan.arguments);
        let mut place = |at: usize, distance: u64| {
            arguments[base + at..][..8].copy_from_slice(&distance.to_ne_bytes());
            base + at
        };
        workspace_bytes = workspace_bytes.next_multiple_of(WORKSPACE_ALIGNMENT);
        workspace_at.extend(plan.workspace_at.iter().map(|&at| place(at, workspace_bytes)));
        counters_at.extend(plan.counters_at.iter().map(|&at| place(at, u64::from(counters) * 4)));
        workspace_bytes += plan.workspace_bytes;
        counters = counters.checked_add(plan.counters)?;
    }
    (arguments.len() <= ARGUMENT_BYTES).then(|| Plan {
        grid: [blocks, grid_rows, grid_layers],
        block: plans[0].block,
        shared_bytes: plans.iter().map(|plan| plan.shared_bytes).max().unwrap_or(0),
        workspace_bytes,
        counters,
        workspace_at,
        counters_at,
        programmatic_launch: waits,
        ..Plan::new(
            Choice::together(together),
            &arguments,
            plans.iter().map(|plan| plan.read_bytes).sum(),
            plans.iter().map(|plan| plan.written_bytes).sum(),
        )
    })
}
