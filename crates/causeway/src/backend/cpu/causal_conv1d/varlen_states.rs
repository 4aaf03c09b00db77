//! States of a packed batch: the last positions of every sequence.

use super::sequences::Sequences;
use super::tensors::{Source, Target};
use super::with_number;
use crate::backend::cpu::simd::Number;
use crate::backend::cpu::threads::for_each;
use crate::causal_conv1d::{Sizes, VarlenStates, VarlenStatesSizes};

/// Runs a call that has been validated.
pub(crate) fn varlen_states(call: &mut VarlenStates<'_>, sizes: &VarlenStatesSizes) {
    with_number!(call.x.dtype(), typed(call, sizes))
}

fn typed<T: Number>(call: &mut VarlenStates<'_>, sizes: &VarlenStatesSizes) {
    if call.states.meta().is_empty() {
        return;
    }
    let &VarlenStatesSizes { total, dim, sequences, state_len } = sizes;
    let packed = Sizes { batch: 1, dim, seqlen: total, width: state_len + 1, sequences, packed: true };
    let boundaries = Sequences::new(&packed, None, Some(&call.cu_seqlens));
    let x = Source::<T, 2>::new(&call.x);
    let states = Target::<T, 3>::new(&mut call.states);
    for_each(sequences as usize, call.uses_threads(), &|sequence| {
        let sequence = sequence as i64;
        let (_, start, end) = boundaries.bounds(sequence);
        for column in 0..state_len {
            let position = end - state_len + column;
            for channel in 0..dim {
                // SAFETY: positions from `start` to `end` lie in x; each sequence has a row of states.
                unsafe {
                    *states.at([sequence, channel, column]) =
                        if position >= start { *x.at([position, channel]) } else { T::ZERO };
                }
            }
        }
    });
}
