//! Plans that have been made before, found again by what they were made from.
//!
//! A plan depends on the dtypes, shapes and strides of a call's tensors and on the lowest bits of their addresses; the
//! rest of the addresses only stands in its argument block. So a call that is made again, on other memory, needs no
//! planner: its metadata is hashed, the argument block of the first call is copied, and the addresses in it are moved by
//! as much as the tensors have moved. Nothing is allocated, and the loaded kernel comes along.
//!
//! Where an argument block holds addresses is found by planning twice, with every tensor moved by a distance of its own:
//! a word that moves by the third tensor's distance is an address in the third tensor. A plan that does anything else
//! with addresses is not remembered.

use std::sync::{Arc, PoisonError, RwLock};

use rustc_hash::FxHashMap;

use super::argument::Workspace;
use super::plan::{DeviceFacts, Plan};
use super::runtime::{GpuDevice, Kernel};
use super::stream::StreamHandle;
use crate::error::Result;
use crate::tensor::Meta;

/// Most tensors of a call: those of backward.
const MOST_TENSORS: usize = 12;

/// Words of the longest key: a header, and of each tensor a header, three sizes and three strides.
const KEY_WORDS: usize = 1 + MOST_TENSORS * 7;

/// Longest argument block that is remembered, in bytes.
const MOST_ARGUMENT_BYTES: usize = 1024;

/// Bits of an address that a plan may depend on: more than any access is wide.
const ALIGNMENT_BITS: u64 = 0xff;

/// Plans that are kept. Programs whose shapes never come back would grow the table without an end.
const MOST_PLANS: usize = 4096;

/// How far tensors are moved to see where their addresses stand: tensor i by (i + 1) times this.
const DISTANCE: u64 = 1 << 44;

/// A call that planners know, with validated arguments.
pub(crate) trait Operation {
    /// What tells operations and their options apart.
    fn tag(&self) -> u64;

    /// Calls `visit` with every argument in a fixed order: the address and layout of a tensor, or None if it is absent.
    fn visit(&self, visit: &mut impl FnMut(Option<(u64, &Meta)>));

    /// The plan of the same call with argument i, counted as `visit` does, at an address that is `distance(i)` higher.
    fn plan_moved(&self, facts: &DeviceFacts, distance: impl Fn(usize) -> u64) -> Result<Option<Plan>>;
}

/// A call whose plan is made and whose kernel is loaded: for callers with streams and an allocator of their own.
pub struct Ready {
    device: GpuDevice,
    known: Arc<Known>,
    /// The argument block with the addresses of this call; the plan's own if None.
    argument: Option<[u8; MOST_ARGUMENT_BYTES]>,
}

/// A plan and where its argument block holds addresses.
struct Known {
    plan: Plan,
    kernel: Arc<Kernel>,
    /// Addresses of the tensors that the plan was made for.
    addresses: [u64; MOST_TENSORS],
    /// Byte in the argument block, and the tensor that it holds an address in.
    places: Vec<(usize, usize)>,
}

/// The plans of one device.
#[derive(Default)]
pub(super) struct Memo {
    plans: RwLock<FxHashMap<Box<[u64]>, Arc<Known>>>,
}

/// What a plan was made from, without the upper bits of addresses.
struct Key {
    words: [u64; KEY_WORDS],
    length: usize,
    addresses: [u64; MOST_TENSORS],
    tensors: usize,
    /// False if the call has more or larger tensors than a key has words.
    complete: bool,
}

impl Key {
    #[inline]
    fn of(operation: &impl Operation) -> Self {
        let mut key = Key {
            words: [0; KEY_WORDS],
            length: 0,
            addresses: [0; MOST_TENSORS],
            tensors: 0,
            complete: true,
        };
        key.push(operation.tag());
        operation.visit(&mut |argument| key.argument(argument));
        key
    }

