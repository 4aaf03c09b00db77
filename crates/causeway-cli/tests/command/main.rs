//! The command as people start it: a process with arguments, files, output and an exit status.

#[path = "../../../causeway/tests/common/fake_gpu.rs"]
mod fake_gpu;
#[path = "../../../causeway/tests/common/required.rs"]
mod required;

mod bench;
mod general;
mod hip;
mod kernels;
mod process;
mod report;
mod run;
mod run_errors;
mod simulator;
mod verify;
