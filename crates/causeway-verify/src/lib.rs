//! Verification of Causeway's operations against a float64 oracle.
//!
//! ```text
//! suite     rows of TOML, or calls drawn at random → inputs → the operation on a device
//! oracle    the value and the error bound of every element of a result
//! evidence  the report of a run: JSON, Markdown and a page
//! ```

pub mod evidence;
pub mod oracle;
pub mod suite;
