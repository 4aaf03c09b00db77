//! Tensor files: what is written is read back, by us and by others; what is broken is refused in one sentence.

mod build;
mod hostile_npz;
mod hostile_safetensors;
mod round_trip;
mod writing;
