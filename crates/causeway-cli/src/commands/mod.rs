//! One module per subcommand.

pub(crate) mod doctor;
pub(crate) mod run;