    fn argument(&mut self, argument: Option<(u64, &Meta)>) {
        let Some(address) = self.addresses.get_mut(self.tensors) else {
            self.complete = false;
            return;
        };
        self.tensors += 1;
        let Some((at, meta)) = argument else { return self.push(0) };
        *address = at;
        let rank = meta.shape.len();
        self.push(1 | (meta.dtype as u64) << 8 | (rank as u64) << 16 | (at & ALIGNMENT_BITS) << 32);
        for (&size, &stride) in meta.shape.iter().zip(meta.strides.iter()) {
            self.push(size as u64);
            self.push(stride as u64);
        }
    }

    fn push(&mut self, word: u64) {
        match self.words.get_mut(self.length) {
            Some(place) => {
                *place = word;
                self.length += 1;
            }
            None => self.complete = false,
        }
    }

    fn words(&self) -> &[u64] {
        &self.words[..self.length]
    }
}

impl Memo {
    fn find(&self, key: &Key) -> Option<Arc<Known>> {
        let plans = self.plans.read().unwrap_or_else(PoisonError::into_inner);
        plans.get(key.words()).cloned()
    }

    /// Forgets every plan, and the kernels that came along.
    pub fn clear(&self) {
        self.plans.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn keep(&self, key: &Key, known: Arc<Known>) {
        let mut plans = self.plans.write().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= MOST_PLANS {
            plans.clear();
        }
        plans.insert(key.words().into(), known);
    }
}

impl Known {
    /// The plan's argument block for the call on other memory.
    fn at(&self, key: &Key) -> [u8; MOST_ARGUMENT_BYTES] {
        let mut argument = [0; MOST_ARGUMENT_BYTES];
        argument[..self.plan.arguments.len()].copy_from_slice(&self.plan.arguments);
        for &(byte, tensor) in &self.places {
            let moved = key.addresses[tensor].wrapping_sub(self.addresses[tensor]);
            let place = &mut argument[byte..byte + 8];
            let word = place.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            place.copy_from_slice(&word.wrapping_add(moved).to_le_bytes());
        }
        argument
    }
}

impl Ready {
    /// Bytes of workspace that the launch needs.
    pub fn workspace_bytes(&self) -> u64 {
        self.known.plan.workspace_bytes
    }

    /// Puts the call on a stream, as [`GpuDevice::launch`] does.
    ///
    /// # Errors
    /// As for [`GpuDevice::launch`].
    ///
    /// # Safety
    /// As for [`GpuDevice::launch`], of the tensors of the call.
    pub unsafe fn launch(&self, stream: StreamHandle, workspace: Option<Workspace>) -> Result<()> {
        let Known { plan, kernel, .. } = &*self.known;
        let argument = match &self.argument {
            Some(argument) => &argument[..plan.arguments.len()],
            None => &plan.arguments,
        };
        // SAFETY: the caller's promise: the addresses are those of the call's tensors.
        unsafe { self.device.launch_kernel(plan, kernel, argument, stream, workspace) }
    }
}

impl GpuDevice {
    /// Plans a call, unless one of its kind has been planned before, and loads its kernel; None if there is nothing to
    /// launch. The operation is validated, and its tensors are on this device.
    ///
    /// # Errors
    /// Those of the planner and of [`GpuDevice::prepare`].
    pub(crate) fn ready(&self, operation: &impl Operation) -> Result<Option<Ready>> {
        let key = Key::of(operation);
        if key.complete
            && let Some(known) = self.memo().find(&key)
        {
            let argument = Some(known.at(&key));
            return Ok(Some(Ready { device: *self, known, argument }));
        }
        let Some(plan) = operation.plan_moved(self.facts(), |_| 0)? else { return Ok(None) };
        let places = places(operation, self.facts(), &plan, &key)?;
        let Some(mut ready) = self.ready_plan(Some(plan))? else { return Ok(None) };
        if let Some(places) = places
            && let Some(known) = Arc::get_mut(&mut ready.known)
        {
            (known.addresses, known.places) = (key.addresses, places);
            self.memo().keep(&key, Arc::clone(&ready.known));
        }
        Ok(Some(ready))
    }

