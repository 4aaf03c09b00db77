//! The driver layer on a driver made of host memory, where every call can be made to fail: `fake_gpu`, built here and put
//! in the place of the vendors' libraries. Each scenario runs in a process of its own.

#[path = "../common/fake_gpu.rs"]
mod fake_gpu;
#[path = "../common/gpu.rs"]
mod gpu;

mod altered;
mod control;
mod faults;
mod launches;
mod libraries;
mod operations;
