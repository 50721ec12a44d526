//! The XML of S3: escaping for answers, and the two request bodies that are XML.

use std::fmt::Write as _;

use quick_xml::Reader;
use quick_xml::events::Event;

/// Text for an element. Control characters become character references as on S3, although XML 1.0 forbids
/// most of them and parsers refuse the whole document: that is what `encoding-type=url` is for.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' => {
                let _ = write!(out, "&#x{:x};", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// The text of every element named `names[i]`, grouped by `group`: one row for each group element.
///
/// # Errors
/// The body is not well-formed XML or not UTF-8.
pub(crate) fn rows(body: &[u8], group: &str, names: &[&str]) -> Result<Vec<Vec<Option<String>>>, String> {
    let body = std::str::from_utf8(body).map_err(|e| e.to_string())?;
    let mut reader = Reader::from_str(body);
    let mut rows: Vec<Vec<Option<String>>> = Vec::new();
    let (mut in_group, mut field) = (false, None);
    let mut depth = 0usize;
    loop {
        match reader.read_event().map_err(|e| e.to_string())? {
            Event::Start(start) => {
                depth += 1;
                let name = start.local_name();
                let name: &str = name.as_ref();
                if name == group {
                    in_group = true;
                    rows.push(vec![None; names.len()]);
                } else if in_group {
                    field = names.iter().position(|n| *n == name);
                    if let (Some(i), Some(row)) = (field, rows.last_mut()) {
                        row[i] = Some(String::new());
                    }
                }
            }
            Event::End(end) => {
                depth = depth.checked_sub(1).ok_or("an element ends that did not begin")?;
                if end.local_name().as_ref() == group {
                    in_group = false;
                }
                field = None;
            }
            Event::Text(text) => push(&mut rows, field, &text),
            Event::CData(text) => push(&mut rows, field, &text),
            Event::GeneralRef(reference) => {
                let text = match reference.resolve_char_ref().map_err(|e| e.to_string())? {
                    Some(c) => c.to_string(),
                    None => {
                        let name: &str = &reference;
                        let known = quick_xml::escape::resolve_xml_entity(name);
                        known.ok_or_else(|| format!("unknown entity {name}"))?.to_owned()
                    }
                };
                push(&mut rows, field, &text);
            }
            Event::Eof if depth == 0 => return Ok(rows),
            Event::Eof => return Err("the document ends inside an element".to_owned()),
            _ => {}
        }
    }
}

fn push(rows: &mut [Vec<Option<String>>], field: Option<usize>, text: &str) {
    if let (Some(i), Some(row)) = (field, rows.last_mut())
        && let Some(value) = &mut row[i]
    {
        value.push_str(text);
    }
}

/// Whether the body has an element `name` whose text is `true`.
pub(crate) fn is_true(body: &[u8], name: &str) -> bool {
    let body = String::from_utf8_lossy(body);
    body.split(&format!("<{name}>")).nth(1).is_some_and(|rest| rest.trim_start().starts_with("true"))
}

/// `YYYY-MM-DDThh:mm:ss.mmmZ`; the date by Howard Hinnant's `civil_from_days`.
pub(crate) fn iso(ms: u64) -> String {
    let (days, ms) = ((ms / 86_400_000) as i64 + 719_468, ms % 86_400_000);
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_with_entities_and_references() {
        let body = b"<?xml version=\"1.0\"?><Delete xmlns=\"x\"><Quiet>true</Quiet>\
            <Object><Key>a&amp;b&#x1f600;&lt;</Key></Object><Object><Key>p//q</Key><VersionId>v</VersionId></Object></Delete>";
        let got = rows(body, "Object", &["Key", "VersionId"]).unwrap();
        assert_eq!(got[0], [Some("a&b\u{1f600}<".to_owned()), None]);
        assert_eq!(got[1], [Some("p//q".to_owned()), Some("v".to_owned())]);
        assert!(is_true(body, "Quiet"));
        assert!(rows(b"<Delete><Object>", "Object", &["Key"]).is_err());
    }

    #[test]
    fn dates_have_milliseconds() {
        assert_eq!(iso(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(iso(951_825_599_999), "2000-02-29T11:59:59.999Z");
        assert_eq!(iso(1_735_689_600_007), "2025-01-01T00:00:00.007Z");
    }

    #[test]
    fn control_characters_become_references() {
        assert_eq!(escape("a\u{1}<&>\"\n\u{7f}"), "a&#x1;&lt;&amp;&gt;&quot;&#xa;&#x7f;");
    }
}
