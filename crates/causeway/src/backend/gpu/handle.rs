//! Streams as other libraries hand them over.

/// A stream of anybody's: a `CUstream`, `cudaStream_t` or `hipStream_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamHandle(pub(super) usize);

impl StreamHandle {
    /// The default stream of the device: what PyTorch uses unless told.
    pub const DEFAULT: StreamHandle = StreamHandle(0);

    /// A stream by the address that other libraries know it by: PyTorch's `Stream.cuda_stream`.
    pub fn from_address(address: usize) -> Self {
        StreamHandle(address)
    }

    /// The address that other libraries know the stream by.
    pub fn address(self) -> usize {
        self.0
    }
}
