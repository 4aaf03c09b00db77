//! Memory that ends, or begins, at a page that nobody may touch.

/// Which end of a tensor lies at a page that nobody may touch.
#[derive(Debug, Clone, Copy)]
pub enum Guard {
    Before,
    Behind,
}

/// Memory of exactly so many elements, with such pages around it.
pub struct Guarded<T> {
    mapping: *mut libc::c_void,
    bytes: usize,
    pub first: *mut T,
    count: usize,
}

impl<T: Copy> Guarded<T> {
    pub fn new(guard: Guard, values: impl ExactSizeIterator<Item = T>) -> Self {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let count = values.len();
        let used = (count * size_of::<T>()).next_multiple_of(page);
        let bytes = used + 2 * page;
        // SAFETY: a new mapping at an address that the system chooses.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        assert_ne!(mapping, libc::MAP_FAILED);
        // SAFETY: whole pages inside the mapping, between its first and its last.
        let granted =
            unsafe { libc::mprotect(mapping.byte_add(page), used, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(granted, 0);
        let skipped = match guard {
            Guard::Before => 0,
            Guard::Behind => used - count * size_of::<T>(),
        };
        // SAFETY: inside the mapping; pages are aligned for every T, and so is a multiple of its size before their end.
        let first: *mut T = unsafe { mapping.byte_add(page + skipped) }.cast();
        for (i, value) in values.enumerate() {
            // SAFETY: element i of `count`, all of which lie in pages that may be written.
            unsafe { first.add(i).write(value) };
        }
        Guarded { mapping, bytes, first, count }
    }

    pub fn slice(&self) -> &[T] {
        // SAFETY: `count` elements, which `new` has written, and nobody else holds.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }

    pub fn slice_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.count) }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` has made; no slice of it outlives `self`.
        unsafe { libc::munmap(self.mapping, self.bytes) };
    }
}
