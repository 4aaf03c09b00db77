//! Backends: how an operation is computed on a kind of device. They never know a front end.

pub mod cpu;
pub mod gpu;
