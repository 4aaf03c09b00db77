//! The memory of large results on the host, for the next ones.
//!
//! An allocator gives blocks of 32 MiB and more back to the system as soon as they are free, and the system takes longer to bring zeroed
//! pages for the next one than a kernel to fill them. So the storages of such results are remembered here, and one that nobody else has
//! any longer is given to the next result of its size.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;

/// Smaller blocks are kept by the allocator: glibc maps none apart below this.
pub const LEAST: u64 = 32 << 20;
/// The most that is remembered, in use or not.
const MOST: u64 = 256 << 20;

/// Storages of results, the oldest first.
#[derive(Default)]
pub struct Kept(Mutex<Vec<Storage>>);

struct Storage {
    /// What results keep alive: a `torch.UntypedStorage`, or NumPy's array that theirs are views of.
    object: Py<PyAny>,
    /// The address that PyTorch knows it by.
    address: Option<Py<PyAny>>,
    bytes: u64,
}

impl Storage {
    /// True if nobody else has it: no tensor, which views, arrays and what autograd has saved keep alive, no name in Python, and no other process.
    fn is_free(&self, py: Python<'_>, use_count: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let object = self.object.bind(py);
        // SAFETY: the object is alive, and the interpreter is attached.
        let names = unsafe { pyo3::ffi::Py_REFCNT(object.as_ptr()) };
        let (Some(address), Some(use_count)) = (&self.address, use_count) else { return Ok(names == 1) };
        Ok(names == 1
            && use_count.call1((address,))?.extract::<i64>()? == 1
            && !object.call_method0(intern!(py, "is_shared"))?.is_truthy()?
            && object.call_method0(intern!(py, "nbytes"))?.extract::<u64>()? == self.bytes)
    }
}

impl Kept {
    /// A storage of so many bytes that nobody has any longer; it is remembered further. `use_count` is PyTorch's function that counts who
    /// has the storage at an address.
    pub fn find<'py>(
        &self,
        py: Python<'py>,
        use_count: Option<&Bound<'py, PyAny>>,
        bytes: u64,
    ) -> Option<Bound<'py, PyAny>> {
        // Python may run another thread whenever it is asked, so nothing is asked under the lock. That thread finds nothing here meanwhile.
        let all = std::mem::take(&mut *self.lock());
        let mut found = None;
        for storage in all.iter().filter(|storage| storage.bytes == bytes) {
            // One that does not answer is left alone.
            if storage.is_free(py, use_count).unwrap_or(false) {
                found = Some(storage.object.bind(py).clone());
                break;
            }
        }
        self.put_back(all);
        found
    }

    /// Remembers the storage of a tensor that was just allocated, if it is not too large.
    pub fn remember_tensor(&self, tensor: &Bound<'_, PyAny>, bytes: u64) {
        let py = tensor.py();
        let storage = || {
            let object = tensor.call_method0(intern!(py, "untyped_storage"))?;
            let address = Some(object.getattr(intern!(py, "_cdata"))?.unbind());
            Ok::<_, PyErr>(Storage { object: object.unbind(), address, bytes })
        };
        // One that cannot be asked for is the allocator's.
        if bytes <= MOST
            && let Ok(storage) = storage()
        {
            self.put_back(vec![storage]);
        }
    }

    /// The same, of an array.
    pub fn remember_array(&self, array: &Bound<'_, PyAny>, bytes: u64) {
        if bytes <= MOST {
            self.put_back(vec![Storage { object: array.clone().unbind(), address: None, bytes }]);
        }
    }

    /// Forgets all of them.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }

    /// Adds some, and forgets the oldest where they are too many.
    fn put_back(&self, mut some: Vec<Storage>) {
        let mut kept = self.lock();
        // Others may have come meanwhile.
        some.append(&mut kept);
        let mut bytes: u64 = some.iter().map(|storage| storage.bytes).sum();
        let too_many = some.iter().take_while(|storage| {
            let forget = bytes > MOST;
            bytes -= if forget { storage.bytes } else { 0 };
            forget
        });
        let too_many = too_many.count();
        let forgotten: Vec<_> = some.drain(..too_many).collect();
        *kept = some;
        // What this frees may run code of its own.
        drop(kept);
        drop(forgotten);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Storage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
