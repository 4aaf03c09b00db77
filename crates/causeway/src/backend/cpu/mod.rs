//! The CPU backend: SIMD chosen at run time, threads from the current rayon pool.

/// The processor, and the vector instructions that are used on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {}

impl Cpu {
    /// The widest vectors that this processor has.
    pub fn new() -> Self {
        Cpu {}
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Display for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("portable")
    }
}
