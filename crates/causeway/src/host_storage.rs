//! The memory of host tensors: zeroed, aligned, and for large tensors whole pages that can be used again.

#[cfg(target_os = "linux")]
use crate::memory::LARGE;

/// Bytes that elements are aligned to, and storage is a multiple of: enough for any vector width.
pub(crate) const ALIGNMENT: usize = 64;

/// What storage is allocated in: the largest alignment for which allocators give zeroed memory without writing it.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(16))]
struct Chunk([u8; 16]);

/// Zeroed memory that begins at a multiple of [`ALIGNMENT`]. Pages that nobody touches cost nothing.
pub(crate) struct Storage {
    memory: Memory,
    /// Bytes of the memory before the aligned part.
    skipped: usize,
    /// Bytes of the aligned part.
    length: usize,
}

enum Memory {
    Heap(Box<[Chunk]>),
    #[cfg(target_os = "linux")]
    Pages(pages::Pages),
}

impl Storage {
    /// `None` if there is no such memory. Where there is enough of it to gain from that, it comes in pages of its own, large
    /// ones where the system has them.
    pub fn zeroed(bytes: usize) -> Option<Self> {
        let length = bytes.checked_next_multiple_of(ALIGNMENT)?;
        #[cfg(target_os = "linux")]
        if bytes >= LARGE {
            let (pages, skipped) = pages::Pages::zeroed(length)?;
            return Some(Storage { memory: Memory::Pages(pages), skipped, length });
        }
        let chunks = length.checked_add(ALIGNMENT)? / size_of::<Chunk>();
        let chunks = bytemuck::allocation::try_zeroed_slice_box::<Chunk>(chunks).ok()?;
        let skipped = chunks.as_ptr().cast::<u8>().align_offset(ALIGNMENT);
        Some(Storage { memory: Memory::Heap(chunks), skipped, length })
    }

    /// True if the memory goes back to the system when it is dropped, and so is never anybody else's in this process.
    pub fn has_own_pages(&self) -> bool {
        #[cfg(target_os = "linux")]
        if matches!(self.memory, Memory::Pages(_)) {
            return true;
        }
        false
    }

    /// Bytes of memory from the first one on.
    pub fn capacity(&self) -> usize {
        self.all().len() - self.skipped
    }

    /// The same memory for so many bytes, which hold whatever they held; the padding after them is zero.
    ///
    /// # Panics
    /// If there are more than [`Storage::capacity`].
    pub fn resized(mut self, bytes: usize) -> Self {
        self.length = bytes.next_multiple_of(ALIGNMENT);
        self.bytes_mut()[bytes..].fill(0);
        self
    }

    pub fn bytes(&self) -> &[u8] {
        &self.all()[self.skipped..self.skipped + self.length]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let all = match &mut self.memory {
            Memory::Heap(chunks) => bytemuck::cast_slice_mut(chunks),
            #[cfg(target_os = "linux")]
            Memory::Pages(pages) => pages.bytes_mut(),
        };
        &mut all[self.skipped..self.skipped + self.length]
    }

    fn all(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(chunks) => bytemuck::cast_slice(chunks),
            #[cfg(target_os = "linux")]
            Memory::Pages(pages) => pages.bytes(),
        }
    }
}

impl Clone for Storage {
    /// # Panics
    /// If there is no memory for the copy, as for any clone.
    fn clone(&self) -> Self {
        let mut copy = Storage::zeroed(self.length).expect("memory for a copy");
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }
}

#[cfg(target_os = "linux")]
mod pages {
    use std::ptr::NonNull;

    use rustix::mm::{self, MapFlags, ProtFlags};

    use crate::memory::{LARGE_PAGE, prefer_large_pages};

    /// A private mapping, unmapped when it is dropped.
    pub struct Pages {
        start: NonNull<u8>,
        bytes: usize,
    }

    // SAFETY: the mapping belongs to this value alone, which hands it out by the rules of references.
    unsafe impl Send for Pages {}
    // SAFETY: as above.
    unsafe impl Sync for Pages {}

    impl Pages {
        /// A mapping, and where in it `length` bytes begin at a large page.
        pub fn zeroed(length: usize) -> Option<(Self, usize)> {
            // A slice has at most so many bytes.
            let bytes = length.checked_add(LARGE_PAGE).filter(|&bytes| isize::try_from(bytes).is_ok())?;
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping at an address that the system chooses touches no other memory.
            let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }.ok()?;
            let pages = Pages { start: NonNull::new(start.cast())?, bytes };
            let skipped = pages.start.align_offset(LARGE_PAGE);
            prefer_large_pages(
                pages.start.as_ptr().wrapping_add(skipped),
                length.next_multiple_of(LARGE_PAGE).min(bytes - skipped),
            );
            Some((pages, skipped))
        }

        pub fn bytes(&self) -> &[u8] {
            // SAFETY: the mapping has so many bytes, zero from the start, and lives as long as `self`.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
        }

        pub fn bytes_mut(&mut self) -> &mut [u8] {
            // SAFETY: as above, and `self` is borrowed for nobody else.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: nobody has a reference to the mapping of a value that is dropped. A failure leaves it mapped.
            let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_is_zero_aligned_and_large_enough() {
        for bytes in [0, 1, 63, 64, 65, 1 << 20, (4 << 20) - 1, 4 << 20, (6 << 20) + 1] {
            let mut storage = Storage::zeroed(bytes).unwrap();
            assert!(storage.bytes().as_ptr().addr().is_multiple_of(ALIGNMENT));
            assert_eq!(storage.bytes().len(), bytes.next_multiple_of(ALIGNMENT));
            assert!(storage.capacity() >= storage.bytes().len());
            assert!(storage.bytes().iter().all(|&byte| byte == 0));
            storage.bytes_mut().fill(7);
            assert!(storage.clone().bytes().iter().all(|&byte| byte == 7));
        }
        assert!(Storage::zeroed(usize::MAX - 100).is_none());
        assert!(Storage::zeroed(isize::MAX as usize).is_none());
    }

    #[test]
    fn memory_is_used_again_for_fewer_bytes() {
        let mut storage = Storage::zeroed(5 << 20).unwrap();
        assert_eq!(storage.has_own_pages(), cfg!(target_os = "linux"));
        storage.bytes_mut().fill(7);
        let storage = storage.resized((4 << 20) + 1);
        let (used, padding) = storage.bytes().split_at((4 << 20) + 1);
        assert_eq!(padding.len(), ALIGNMENT - 1);
        assert!(used.iter().all(|&byte| byte == 7) && padding.iter().all(|&byte| byte == 0));
        assert!(storage.capacity() >= 5 << 20);
    }
}
