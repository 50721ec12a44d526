//! Counters of the mount, as `.nearfs/stats` shows them.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

/// The requests a mount answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Op {
    Lookup,
    Getattr,
    Open,
    Release,
    Flush,
    Read,
    Opendir,
    Readdir,
    Readdirplus,
    Statfs,
    Getxattr,
    Listxattr,
    Access,
    Ioctl,
}

impl Op {
    const ALL: [Op; 14] = [
        Op::Lookup,
        Op::Getattr,
        Op::Open,
        Op::Release,
        Op::Flush,
        Op::Read,
        Op::Opendir,
        Op::Readdir,
        Op::Readdirplus,
        Op::Statfs,
        Op::Getxattr,
        Op::Listxattr,
        Op::Access,
        Op::Ioctl,
    ];

    /// Its name in statistics and log lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Lookup => "lookup",
            Op::Getattr => "getattr",
            Op::Open => "open",
            Op::Release => "release",
            Op::Flush => "flush",
            Op::Read => "read",
            Op::Opendir => "opendir",
            Op::Readdir => "readdir",
            Op::Readdirplus => "readdirplus",
            Op::Statfs => "statfs",
            Op::Getxattr => "getxattr",
            Op::Listxattr => "listxattr",
            Op::Access => "access",
            Op::Ioctl => "ioctl",
        }
    }
}

#[derive(Debug, Default)]
struct OpCounters {
    count: AtomicU64,
    inline: AtomicU64,
    errors: AtomicU64,
}

/// Counters of one mount.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    ops: [OpCounters; Op::ALL.len()],
    forgotten: AtomicU64,
    read_bytes: AtomicU64,
    interrupted: AtomicU64,
    timed_out: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Counters {
    /// A request arrived.
    pub(crate) fn begin(&self, op: Op) {
        add(&self.ops[op as usize].count, 1);
    }

    /// It was answered on the thread that received it.
    pub(crate) fn inline(&self, op: Op) {
        add(&self.ops[op as usize].inline, 1);
    }

    /// It was answered with an error (absence is none).
    pub(crate) fn error(&self, op: Op) {
        add(&self.ops[op as usize].errors, 1);
    }

    /// A read was answered with `bytes` bytes.
    pub(crate) fn read(&self, bytes: usize) {
        add(&self.read_bytes, bytes as u64);
    }

    /// The kernel gave back `lookups` references.
    pub(crate) fn forget(&self, lookups: u64) {
        add(&self.forgotten, lookups);
    }

    /// A request was answered for a caller that was killed.
    pub(crate) fn interrupted(&self) {
        add(&self.interrupted, 1);
    }

    /// A request reached its deadline.
    pub(crate) fn timed_out(&self) {
        add(&self.timed_out, 1);
    }

    /// All of them, as JSON.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let ops: Map<String, Value> = Op::ALL
            .iter()
            .map(|&op| {
                let c = &self.ops[op as usize];
                let value =
                    json!({"count": get(&c.count), "inline": get(&c.inline), "errors": get(&c.errors)});
                (op.name().to_owned(), value)
            })
            .collect();
        let mut out = Map::new();
        out.insert("operations".into(), ops.into());
        out.insert("forgotten_lookups".into(), get(&self.forgotten).into());
        out.insert("read_bytes".into(), get(&self.read_bytes).into());
        out.insert("interrupted".into(), get(&self.interrupted).into());
        out.insert("timed_out".into(), get(&self.timed_out).into());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_own_counter() {
        let c = Counters::default();
        for (i, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, i);
            (0..=i).for_each(|_| c.begin(op));
        }
        let json = c.to_json();
        for (i, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(json["operations"][op.name()]["count"], i + 1);
        }
    }
}
