//! GEMM and its gradients: arguments, bits, bounds.

mod arguments;
mod exact;
mod fast;
mod properties;
mod suite;
mod support;
