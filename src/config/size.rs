//! Sizes as people write them: `2GiB`, `1GB`, `512M`, `80%`.

use std::fmt;
use std::str::FromStr;

use nearfs_backends::{Error, ErrorKind};

/// A number of bytes, or a share of what the machine has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Percent of the limit it is measured against, above 0 and at most 100.
    Percent(f64),
}

impl Size {
    /// The size in bytes where `whole` bytes are 100 %.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Size::Bytes(n) => n,
            Size::Percent(p) => (whole as f64 * p / 100.0) as u64,
        }
    }
}

/// Units by their spelling in lower case: `kb` is 1000, `kib` and the bare `k` are 1024, as in coreutils.
const UNITS: [(&str, u64); 17] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
    ("p", 1 << 50),
    ("pib", 1 << 50),
    ("pb", 1_000_000_000_000_000),
];

impl FromStr for Size {
    type Err = Error;

    /// # Errors
    /// `InvalidInput` that says what was expected.
    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |why: &str| {
            Error::new(ErrorKind::InvalidInput, format!("`{text}` is not a size: {why}"))
                .with_context("hint", "write a number and a unit, like `2GiB`, `500MB` or `25%`")
        };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..split], trimmed[split..].trim().to_ascii_lowercase());
        let value: f64 = number.parse().map_err(|_| bad("it does not begin with a number"))?;
        if unit == "%" {
            if value <= 0.0 || value > 100.0 {
                return Err(bad("a percentage is above 0 and at most 100"));
            }
            return Ok(Size::Percent(value));
        }
        let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(bad(&format!("the unit `{unit}` is not known")));
        };
        // Whole numbers stay exact above 2^53.
        let bytes = match number.parse::<u64>() {
            Ok(n) => n.checked_mul(*factor),
            Err(_) => Some(value * *factor as f64).filter(|v| *v < u64::MAX as f64).map(|v| v as u64),
        };
        bytes.map(Size::Bytes).ok_or_else(|| bad("it is more than 16 EiB"))
    }
}

/// The shortest exact spelling; reads back as the same size.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Size::Percent(p) => write!(f, "{p}%"),
            Size::Bytes(0) => f.write_str("0"),
            Size::Bytes(n) => {
                for (unit, factor) in
                    [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
                {
                    if n % factor == 0 {
                        return write!(f, "{}{unit}", n / factor);
                    }
                }
                write!(f, "{n}B")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in [
            ("0", 0),
            ("123", 123),
            ("20GiB", 20 << 30),
            ("20 gib", 20 << 30),
            ("1GB", 1_000_000_000),
            ("1.5K", 1536),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse::<Size>().unwrap(), Size::Bytes(bytes), "{text}");
            let shown = Size::Bytes(bytes).to_string();
            assert_eq!(shown.parse::<Size>().unwrap(), Size::Bytes(bytes), "{shown}");
        }
        assert_eq!("80%".parse::<Size>().unwrap().of(1000), 800);
        assert_eq!("2.5%".parse::<Size>().unwrap().to_string(), "2.5%");
    }

    #[test]
    fn what_is_not_a_size_is_refused_with_the_reason() {
        for (text, part) in [
            ("", "number"),
            ("GiB", "number"),
            ("1XB", "unit `xb`"),
            ("-1", "number"),
            ("120%", "at most 100"),
            ("0%", "above 0"),
            ("1.2.3", "number"),
            ("99999999PiB", "16 EiB"),
        ] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.message().contains(part), "{text}: {error}");
            assert!(error.context("hint").is_some());
        }
    }
}
