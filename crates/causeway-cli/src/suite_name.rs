//! Names of suites on the command line.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, TypedValueParser};

/// A parser of a suite's name or path, both of which reports show as text. clap's own does not say which argument is no text.
pub(crate) fn suite_name() -> impl TypedValueParser<Value = String> {
    let as_text = |text: OsString| text.into_string().map_err(|_| "expected a name or a path in UTF-8");
    OsStringValueParser::new().try_map(as_text)
}
