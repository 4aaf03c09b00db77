//! The L2 norm of each head, which the query and key of a delta net have after their convolution.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Divides what the activation gives by its L2 norm over the channels of each head, at each position:
/// `y = scale · u / √(Σ u² + eps)`, where heads are runs of `head_dim` channels.
///
/// As text it is `head_dim`, `head_dim,eps` or `head_dim,eps,scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadNorm {
    /// Channels of a head; dim is a multiple of it.
    pub head_dim: i64,
    /// Is added to the sum of squares. It counts as x's arithmetic has it: as an f32, or as it is for f64.
    pub eps: f64,
    /// Multiplies the result; likewise.
    pub scale: f64,
}

impl HeadNorm {
    /// What eps is where nothing else is said.
    pub const EPS: f64 = 1e-6;

    /// Of heads of so many channels, with the usual eps and no scale.
    pub const fn new(head_dim: i64) -> Self {
        HeadNorm { head_dim, eps: Self::EPS, scale: 1.0 }
    }

    /// Checks the numbers against a call's channels, and that nothing follows the activation but the norm.
    pub(super) fn check(norm: Option<&Self>, dim: i64, others: &[(&'static str, bool)]) -> Result<()> {
        let Some(&HeadNorm { head_dim, eps, scale }) = norm else { return Ok(()) };
        if head_dim < 1 || dim % head_dim != 0 {
            return Err(Error::HeadDim { found: head_dim, dim });
        }
        // A smaller one would be zero on some devices, and what has no length would be 0 / 0.
        if !(f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&eps) {
            return Err(Error::NormNumber { name: "eps", found: eps, expected: "from 1.2e-38 to 3.4e38" });
        }
        if scale.is_nan() || scale.abs() > f64::from(f32::MAX) {
            return Err(Error::NormNumber { name: "scale", found: scale, expected: "that f32 can hold" });
        }
        let because = "a norm comes last: multiply, or add, afterwards";
        match others.iter().find(|(_, given)| *given) {
            Some(&(argument, _)) => Err(Error::Unexpected { argument, because }),
            None => Ok(()),
        }
    }
}

impl fmt::Display for HeadNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{:e},{}", self.head_dim, self.eps, self.scale)
    }
}

impl FromStr for HeadNorm {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let unknown = || Error::UnknownNorm { found: text.to_string() };
        let mut parts = text.split(',').map(str::trim);
        let head_dim = parts.next().and_then(|part| part.parse().ok()).ok_or_else(unknown)?;
        let mut norm = HeadNorm::new(head_dim);
        for number in [&mut norm.eps, &mut norm.scale] {
            if let Some(part) = parts.next() {
                *number = part.parse().map_err(|_| unknown())?;
            }
        }
        if parts.next().is_some() { Err(unknown()) } else { Ok(norm) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_norm_are_the_same() {
        for norm in [HeadNorm::new(64), HeadNorm { head_dim: 3, eps: 1e-5, scale: 0.125 }] {
            assert_eq!(norm.to_string().parse::<HeadNorm>().unwrap(), norm);
        }
        assert_eq!("128".parse::<HeadNorm>().unwrap(), HeadNorm::new(128));
        for wrong in ["", "a", "1,", "1,1,1,1"] {
            let error = wrong.parse::<HeadNorm>().unwrap_err().to_string();
            assert!(error.contains("head_dim,eps,scale"), "{error}");
        }
    }
}
