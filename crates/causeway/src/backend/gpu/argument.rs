//! What a launch is given: its argument block, with the addresses that are known only then, and its workspace.

use std::mem::MaybeUninit;

use super::plan::Plan;
use crate::error::{Error, Result};

/// Most bytes of a kernel's argument: what every CUDA release takes.
pub(super) const ARGUMENT_BYTES: usize = 4096;

/// What workspaces are aligned to, as drivers align allocations.
pub(super) const WORKSPACE_ALIGNMENT: u64 = 256;

/// Memory for a launch's partial results, from the caller's own allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workspace {
    /// Device address, a multiple of 256.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Workspace {
    /// What a plan asks of its workspace.
    pub(super) fn check(&self, plan: &Plan) -> Result<()> {
        if self.bytes >= plan.workspace_bytes && self.address.is_multiple_of(WORKSPACE_ALIGNMENT) {
            return Ok(());
        }
        Err(Error::WorkspaceTooSmall { found: self.bytes, needed: plan.workspace_bytes })
    }
}

/// A copy of a plan's argument block, on the stack, to write addresses into.
#[repr(align(16))]
pub(super) struct Argument([MaybeUninit<u8>; ARGUMENT_BYTES]);

impl Argument {
    pub fn copy(plan: &Plan) -> Result<Self> {
        let arguments = &plan.arguments;
        let mut argument = Argument([const { MaybeUninit::uninit() }; ARGUMENT_BYTES]);
        let Some(place) = argument.0.get_mut(..arguments.len()) else {
            let because = format!("its argument has {} bytes; at most {ARGUMENT_BYTES} fit", arguments.len());
            return Err(invalid(plan, because));
        };
        for (to, from) in place.iter_mut().zip(arguments) {
            to.write(*from);
        }
        Ok(argument)
    }

    /// Writes an address where the plan has places for it.
    pub fn patch(&mut self, plan: &Plan, places: &[usize], address: u64) -> Result<()> {
        places.iter().try_for_each(|&at| {
            let distance = plan.arguments.get(at..).and_then(|rest| rest.first_chunk());
            let distance = distance.map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            self.write(plan, at, &(address + distance).to_ne_bytes())
        })
    }

    pub fn write(&mut self, plan: &Plan, at: usize, bytes: &[u8]) -> Result<()> {
        let end = at.checked_add(bytes.len()).filter(|end| *end <= plan.arguments.len());
        let Some(end) = end else {
            let because = format!("{} bytes at byte {at} lie outside its argument", bytes.len());
            return Err(invalid(plan, because));
        };
        for (to, from) in self.0[at..end].iter_mut().zip(bytes) {
            to.write(*from);
        }
        Ok(())
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }
}

#[cold]
pub(super) fn invalid(plan: &Plan, because: String) -> Error {
    Error::InvalidPlan { entry: plan.entry().to_string(), header: plan.header().to_string(), because }
}
