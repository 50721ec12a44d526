//! Log lines: where they go and in which form.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use nearfs::config::{LogFormat, Settings};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::diagnostics::{Failure, Outcome};

/// Starts logging: to `file`, to the file of the settings, or to standard error.
pub(crate) fn init(settings: &Settings, verbose: u8, file: Option<File>) -> Outcome<()> {
    let filter = match verbose {
        0 => settings.log.clone(),
        1 => "info".to_owned(),
        2 => "nearfs=debug,nearfs_backends=debug,nearfs_cache=debug,nearfs_mount=debug,info".to_owned(),
        _ => "nearfs=trace,nearfs_backends=trace,nearfs_cache=trace,nearfs_mount=trace,debug".to_owned(),
    };
    let filter = EnvFilter::try_new(&filter).map_err(|e| {
        Failure::new(
            format!("`{filter}` is not a log filter: {e}"),
            "write a level, or `target=level` pairs with commas",
        )
    })?;
    let file = match (file, &settings.log_file) {
        (Some(file), _) => Some(file),
        (None, Some(path)) => Some(open(path)?),
        (None, None) => None,
    };
    match file {
        Some(file) => install(filter, settings.log_format, Mutex::new(file)),
        None => install(filter, settings.log_format, std::io::stderr),
    }
}

/// Opens a log file for appending; made with mode 0600 if it is new, since names of objects stand in it.
pub(crate) fn open(path: &Path) -> Outcome<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| Failure::plain(format!("cannot open the log file `{}`: {e}", path.display())))
}

fn install(
    filter: EnvFilter,
    format: LogFormat,
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
) -> Outcome<()> {
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false);
    let done = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    done.map_err(|e| Failure::plain(format!("cannot start logging: {e}")))
}
