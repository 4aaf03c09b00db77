//! The memory of large results on the host, for the next ones.
//!
//! An allocator gives blocks of 32 MiB and more back to the system as soon as they are free, and the system takes longer to bring zeroed
//! pages for the next one than a kernel takes to fill them. So what holds the memory of such a result is kept here, and once nobody else holds it,
//! the next result of its size gets it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;

/// Smaller blocks are kept by the allocator: glibc's threshold for a mapping of a block's own never rises above this.
const LEAST: u64 = 32 << 20;
/// Most bytes in the list, in use or not.
const MOST: u64 = 256 << 20;

/// Memory of results, the one that was given last at the end.
pub struct Kept(Mutex<Vec<Storage>>);

/// What is kept, of all libraries.
pub static KEPT: Kept = Kept(Mutex::new(Vec::new()));

struct Storage {
    /// What results hold: a `torch.UntypedStorage`, or NumPy's array that theirs are views of.
    object: Py<PyAny>,
    /// The address that PyTorch knows a storage by.
    address: Option<Py<PyAny>>,
    bytes: u64,
}

/// Who else holds a storage.
enum Held {
    /// A tensor (and so views, arrays and what autograd has saved), or a name in Python.
    Here,
    Nobody,
    /// Another process may; or it has another size now. It is of no use any longer.
    Elsewhere,
}

impl Storage {
    fn held(&self, py: Python<'_>, use_count: Option<&Bound<'_, PyAny>>) -> PyResult<Held> {
        let object = self.object.bind(py);
        // SAFETY: the object is alive, and the interpreter is attached.
        if unsafe { pyo3::ffi::Py_REFCNT(object.as_ptr()) } != 1 {
            return Ok(Held::Here);
        }
        let (Some(address), Some(use_count)) = (&self.address, use_count) else { return Ok(Held::Nobody) };
        if use_count.call1((address,))?.extract::<i64>()? != 1 {
            return Ok(Held::Here);
        }
        let is_shared = object.call_method0(intern!(py, "is_shared"))?.is_truthy()?;
        let bytes: u64 = object.call_method0(intern!(py, "nbytes"))?.extract()?;
        Ok(if is_shared || bytes != self.bytes { Held::Elsewhere } else { Held::Nobody })
    }
}

impl Kept {
    /// Whether memory of so many bytes is kept.
    pub fn takes(bytes: u64) -> bool {
        (LEAST..=MOST).contains(&bytes)
    }

    /// A storage of so many bytes that nobody holds any longer, which stays in the list: PyTorch's where its function that counts who
    /// holds the storage at an address is given, else NumPy's.
    pub fn find<'py>(
        &self,
        py: Python<'py>,
        use_count: Option<&Bound<'py, PyAny>>,
        bytes: u64,
    ) -> Option<Bound<'py, PyAny>> {
        // Python may run another thread whenever it is asked, so nothing is asked under the lock. That thread finds nothing here meanwhile.
        let mut all = std::mem::take(&mut *self.lock());
        let mut found = None;
        let mut left = Vec::with_capacity(all.len());
        for storage in all.drain(..) {
            if storage.address.is_some() != use_count.is_some() || found.is_some() {
                left.push(storage);
                continue;
            }
            // One that does not answer is left alone.
            match storage.held(py, use_count).unwrap_or(Held::Here) {
                Held::Nobody if storage.bytes == bytes => found = Some(storage),
                Held::Elsewhere => drop(storage),
                _ => left.push(storage),
            }
        }
        let object = found.as_ref().map(|storage| storage.object.bind(py).clone());
        left.extend(found);
        self.put_back(left);
        object
    }

    /// Keeps the storage of a tensor that was just allocated.
    pub fn keep_tensor(&self, tensor: &Bound<'_, PyAny>, bytes: u64) {
        let py = tensor.py();
        let storage = || {
            let object = tensor.call_method0(intern!(py, "untyped_storage"))?;
            let address = Some(object.getattr(intern!(py, "_cdata"))?.unbind());
            Ok::<_, PyErr>(Storage { object: object.unbind(), address, bytes })
        };
        // Where that is not to be had, the tensor is like any other.
        if let Ok(storage) = storage() {
            self.put_back(vec![storage]);
        }
    }

    /// Keeps an array that was just allocated, of which results are views.
    pub fn keep_array(&self, array: &Bound<'_, PyAny>, bytes: u64) {
        self.put_back(vec![Storage { object: array.clone().unbind(), address: None, bytes }]);
    }

    /// Keeps nothing any longer.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }

    /// Adds some at the end, and lets go of the first ones where they are too many.
    fn put_back(&self, some: Vec<Storage>) {
        let mut kept = self.lock();
        kept.extend(some);
        let mut bytes: u64 = kept.iter().map(|storage| storage.bytes).sum();
        let mut too_many = 0;
        while bytes > MOST {
            bytes -= kept[too_many].bytes;
            too_many += 1;
        }
        let forgotten: Vec<_> = kept.drain(..too_many).collect();
        // What this frees may run code of its own.
        drop(kept);
        drop(forgotten);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Storage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
