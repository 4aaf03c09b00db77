//! Enums whose variants suites call by name.

/// An enum, with the name of each variant after it; errors say that `$key` is none of these names.
macro_rules! named_enum {
    (
        $(#[$doc:meta])*
        pub enum $enum:ident as $key:literal {
            $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $enum {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $enum {
            /// All of them.
            pub const ALL: [$enum; [$($name),*].len()] = [$($enum::$variant),*];

            /// The name that suites use.
            pub const fn name(self) -> &'static str {
                match self {
                    $($enum::$variant => $name,)*
                }
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $enum {
            type Err = String;
            fn from_str(text: &str) -> std::result::Result<Self, String> {
                $enum::ALL.into_iter().find(|known| known.name() == text).ok_or_else(|| {
                    let names = $enum::ALL.map($enum::name).join(", ");
                    format!("{} is {text:?}: expected one of {names}", $key)
                })
            }
        }
    };
}
pub(super) use named_enum;
