//! What the targets share.

#[path = "../../crates/causeway-verify/tests/common/conv1d.rs"]
mod calls;
pub mod conv1d;
pub mod draw;
pub mod files;
pub mod frames;
pub mod gemm;
#[path = "../../crates/causeway-verify/tests/common/placement.rs"]
mod memory;
