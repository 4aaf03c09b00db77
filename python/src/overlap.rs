//! Whether two strided views share memory: exactly, so that neighbours in one allocation are told from overlaps.

use causeway::tensor::MAX_RANK;

/// A strided view in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Address of the first element.
    pub address: i128,
    /// Bytes of an element.
    pub size: i128,
    /// Stride in bytes and number of elements of each axis; none of them empty.
    pub axes: [(i128, i128); MAX_RANK],
}

/// Steps after which the search gives up and answers yes. Views of one tensor take a few dozen.
const PATIENCE: u32 = 10_000;

/// A term of a sum: `stride · factor` with a factor in `lowest ..= highest`.
#[derive(Debug, Clone, Copy)]
struct Term {
    stride: i128,
    lowest: i128,
    highest: i128,
}

/// True if the views have a byte in common.
///
/// Byte `i` of element `a` of one view is byte `j` of element `b` of the other if
/// `Σ stride_k·a_k − Σ stride'_k·b_k + i − j` is the distance of their first elements. Terms of equal stride are one
/// term. From the largest stride down, few factors leave a rest that the smaller strides can still make up for.
pub fn meet(one: &Layout, other: &Layout) -> bool {
    let mut terms: Vec<Term> = Vec::with_capacity(2 * MAX_RANK + 1);
    let mut add = |stride: i128, lowest: i128, highest: i128| {
        let (stride, lowest, highest) =
            if stride < 0 { (-stride, -highest, -lowest) } else { (stride, lowest, highest) };
        match terms.iter_mut().find(|term| term.stride == stride) {
            Some(term) => {
                term.lowest += lowest;
                term.highest += highest;
            }
            None => terms.push(Term { stride, lowest, highest }),
        }
    };
    for (stride, count) in one.axes.into_iter().filter(|(stride, _)| *stride != 0) {
        add(stride, 0, count - 1);
    }
    for (stride, count) in other.axes.into_iter().filter(|(stride, _)| *stride != 0) {
        add(stride, 1 - count, 0);
    }
    add(1, 1 - other.size, one.size - 1);
    terms.sort_by_key(|term| std::cmp::Reverse(term.stride));
    let mut patience = PATIENCE;
    reachable(&terms, other.address - one.address, &mut patience)
}

fn reachable(terms: &[Term], distance: i128, patience: &mut u32) -> bool {
    let Some((term, smaller)) = terms.split_first() else { return distance == 0 };
    let lowest: i128 = smaller.iter().map(|term| term.stride * term.lowest).sum();
    let highest: i128 = smaller.iter().map(|term| term.stride * term.highest).sum();
    // distance − stride·factor has to lie in lowest ..= highest.
    let from = (distance - highest).div_euclid(term.stride);
    let from = if from * term.stride < distance - highest { from + 1 } else { from };
    let to = (distance - lowest).div_euclid(term.stride);
    for factor in from.max(term.lowest)..=to.min(term.highest) {
        if *patience == 0 {
            return true;
        }
        *patience -= 1;
        if reachable(smaller, distance - term.stride * factor, patience) {
            return true;
        }
    }
    false
}
