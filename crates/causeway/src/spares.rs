//! Memory of tensors that nobody needs any longer, kept for the next ones: the system takes longer to bring large pages
//! than to copy what they hold.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::host_storage::Storage;
use crate::host_tensor::HostTensor;

/// The most that is kept, whoever it comes from.
const MOST: usize = 256 << 20;
/// Memory that is so many times larger than what is asked for would be wasted on it.
const MOST_TIMES: usize = 2;

/// Memory of large tensors that were done with, for the next ones: a server reads requests into it, and writes results to
/// it. At most 256 MiB are kept; the oldest goes first.
#[derive(Default)]
pub struct Spares(Mutex<Vec<Storage>>);

impl Spares {
    /// Memory of so many bytes that still holds what it held, if there is any.
    pub(crate) fn take(&self, bytes: usize) -> Option<Storage> {
        let mut kept = self.lock();
        let fits = |spare: &Storage| (bytes..=bytes.saturating_mul(MOST_TIMES)).contains(&spare.capacity());
        let found = kept.iter().rposition(fits)?;
        Some(kept.remove(found).resized(bytes))
    }

    /// The same, or new memory; `None` if there is none either.
    pub(crate) fn take_or_new(&self, bytes: usize) -> Option<Storage> {
        self.take(bytes).or_else(|| Storage::zeroed(bytes))
    }

    /// Keeps the memory of a tensor that is done with, and lets go of the oldest for it.
    pub fn keep(&self, tensor: HostTensor) {
        let storage = tensor.into_storage();
        if !storage.has_own_pages() || storage.capacity() > MOST {
            return;
        }
        let mut kept = self.lock();
        kept.push(storage);
        let mut bytes: usize = kept.iter().map(Storage::capacity).sum();
        let mut too_many = 0;
        while bytes > MOST {
            bytes -= kept[too_many].capacity();
            too_many += 1;
        }
        kept.drain(..too_many);
    }

    /// A panic leaves no list half-way through a change.
    fn lock(&self) -> MutexGuard<'_, Vec<Storage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Spares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Spares({})", self.lock().len())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn tensor(mebibytes: i64) -> HostTensor {
        HostTensor::allocate(DType::I64, &[mebibytes << 17], Storage::zeroed).unwrap()
    }

    #[test]
    fn memory_that_fits_is_used_once_more() {
        let spares = Spares::default();
        let first = tensor(8);
        let place = first.bytes().as_ptr();
        spares.keep(first);
        // Too small, too large, and not there a second time.
        assert!(spares.take(17 << 20).is_none() && spares.take(1 << 20).is_none());
        assert_eq!(spares.take(6 << 20).unwrap().bytes().as_ptr(), place);
        assert!(spares.take(6 << 20).is_none());
    }

    #[test]
    fn only_so_much_is_kept() {
        let spares = Spares::default();
        spares.keep(HostTensor::zeros(DType::I64, &[64]).unwrap());
        spares.keep(tensor(300));
        assert!(spares.lock().is_empty());
        (0..100).for_each(|_| spares.keep(tensor(16)));
        let kept: usize = spares.lock().iter().map(Storage::capacity).sum();
        assert!((MOST / 2..=MOST).contains(&kept), "{kept}");
    }
}
