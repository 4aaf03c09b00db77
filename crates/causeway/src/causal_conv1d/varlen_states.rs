//! Arguments of the states of a packed batch.

use super::validate::Check;
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::backend::{cpu, gpu};
use crate::checks;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{TensorMut, TensorRef};

/// The last `state_len` positions of every sequence of a packed batch, zero-filled at the front.
///
/// ```text
/// states[i, c, state_len - k] = x[cu_seqlens[i+1] - k, c]   for 1 ≤ k ≤ min(state_len, length of i), else 0
/// ```
#[derive(Debug)]
pub struct VarlenStates<'a> {
    /// `(total, dim)`.
    pub x: TensorRef<'a>,
    /// `(n + 1,)` i32 or i64.
    pub cu_seqlens: TensorRef<'a>,
    /// `(n, dim, state_len)`, of x's dtype: the result.
    pub states: TensorMut<'a>,
}

/// The sizes that the arguments agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VarlenStatesSizes {
    /// Positions of all sequences together.
    pub total: i64,
    /// Channels.
    pub dim: i64,
    /// Sequences.
    pub sequences: i64,
    /// Positions kept per sequence.
    pub state_len: i64,
}

impl VarlenStates<'_> {
    /// Checks every argument against every other one. On the host, the values of `cu_seqlens` are checked too.
    ///
    /// # Errors
    /// One [`Error`] variant per cause.
    pub fn validate(&self) -> Result<VarlenStatesSizes> {
        let &[total, dim] = self.x.shape() else {
            return Err(Error::Rank { argument: "x", expected: "(total, dim)", found: self.x.meta().shape });
        };
        let check = Check::of_values(&self.x)?;
        let sequences = check.cu_seqlens(total, &self.cu_seqlens)?;
        let states = self.states.meta();
        let &[n, states_dim, state_len] = self.states.shape() else {
            return Err(Error::Rank {
                argument: "states",
                expected: "(n, dim, state_len)",
                found: states.shape,
            });
        };
        checks::size("states", "n", n, sequences, "the number of sequences in cu_seqlens")?;
        checks::size("states", "dim", states_dim, dim, "the dim of x")?;
        check.dtype_of_x("states", states)?;
        check.location("states", states)?;
        checks::output("states", states)?;
        Ok(VarlenStatesSizes { total, dim, sequences, state_len })
    }

    /// Computes on `device`, which has to be where the tensors are.
    ///
    /// # Errors
    /// As for [`VarlenStates::validate`], and [`Error::WrongLocation`](crate::Error::WrongLocation) for tensors in
    /// another memory than the device's. Nothing is written then.
    pub fn run(&mut self, device: &Device) -> Result<()> {
        let sizes = self.validate()?;
        device.expect("x", self.x.location())?;
        if let Device::Cpu(_) = device {
            cpu::causal_conv1d::varlen_states(self, &sizes);
            return Ok(());
        }
        // SAFETY: the planner gets the validated views, which are where the device is.
        unsafe { device.launch(self, |facts| gpu::causal_conv1d::varlen_states::plan(self, &sizes, facts)) }
    }

    /// The launch that the call is on a GPU with these facts; `None` if all outputs are empty.
    ///
    /// # Errors
    /// As for validation; [`Error::Unsupported`](crate::Error::Unsupported) for f64.
    pub fn plan(&self, facts: &DeviceFacts) -> Result<Option<Plan>> {
        gpu::causal_conv1d::varlen_states::plan(self, &self.validate()?, facts)
    }
}
