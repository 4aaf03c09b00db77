//! The host's memory: how much of it there is, and in pages of which size it comes.

/// Memory of so many bytes or more gains from large pages.
pub(crate) const LARGE: usize = 4 << 20;
/// The large pages of most systems; where they have another size, fewer of them fit.
#[cfg(target_os = "linux")]
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Asks the system to bring the memory from `start` on in large pages when it is first touched, if there is enough of it to gain
/// from that: in small pages it takes as long to come as several copies of it. For memory that was just allocated; what it holds
/// stays as it is. A system that has no large pages, or gives none, does nothing.
pub fn prefer_large_pages(start: *const u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    if bytes >= LARGE {
        let skipped = start.align_offset(LARGE_PAGE);
        let whole = bytes.saturating_sub(skipped) / LARGE_PAGE * LARGE_PAGE;
        let (inside, advice) = (start.wrapping_add(skipped), rustix::mm::Advice::LinuxHugepage);
        // SAFETY: the advice changes nothing of what memory holds, and is refused for addresses without any.
        let _ = unsafe { rustix::mm::madvise(inside.cast_mut().cast(), whole, advice) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

/// Bytes that are free to use, as the system says; `None` where it does not.
pub fn available() -> Option<u64> {
    meminfo("MemAvailable:")
}

/// Bytes in all, as the system says; `None` where it does not.
pub fn total() -> Option<u64> {
    meminfo("MemTotal:")
}

/// A line of /proc/meminfo, which counts in KiB.
fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_no_error() {
        // No address of anything, at the start, and the end, of what a process may have.
        prefer_large_pages(std::ptr::without_provenance(LARGE_PAGE), LARGE);
        prefer_large_pages(std::ptr::without_provenance(usize::MAX - LARGE), LARGE);
    }

    /// The flags of the mapping around an address, as /proc/self/smaps has them.
    fn flags(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_there = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(from), Some(to))) = range.map(|(from, to)| (number(from), number(to))) {
                is_there = (from..to).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_there) {
                return format!("{flags} ");
            }
        }
        panic!("{address:x} is in no mapping");
    }

    #[test]
    fn whole_large_pages_are_asked_for_and_nothing_around_them() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        // More than any allocator keeps: the memory is a mapping of its own, of which the middle is advised.
        let memory: Vec<u8> = Vec::with_capacity(80 << 20);
        let inside = memory.as_ptr().wrapping_add(memory.as_ptr().align_offset(LARGE_PAGE));
        let at = inside.addr();
        prefer_large_pages(inside.wrapping_add(LARGE_PAGE + 1), LARGE - 2);
        assert!(!flags(at + 2 * LARGE_PAGE).contains(" hg "));
        prefer_large_pages(inside.wrapping_add(LARGE_PAGE + 1), 4 * LARGE_PAGE);
        for (pages, expected) in [(0, false), (1, false), (2, true), (4, true), (5, false)] {
            assert_eq!(flags(at + pages * LARGE_PAGE).contains(" hg "), expected, "{pages}");
        }
    }
}
