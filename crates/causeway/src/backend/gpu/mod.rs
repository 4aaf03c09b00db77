//! GPUs: choose a kernel, compile it on this machine, launch it.

pub mod plan;
