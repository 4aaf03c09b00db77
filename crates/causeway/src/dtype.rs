//! Element types, as values and as Rust types.

use std::fmt;

use half::{bf16, f16};

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// IEEE binary64 (CPU only).
    F64,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
}

impl DType {
    /// Every dtype.
    pub const ALL: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// The short name: `f32`, `f16`, `bf16`, `f64`, `i32`, `i64`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::I64 => "i64",
        }
    }

    /// True for the four floating-point types.
    pub const fn is_float(self) -> bool {
        !matches!(self, DType::I32 | DType::I64)
    }

    /// Names joined as in a sentence: `f32`, `f32 or f16`, `f32, f16 or bf16`.
    pub(crate) fn list(dtypes: &[DType]) -> String {
        match dtypes {
            [] => String::new(),
            [only] => only.name().to_string(),
            [head @ .., last] => {
                let head: Vec<_> = head.iter().map(|d| d.name()).collect();
                format!("{} or {}", head.join(", "), last.name())
            }
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "f32" | "float32" => DType::F32,
            "f16" | "float16" => DType::F16,
            "bf16" | "bfloat16" => DType::BF16,
            "f64" | "float64" => DType::F64,
            "i32" | "int32" => DType::I32,
            "i64" | "int64" => DType::I64,
            _ => return Err(format!("dtype is {text:?}: expected f32, f16, bf16, f64, i32 or i64")),
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is an element of a tensor.
pub trait Element: bytemuck::Pod + Send + Sync + sealed::Sealed {
    /// Its dtype.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
element!(f32 => F32, f16 => F16, bf16 => BF16, f64 => F64, i32 => I32, i64 => I64);
