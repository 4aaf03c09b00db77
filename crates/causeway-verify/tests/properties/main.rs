//! The CPU backend against the oracle and against itself: random shapes, strides, dtypes and options.

#[path = "../common/conv1d.rs"]
mod calls;
mod chunks;
mod conv1d;
mod determinism;
mod gates;
#[path = "../common/placement.rs"]
mod memory;
mod placement;
mod update;
mod varlen_states;

use causeway::causal_conv1d::Activation;
use proptest::prelude::*;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn activation() -> impl Strategy<Value = Activation> {
    prop::sample::select(vec![Activation::None, Activation::Silu])
}

fn width() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 1..=8i64, 2 => 9..=20i64, 1 => Just(64i64), 1 => Just(256i64)]
}
