//! Metrics: one table of names, and helpers to write them through the `metrics` facade.

mod defs;

pub use defs::{METRICS, MetricDef, MetricKind, Stability};

pub(crate) use defs::*;

/// Tells the installed recorder the unit and meaning of every metric of [`METRICS`]. Once, after it is installed.
pub fn describe_all() {
    METRICS.iter().for_each(|m| m.describe());
}

/// The metrics of `table` as a Markdown table, for the handbook.
pub fn to_markdown(table: &[&MetricDef]) -> String {
    let mut out =
        String::from("| metric | kind | unit | labels | stability | meaning |\n|---|---|---|---|---|---|\n");
    for m in table {
        let labels = m.labels.iter().map(|l| format!("`{l}`")).collect::<Vec<_>>().join(", ");
        out.push_str(&format!(
            "| `{}` | {} | {} | {labels} | {} | {} |\n",
            m.name,
            m.kind.as_str(),
            m.unit.as_canonical_label(),
            m.stability.as_str(),
            m.help
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_follow_the_rules() {
        let names: BTreeSet<_> = METRICS.iter().map(|m| m.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for m in METRICS {
            assert!(m.name.starts_with("nearfs_"), "{}", m.name);
            assert_eq!(m.name.ends_with("_total"), m.kind == MetricKind::Counter, "{}", m.name);
            assert_eq!(m.name.ends_with("_seconds"), m.unit == ::metrics::Unit::Seconds, "{}", m.name);
            assert!(m.help.ends_with('.'), "{}", m.name);
        }
        assert_eq!(to_markdown(METRICS).lines().count(), METRICS.len() + 2);
    }
}
