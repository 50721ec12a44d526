//! Time spans as people write them: `60s`, `1h 30m`, `0`, `inf`.

use std::time::Duration;

use nearfs_backends::{Error, ErrorKind, Result};

/// A finite span. `0` needs no unit, everything else does.
///
/// # Errors
/// `InvalidInput` that says what was expected.
pub fn parse_span(text: &str) -> Result<Duration> {
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(trimmed).map_err(|e| {
        let bare = !trimmed.is_empty() && trimmed.bytes().all(|b| b.is_ascii_digit());
        let why = if bare { "the unit is missing".to_owned() } else { e.to_string() };
        Error::new(ErrorKind::InvalidInput, format!("`{text}` is not a time span: {why}"))
            .with_context("hint", "write a number and a unit, like `60s`, `500ms` or `2h`; `0` needs no unit")
    })
}

/// A span that may be `inf` (`None`).
///
/// # Errors
/// As [`parse_span`].
pub fn parse_span_or_inf(text: &str) -> Result<Option<Duration>> {
    match text.trim() {
        "inf" | "infinite" | "forever" => Ok(None),
        other => parse_span(other).map(Some),
    }
}

/// The spelling that [`parse_span_or_inf`] reads back.
pub fn show_span(span: Option<Duration>) -> String {
    match span {
        None => "inf".to_owned(),
        Some(Duration::ZERO) => "0".to_owned(),
        Some(span) => humantime::format_duration(span).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_and_print() {
        for (text, span) in [
            ("60s", Some(Duration::from_secs(60))),
            ("500ms", Some(Duration::from_millis(500))),
            ("1h 30m", Some(Duration::from_secs(5400))),
            ("0", Some(Duration::ZERO)),
            ("inf", None),
        ] {
            assert_eq!(parse_span_or_inf(text).unwrap(), span, "{text}");
            assert_eq!(parse_span_or_inf(&show_span(span)).unwrap(), span, "{text}");
        }
        assert!(parse_span("60").unwrap_err().message().contains("unit is missing"));
        assert!(parse_span("inf").is_err());
        assert!(parse_span("-1s").is_err());
        assert!(parse_span("").is_err());
    }
}
