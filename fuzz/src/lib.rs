//! What the targets share.

pub mod conv1d;
pub mod draw;
pub mod files;
pub mod frames;
pub mod gemm;
