//! The command as people start it: a process with arguments, files, output and an exit status.

mod bench;
mod general;
mod kernels;
mod process;
mod report;
mod run;
mod run_errors;
mod simulator;
mod verify;