    /// Loads the kernel of a plan, which is not remembered; None if there is nothing to launch.
    ///
    /// # Errors
    /// Those of [`GpuDevice::prepare`].
    pub fn ready_plan(&self, plan: Option<Plan>) -> Result<Option<Ready>> {
        let Some(plan) = plan.filter(|plan| !plan.grid.contains(&0)) else { return Ok(None) };
        let kernel = self.kernel(&plan)?;
        let known = Arc::new(Known { plan, kernel, addresses: [0; MOST_TENSORS], places: Vec::new() });
        Ok(Some(Ready { device: *self, known, argument: None }))
    }

    /// Puts a call on a stream, planned if it is the first of its kind.
    ///
    /// # Errors
    /// Those of the planner and of [`GpuDevice::launch`].
    ///
    /// # Safety
    /// As for [`GpuDevice::launch`], of the tensors of the operation.
    pub(crate) unsafe fn launch_operation(
        &self,
        operation: &impl Operation,
        stream: StreamHandle,
        workspace: Option<Workspace>,
    ) -> Result<()> {
        match self.ready(operation)? {
            // SAFETY: the caller's promise.
            Some(ready) => unsafe { ready.launch(stream, workspace) },
            None => Ok(()),
        }
    }
}

/// Where a plan's argument block holds addresses; None if it cannot be moved.
fn places(
    operation: &impl Operation,
    facts: &DeviceFacts,
    plan: &Plan,
    key: &Key,
) -> Result<Option<Vec<(usize, usize)>>> {
    if !key.complete || plan.arguments.len() > MOST_ARGUMENT_BYTES || cfg!(target_endian = "big") {
        return Ok(None);
    }
    let distance = |tensor: usize| (tensor as u64 + 1) * DISTANCE;
    let Some(moved) = operation.plan_moved(facts, distance)? else { return Ok(None) };
    let arguments = &moved.arguments;
    if (Plan { arguments: plan.arguments.clone(), ..moved.clone() }) != *plan
        || arguments.len() != plan.arguments.len()
    {
        return Ok(None);
    }
    let mut places = Vec::new();
    let words = |bytes: &[u8]| -> Vec<u64> {
        bytes
            .chunks(8)
            .map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
            .collect()
    };
    for (i, (before, after)) in words(&plan.arguments).into_iter().zip(words(arguments)).enumerate() {
        let by = after.wrapping_sub(before);
        if by == 0 {
            continue;
        }
        let Some(tensor) = (0..key.tensors).find(|&tensor| distance(tensor) == by) else { return Ok(None) };
        if i * 8 + 8 > plan.arguments.len() {
            return Ok(None);
        }
        places.push((i * 8, tensor));
    }
    Ok(Some(places))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causal_conv1d::{Activation, Backward, Forward};
    use crate::tensor::{DType, Location, TensorMut, TensorRef};

    const ON: Location = Location::Cuda(0);

    fn input(address: usize, shape: &[i64], strides: &[i64]) -> TensorRef<'static> {
        // SAFETY: planners never follow addresses.
        unsafe { TensorRef::from_raw(std::ptr::without_provenance(address), DType::BF16, shape, strides, ON) }
            .unwrap()
    }

