//! The little XML that S3 speaks.

use std::borrow::Cow;
use std::fmt::Write as _;

use quick_xml::Reader;
use quick_xml::events::Event;

use crate::error::{Error, ErrorKind, Result, Retry};

/// Calls `leave` at the end of every element with the names from the root down to it and, for a leaf, its text.
///
/// # Errors
/// `Corrupt` (worth another try) if the document is cut short or not XML; what `leave` returns.
pub(crate) fn walk(document: &[u8], mut leave: impl FnMut(&[String], &str) -> Result<()>) -> Result<()> {
    let text = std::str::from_utf8(document).map_err(|e| malformed("is not UTF-8").with_source(e))?;
    let mut reader = Reader::from_str(text);
    let mut path: Vec<String> = Vec::new();
    let mut content = String::new();
    let mut closed = false;
    loop {
        match reader.read_event().map_err(|e| malformed("is not XML").with_source(e))? {
            Event::Start(e) => {
                path.push(e.local_name().as_ref().to_owned());
                content.clear();
            }
            Event::Empty(e) => {
                path.push(e.local_name().as_ref().to_owned());
                leave(&path, "")?;
                path.pop();
                content.clear();
                closed |= path.is_empty();
            }
            Event::Text(e) => content.push_str(&e.xml10_content()),
            Event::CData(e) => content.push_str(&e.xml10_content()),
            Event::GeneralRef(e) => {
                let bad = || malformed("has an unknown entity");
                match e.resolve_char_ref().map_err(|e| malformed("has a bad character").with_source(e))? {
                    Some(c) => content.push(c),
                    None => content.push_str(
                        quick_xml::escape::resolve_predefined_entity(&e.xml10_content()).ok_or_else(bad)?,
                    ),
                }
            }
            Event::End(_) => {
                leave(&path, &content)?;
                path.pop();
                content.clear();
                closed |= path.is_empty();
            }
            Event::Eof if closed && path.is_empty() => return Ok(()),
            Event::Eof => return Err(malformed("ends too early")),
            Event::Decl(_) | Event::Comment(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}

/// An answer that cannot be believed; asking again may cure it.
pub(crate) fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the store's answer {what}")).with_retry(Retry::Later(None))
}

/// `text` as XML character data; `None` if XML 1.0 cannot say it (most control characters).
pub(crate) fn escape(text: &str) -> Option<Cow<'_, str>> {
    let plain = |c: char| match c {
        '&' | '<' | '>' | '"' | '\'' | '\u{fffe}' | '\u{ffff}' => false,
        _ => c >= ' ',
    };
    if text.chars().all(plain) {
        return Some(Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\t' | '\n' | '\r' => write!(out, "&#{};", c as u32).expect("a String takes everything"),
            c if plain(c) => out.push(c),
            _ => return None,
        }
    }
    Some(Cow::Owned(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(document: &str) -> Result<Vec<String>> {
        let mut out = Vec::new();
        walk(document.as_bytes(), |path, text| {
            out.push(format!("{}={text}", path.join("/")));
            Ok(())
        })?;
        Ok(out)
    }

    #[test]
    fn elements_entities_and_namespaces_are_understood() {
        let doc = "<?xml version=\"1.0\"?>\n<R xmlns=\"http://x/\"><Key>a&amp;b&#10;&#x1F642;<![CDATA[<]]></Key> <E/></R>";
        assert_eq!(flat(doc).unwrap(), ["R/Key=a&b\n🙂<", "R/E=", "R="]);
    }

    #[test]
    fn cut_documents_are_errors_that_may_be_retried() {
        for cut in ["", "  ", "<R><Key>a</Key>", "<R><Key>a</Ke", "<R>&nope;</R>", "<R></Q>"] {
            let e = flat(cut).unwrap_err();
            assert_eq!((e.kind(), e.is_retryable()), (ErrorKind::Corrupt, true), "{cut:?}");
        }
    }

    #[test]
    fn escaping_round_trips_what_xml_can_say() {
        for text in ["plain", "a&<>\"'b", "tab\tnl\ncr\r", "é🙂"] {
            let doc = format!("<K>{}</K>", escape(text).unwrap());
            assert_eq!(flat(&doc).unwrap(), [format!("K={text}")]);
        }
        assert!(escape("\u{1}").is_none() && escape("\u{ffff}").is_none());
    }
}
