//! One module per subcommand.

pub(crate) mod bench;
pub(crate) mod compile;
pub(crate) mod doctor;
pub(crate) mod gemm_oneshot;
pub(crate) mod plan;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod verify;
