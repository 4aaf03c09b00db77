//! GEMM and its gradients: arguments, bits, bounds.

mod exact;
mod fast;
mod properties;
mod suite;
mod support;
