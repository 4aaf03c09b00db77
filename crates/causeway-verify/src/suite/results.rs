//! What a case's calls write, by name, whatever stands for a tensor.

/// What a call writes.
pub trait Results<T> {
    /// Its tensors, by name.
    fn tensors(&mut self) -> Vec<(&'static str, &mut T)>;
}

/// Results with names of their own.
impl<T, const N: usize> Results<T> for [(&'static str, T); N] {
    fn tensors(&mut self) -> Vec<(&'static str, &mut T)> {
        self.iter_mut().map(|(name, tensor)| (*name, tensor)).collect()
    }
}
