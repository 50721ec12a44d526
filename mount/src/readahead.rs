//! Kernel readahead. FUSE mounts start at 128 KiB, a quarter of what reads at full speed; only sysfs can raise it,
//! after mounting, and only root may.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};

/// Device numbers of a mount.
pub(crate) type Device = (u32, u32);

fn file(device: Device) -> PathBuf {
    format!("/sys/class/bdi/{}:{}/read_ahead_kb", device.0, device.1).into()
}

/// Asks for `kib` KiB and reports what is in force, with the reason if it could not be changed.
pub(crate) fn raise(device: Device, kib: u32) -> Value {
    let failed = fs::write(file(device), kib.to_string()).err();
    if let Some(e) = &failed {
        tracing::debug!(error = %e, "kernel readahead stays as it is");
    }
    let now = current(device).map_or(Value::Null, Value::from);
    match failed {
        None => json!({"kib": now}),
        Some(e) => json!({"kib": now, "not_raised": e.to_string()}),
    }
}

/// What is in force, in KiB.
pub(crate) fn current(device: Device) -> io::Result<u64> {
    let text = fs::read_to_string(file(device))?;
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a number"))
}
