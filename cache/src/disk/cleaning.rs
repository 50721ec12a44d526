//! Cleaning up behind crashes, in the background, as long as a tier is open.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::recover::Janitor;
use super::volume::Volume;

/// Passes in quick succession: one through all directories of files.
const QUICK: u32 = 256;
/// The pause after each of them, and after later ones.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// How often it is looked whether the tier is still open.
const LOOK: Duration = Duration::from_millis(500);

/// Starts a thread that cleans `volume` until nobody uses it. Without a thread nothing is cleaned, which costs space
/// only.
pub(crate) fn start(volume: &Arc<Volume>) {
    let volume = Arc::downgrade(volume);
    let started = std::thread::Builder::new().name("nearfs-janitor".into()).spawn(move || clean(&volume));
    if let Err(e) = started {
        tracing::warn!(error = %e, "no thread to clean the cache directory up");
    }
}

fn clean(volume: &Weak<Volume>) {
    let mut janitor = Janitor::new();
    for pass in 0u32.. {
        let mut pause = if pass < QUICK { PAUSES.0 } else { PAUSES.1 };
        while !pause.is_zero() {
            let step = pause.min(LOOK);
            std::thread::sleep(step);
            pause -= step;
            if volume.strong_count() == 0 {
                return;
            }
        }
        let Some(volume) = volume.upgrade() else { return };
        if pass == 0 {
            volume.dir().remove_older_formats();
        }
        if janitor.pass(&volume.cat()).gone
            && let Err(e) = volume.restart()
        {
            tracing::debug!(error = %e, "a removed cache directory cannot be made anew");
        }
    }
}
