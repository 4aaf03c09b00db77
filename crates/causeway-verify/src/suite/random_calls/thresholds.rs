//! Sizes at which a planner changes its mind, found by asking it.

use causeway::backend::gpu::plan::DeviceFacts;

use super::super::plans::kernels;
use super::super::random::Random;
use super::row::{Row, integers};

/// Of two neighbouring sizes of the row between which the launches change, one: the row with one of its sizes multiplied, as
/// far as `elements` allows, and then brought back by bisection. None where no change is met.
pub(super) fn beside_threshold(
    random: &mut Random,
    row: &Row,
    facts: &DeviceFacts,
    elements: i64,
) -> Option<Row> {
    let shape = row.integers("shape");
    if row.table.contains_key("cu_seqlens") || shape.is_empty() || shape.contains(&0) {
        return None;
    }
    let axis = random.below(shape.len());
    let others: i64 = shape.iter().product::<i64>() / shape[axis];
    let with = |size: i64| {
        let mut resized = row.clone();
        let mut shape = shape.clone();
        shape[axis] = size;
        resized.table.insert("shape".into(), integers(&shape));
        resized
    };
    let launched = |size: i64| {
        let case = with(size).case().ok()?;
        kernels(&case, facts).ok()
    };
    let (mut low, mut high) = (shape[axis], (shape[axis] * random.between(2, 64)).min(elements / others));
    let below = launched(low)?;
    if high <= low || launched(high)? == below {
        return None;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if launched(middle)? == below { low = middle } else { high = middle }
    }
    Some(with(if random.once_in(2) { low } else { high }))
}
