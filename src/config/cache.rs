//! Values of the cache's settings: lists of directories, limits, the group.

use std::path::{Path, PathBuf};

use nearfs_backends::{Error, ErrorKind, Result};

use super::settings::bad;
use super::size::Size;

/// Least disk space that is worth a cache, in bytes: the files that describe it take some of it.
pub const LEAST_CACHE: u64 = 16 << 20;
/// Most directories.
const MAX_DIRS: usize = 64;

/// `items` as one text, as it may stand in an environment variable: separated by `:`; a `:` or `\` in an item has a `\`
/// before it.
pub(super) fn join(items: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let escape = |item: &str| item.replace('\\', "\\\\").replace(':', "\\:");
    items.into_iter().map(|i| escape(i.as_ref())).collect::<Vec<_>>().join(":")
}

/// The items that [`join`] made `text` of.
pub(super) fn split(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let last = items.len() - 1;
        match (c, chars.peek()) {
            ('\\', Some(':' | '\\')) => items[last].extend(chars.next()),
            (':', _) => items.push(String::new()),
            _ => items[last].push(c),
        }
    }
    items
}

/// Directories, made absolute.
pub(super) fn parse_dirs(text: &str) -> Result<Vec<PathBuf>> {
    let dirs = split(text).iter().map(|item| parse_dir(item)).collect::<Result<Vec<_>>>()?;
    if dirs.len() > MAX_DIRS {
        return Err(bad(&format!("{} directories", dirs.len()), &format!("at most {MAX_DIRS}")));
    }
    for (i, dir) in dirs.iter().enumerate() {
        if dirs[..i].contains(dir) {
            return Err(Error::new(ErrorKind::InvalidInput, format!("`{}` is given twice", dir.display()))
                .with_context("hint", "name each directory once, best one on each disk"));
        }
    }
    Ok(dirs)
}

fn parse_dir(text: &str) -> Result<PathBuf> {
    if text.is_empty() {
        return Err(bad(text, "a directory, found an empty path"));
    }
    // Only a shell knows whose home that is.
    if text == "~" || text.starts_with("~/") {
        return Err(bad(text, "a whole path").with_context("hint", "write the home directory out"));
    }
    std::path::absolute(Path::new(text)).map_err(|e| bad(text, "a path").with_source(e))
}

/// A limit; `0` = no cache on disk.
pub(super) fn parse_size(text: &str) -> Result<Option<Size>> {
    match text.trim().parse()? {
        Size::Bytes(n) if n > 0 && n < LEAST_CACHE => {
            let expected = format!("`0` (nothing is kept on disk) or at least {}", Size::Bytes(LEAST_CACHE));
            Err(bad(text, &expected))
        }
        size => Ok(Some(size)),
    }
}

/// A share of a filesystem, as `5%`; gives 0.05.
pub(super) fn parse_share(text: &str) -> Result<f64> {
    let number = text.trim().strip_suffix('%').unwrap_or_else(|| if text.trim() == "0" { "0" } else { "" });
    match number.trim().parse::<f64>() {
        Ok(percent) if (0.0..=90.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(bad(text, "a share from `0%` to `90%`")),
    }
}

/// A group, by name or number.
pub(super) fn parse_group(text: &str) -> Result<Option<u32>> {
    let text = text.trim();
    if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        return text.parse().map(Some).map_err(|_| bad(text, "a group number from 0 to 4294967295"));
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(Some(group.gid.as_raw())),
        Ok(None) => Err(bad(text, "the name or number of a group that exists")
            .with_context("hint", "`getent group` lists them; `groupadd` makes one")),
        Err(errno) => Err(Error::from(std::io::Error::from(errno)).with_context("group", text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_survive_every_character() {
        for items in [vec!["/a"], vec!["/a", "/b:c", "/d\\", "/e\\:f"], vec![""]] {
            assert_eq!(split(&join(&items)), items);
        }
        assert_eq!(split("/a:/b"), ["/a", "/b"]);
        // A backslash that stands before nothing special is itself.
        assert_eq!(split("/a\\b"), ["/a\\b"]);
    }

    #[test]
    fn directories_are_absolute_and_named_once() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(parse_dirs("/a:b").unwrap(), [PathBuf::from("/a"), here.join("b")]);
        for (text, part) in [
            ("", "empty"),
            ("/a:", "empty"),
            ("~/x", "whole path"),
            ("/a:/b:/a", "`/a` is given twice"),
            (&vec!["/a"; 65].join(":"), "at most 64"),
        ] {
            let error = parse_dirs(text).unwrap_err();
            assert!(error.message().contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn limits_shares_and_groups() {
        assert_eq!(parse_size("0").unwrap(), Some(Size::Bytes(0)));
        assert_eq!(parse_size("80%").unwrap(), Some(Size::Percent(80.0)));
        assert!(parse_size("1MiB").unwrap_err().message().contains("at least 16MiB"));
        for (text, share) in [("5%", 0.05), ("0%", 0.0), ("0", 0.0), ("2.5 %", 0.025), ("90%", 0.9)] {
            assert!((parse_share(text).unwrap() - share).abs() < 1e-12, "{text}");
        }
        for text in ["5", "95%", "-1%", "", "%", "5GiB", "NaN%"] {
            assert!(parse_share(text).unwrap_err().message().contains("`0%` to `90%`"), "{text}");
        }
        assert_eq!(parse_group("0").unwrap(), Some(0));
        assert_eq!(parse_group("root").unwrap(), Some(0));
        assert_eq!(parse_group("4294967296").unwrap_err().kind(), ErrorKind::InvalidInput);
        for text in ["no-such-group-here", "", "-1"] {
            assert!(parse_group(text).unwrap_err().message().contains("a group that exists"), "{text}");
        }
    }
}
