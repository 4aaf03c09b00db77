//! Names of errors that programs can rely on.

use super::Error;

impl Error {
    /// A stable name of the cause, for programs in any language.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Rank { .. } => "rank",
            Error::Size { .. } | Error::Channels { .. } => "size",
            Error::Width { .. } => "width",
            Error::StateTooShort { .. } => "state-too-short",
            Error::DTypeMismatch { .. } => "dtype-mismatch",
            Error::WrongLocation { .. } => "wrong-location",
            Error::OverlappingOutput { .. } => "overlapping-output",
            Error::OutOfBounds { .. } => "out-of-bounds",
            Error::NegativeSize { .. } => "negative-size",
            Error::AxisCount { .. } => "axis-count",
            Error::TooLarge { .. } => "too-large",
            Error::OutOfMemory { .. } => "out-of-memory",
            Error::ResultTooLarge { .. } => "result-too-large",
            Error::IndexOutOfRange { .. } => "index-out-of-range",
            Error::DuplicateIndex { .. } => "duplicate-index",
            Error::CuSeqlensStart { .. } => "cu-seqlens-start",
            Error::CuSeqlensDecrease { .. } => "cu-seqlens-decrease",
            Error::CuSeqlensEnd { .. } => "cu-seqlens-end",
            Error::CuSeqlensEmpty => "cu-seqlens-empty",
            Error::Unexpected { .. } => "unexpected",
            Error::HeadDim { .. } => "head-dim",
            Error::NormNumber { .. } => "norm-number",
            Error::UnknownNorm { .. } => "unknown-norm",
            Error::UnknownActivation { .. } => "unknown-activation",
            Error::UnknownAlgorithm { .. } => "unknown-algorithm",
            Error::UnknownDevice { .. } => "unknown-device",
            Error::Unsupported { .. } => "unsupported",
            Error::LibraryMissing { .. } => "library-missing",
            Error::SymbolMissing { .. } => "symbol-missing",
            Error::NoDevice { .. } => "no-device",
            Error::DeviceOrdinal { .. } => "device-ordinal",
            Error::DeviceUnsupported { .. } => "device-unsupported",
            Error::OutOfDeviceMemory { .. } => "out-of-device-memory",
            Error::InvalidImage { .. } => "invalid-image",
            Error::DeviceLost { .. } => "device-lost",
            Error::Driver { .. } => "driver",
            Error::Compile { .. } => "compile",
            Error::CompilerTooOld { .. } => "compiler-too-old",
            Error::UnknownArchitecture { .. } => "unknown-architecture",
            Error::WorkspaceTooSmall { .. } => "workspace-too-small",
            Error::InvalidPlan { .. } => "invalid-plan",
            Error::KernelsDirectory { .. } => "kernels-directory",
            Error::CopyLength { .. } => "copy-length",
            Error::CacheEntry { .. } => "cache-entry",
            Error::UnknownSimulator { .. } => "unknown-simulator",
            Error::SimulatorCompiler { .. } => "simulator-compiler",
            Error::SimulatedFault { .. } => "simulated-fault",
        }
    }
}
