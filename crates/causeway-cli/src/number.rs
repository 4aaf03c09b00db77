//! Numbers on the command line.

use std::fmt::Display;
use std::str::FromStr;

use clap::Command;

/// A parser of the whole numbers from `least` to `most`, whose sentence names these, whatever the text is.
pub(crate) fn within<T>(
    least: T,
    most: T,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (&least..=&most).contains(&number));
        number.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
    }
}

/// Lets options take negative numbers as values, so that an option's own parser can refuse them.
pub(crate) fn with_negative_numbers(command: Command) -> Command {
    let own = command.mut_args(|argument| {
        let takes_values = argument.get_action().takes_values() && !argument.is_positional();
        argument.allow_negative_numbers(takes_values)
    });
    own.mut_subcommands(with_negative_numbers)
}
