//! The kernel server as a process: frames, sockets, signals, and the client that keeps it alive.

mod client;
mod frames;
mod large;
#[cfg(unix)]
mod listen;
mod oneshot;
mod process;
mod report;
mod soak;
