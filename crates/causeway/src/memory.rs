//! How much memory the host has.

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
