//! Parts that come in any order, written to a writer that wants them front to back.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;
use object_store::path::Path;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use parking_lot::Mutex;

use super::put_result;
use crate::file::FileWriter;
use crate::interop::error::{NAME, to_store};

/// The order of the parts is that of the calls to `put_part`. Whichever future of a part is polled first writes the
/// parts before it as well; the others then find their work done. At most the parts whose futures the caller holds
/// wait in memory.
pub(super) struct Upload {
    shared: Arc<Shared>,
    parts: u64,
}

struct Shared {
    location: Path,
    /// Parts not written yet, in order.
    waiting: Mutex<VecDeque<PutPayload>>,
    writer: tokio::sync::Mutex<Progress>,
}

struct Progress {
    /// Gone when finished, aborted or failed.
    writer: Option<Box<dyn FileWriter>>,
    /// Parts written.
    written: u64,
}

impl Upload {
    pub(super) fn new(writer: Box<dyn FileWriter>, location: Path) -> Self {
        let progress = Progress { writer: Some(writer), written: 0 };
        let writer = tokio::sync::Mutex::new(progress);
        Upload { shared: Arc::new(Shared { location, waiting: Mutex::default(), writer }), parts: 0 }
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upload({}, {} parts)", self.shared.location, self.parts)
    }
}

fn over() -> Error {
    Error::Generic { store: NAME, source: "the upload has ended or failed".into() }
}

impl Shared {
    /// Writes all parts up to number `parts`.
    async fn write_up_to(&self, parts: u64) -> Result<()> {
        let mut progress = self.writer.lock().await;
        while progress.written < parts {
            // Taken out while a part is under way: if this future is dropped half-way through one, nobody knows how
            // much of it was written, and the upload must end.
            let mut writer = progress.writer.take().ok_or_else(over)?;
            let Some(payload) = self.waiting.lock().pop_front() else { return Err(over()) };
            for piece in payload {
                if let Err(e) = writer.write(piece).await {
                    // The failure of the write is the one to report.
                    let _ = writer.abort().await;
                    return Err(to_store(e, &self.location));
                }
            }
            progress.writer = Some(writer);
            progress.written += 1;
        }
        Ok(())
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.parts += 1;
        let (shared, number) = (self.shared.clone(), self.parts);
        shared.waiting.lock().push_back(data);
        async move { shared.write_up_to(number).await }.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.shared.write_up_to(self.parts).await?;
        let writer = self.shared.writer.lock().await.writer.take().ok_or_else(over)?;
        let made = writer.finish().await.map_err(|e| to_store(e, &self.shared.location))?;
        Ok(put_result(&made))
    }

    async fn abort(&mut self) -> Result<()> {
        self.shared.waiting.lock().clear();
        match self.shared.writer.lock().await.writer.take() {
            Some(writer) => writer.abort().await.map_err(|e| to_store(e, &self.shared.location)),
            None => Ok(()),
        }
    }
}