    fn output(address: usize, shape: &[i64], strides: &[i64]) -> TensorMut<'static> {
        // SAFETY: as above.
        unsafe {
            TensorMut::from_raw(std::ptr::without_provenance_mut(address), DType::BF16, shape, strides, ON)
        }
        .unwrap()
    }

    fn forward(addresses: [usize; 5], seqlen: i64, activation: Activation) -> Forward<'static> {
        let (shape, strides) = ([2, 64, seqlen], [64 * seqlen, 1, 64]);
        Forward {
            x: input(addresses[0], &shape, &strides),
            weight: input(addresses[1], &[64, 4], &[4, 1]),
            bias: Some(input(addresses[2], &[64], &[1])),
            initial_states: None,
            seq_idx: None,
            cu_seqlens: None,
            residual: Some(input(addresses[3], &shape, &strides)),
            activation,
            y: output(addresses[4], &shape, &strides),
            final_states: None,
        }
    }

    const FIRST: [usize; 5] = [0x1000_0000, 0x2000_0000, 0x2000_1000, 0x3000_0000, 0x1000_0000];

    #[test]
    fn a_plan_is_moved_to_where_the_tensors_are() {
        let facts = DeviceFacts::h200();
        // In place, beside each other, and anywhere.
        for others in [
            [0x5000_0000, 0x6000_0000, 0x6000_1000, 0x7000_0000, 0x5000_0000],
            [0x1_5000_0000, 0x100, 0x200, 0x1_5000_8000, 0x1_5001_0000],
        ] {
            let op = forward(FIRST, 128, Activation::Silu);
            let (plan, key) = (op.plan(&facts).unwrap().unwrap(), Key::of(&op));
            let places = places(&op, &facts, &plan, &key).unwrap().expect("forward can be moved");
            // x, its two ends, the residual with its own, and three more.
            assert!(places.len() >= 5, "{places:?}");
            let kernel = Arc::new(Kernel::for_test());
            let known = Known { plan, kernel, addresses: key.addresses, places };
            let other = forward(others, 128, Activation::Silu);
            let other_key = Key::of(&other);
            assert_eq!(other_key.words(), key.words());
            let expected = other.plan(&facts).unwrap().unwrap();
            let argument = known.at(&other_key);
            assert_eq!(argument[..expected.arguments.len()], expected.arguments[..]);
        }
    }

    #[test]
    fn whatever_a_plan_depends_on_is_in_the_key() {
        let first = Key::of(&forward(FIRST, 128, Activation::Silu));
        let mut unaligned = FIRST;
        unaligned[0] += 2;
        for other in [
            Key::of(&forward(FIRST, 129, Activation::Silu)),
            Key::of(&forward(FIRST, 128, Activation::None)),
            Key::of(&forward(unaligned, 128, Activation::Silu)),
            Key::of(&Forward { bias: None, ..forward(FIRST, 128, Activation::Silu) }),
            Key::of(&Forward { residual: None, ..forward(FIRST, 128, Activation::Silu) }),
            Key::of(&Forward {
                x: input(FIRST[0], &[2, 64, 128], &[8192, 128, 1]),
                ..forward(FIRST, 128, Activation::Silu)
            }),
        ] {
            assert!(other.complete && other.words() != first.words());
        }
    }

    #[test]
    fn the_key_of_a_call_with_every_argument_is_complete() {
        let shape = [1, 8, 32];
        let strides = [256, 32, 1];
        let op = Backward {
            x: input(0x1000, &shape, &strides),
            weight: input(0x2000, &[8, 4], &[4, 1]),
            bias: Some(input(0x3000, &[8], &[1])),
            dy: input(0x4000, &shape, &strides),
            initial_states: Some(input(0x5000, &[1, 8, 3], &[24, 3, 1])),
            seq_idx: Some(input(0x6000, &[1, 32], &[32, 1])),
            cu_seqlens: Some(input(0x7000, &[2], &[1])),
            dfinal_states: Some(input(0x8000, &[1, 8, 3], &[24, 3, 1])),
            activation: Activation::Silu,
            dx: output(0x9000, &shape, &strides),
            dweight: output(0xa000, &[8, 4], &[4, 1]),
            dbias: Some(output(0xb000, &[8], &[1])),
            dinitial_states: Some(output(0xc000, &[1, 8, 3], &[24, 3, 1])),
        };
        let key = Key::of(&op);
        assert!(key.complete);
        assert_eq!(key.tensors, MOST_TENSORS);
        assert_eq!(key.addresses, std::array::from_fn(|i| (i as u64 + 1) * 0x1000));
    }
}
