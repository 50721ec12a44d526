//! What a store allows.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use nearfs::{DirEntry, Error, ErrorKind, FsPath, Inspection, ListOptions, OpenOptions, Result};

use super::Finding;
use crate::cli::context::Context;
use crate::cli::diagnostics::{describe, hint};
use crate::cli::output::time;
use crate::cli::place::shown;

/// One check may take so long; the store's own limits are shorter.
const PATIENCE: Duration = Duration::from_secs(60);
/// Entries looked at to find a file to read.
const LOOK_AT: usize = 1000;
/// Bytes read of it.
const SAMPLE: u64 = 4096;

/// The checks of one store, one after the other.
pub(super) struct Checks<'a> {
    ctx: &'a Context,
    url: &'a OsStr,
    ready: VecDeque<Finding>,
    step: Step,
}

enum Step {
    Connect,
    List(Inspection),
    Read(Inspection, DirEntry),
    Done,
}

impl<'a> Checks<'a> {
    pub(super) fn new(ctx: &'a Context, url: &'a OsStr) -> Self {
        Checks { ctx, url, ready: VecDeque::new(), step: Step::Connect }
    }

    /// The next finding; `None` when all is said.
    pub(super) async fn next(&mut self) -> Option<Finding> {
        loop {
            if let Some(finding) = self.ready.pop_front() {
                return Some(finding);
            }
            self.step = match std::mem::replace(&mut self.step, Step::Done) {
                Step::Connect => self.connect().await,
                Step::List(inspection) => self.list(inspection).await,
                Step::Read(inspection, entry) => self.read(&inspection, &entry).await,
                Step::Done => return None,
            };
        }
    }

    async fn connect(&mut self) -> Step {
        let shown = shown(self.url);
        let Ok(url) = str::from_utf8(self.url.as_bytes()) else {
            self.ready.push_back(Finding::attention("store", format!("{shown} is not UTF-8")));
            return Step::Done;
        };
        let inspection = match limited(self.ctx.client.inspect(url)).await {
            Ok(inspection) => inspection,
            Err(error) => {
                self.ready.push_back(failed("store", &shown, &error));
                return Step::Done;
            }
        };
        let endpoint =
            if inspection.endpoint.is_empty() { "the provider's own endpoint" } else { &inspection.endpoint };
        if let Some(credentials) = &inspection.credentials {
            let region = inspection.region.as_deref().unwrap_or("unknown");
            self.ready.push_back(Finding::ok("store", format!("{shown}, {endpoint}, region {region}")));
            self.ready.push_back(match credentials {
                Ok(info) => {
                    let mut found = info.source.clone();
                    if let Some(id) = &info.access_key_id {
                        found.push_str(&format!(", access key {id}"));
                    }
                    match info.expires {
                        Some(expires) if expires <= SystemTime::now() => {
                            Finding::attention("credentials", format!("{found}, expired {}", time(expires)))
                                .means("the store refuses them")
                                .advise("renew them (for SSO: `aws sso login`)")
                        }
                        Some(expires) => Finding::ok(
                            "credentials",
                            format!("{found}, until {} (renewed before)", time(expires)),
                        ),
                        None => Finding::ok("credentials", found),
                    }
                }
                Err(error) => failed("credentials", "", error),
            });
        } else {
            self.ready.push_back(Finding::ok("store", format!("{shown}, on this machine")));
        }
        Step::List(inspection)
    }

    async fn list(&mut self, inspection: Inspection) -> Step {
        let start = Instant::now();
        let fs = inspection.fs.clone();
        let looked = limited(async {
            let mut entries = fs.list(&FsPath::root(), ListOptions { recursive: true, start_after: None });
            let (mut seen, mut file) = (0, None);
            let mut first = None;
            while let Some(entry) = entries.next().await {
                let entry = entry?;
                first.get_or_insert_with(|| start.elapsed());
                seen += 1;
                if entry.metadata.is_file() && entry.metadata.size > 0 && !entry.metadata.archived {
                    file = Some(entry);
                    break;
                }
                if seen >= LOOK_AT {
                    break;
                }
            }
            Ok((seen, file, first.unwrap_or_else(|| start.elapsed())))
        });
        match looked.await {
            Err(error) => {
                self.ready.push_back(failed("list", "", &error));
                Step::Done
            }
            Ok((0, _, took)) => {
                let found = format!("allowed, nothing is there (answered in {})", ms(took));
                self.ready.push_back(
                    Finding::note("list", found).means("the place is empty, or its name has a slip"),
                );
                Step::Done
            }
            Ok((_, None, took)) => {
                let found = format!("allowed (answered in {}); no file among the first entries", ms(took));
                self.ready.push_back(Finding::ok("list", found));
                Step::Done
            }
            Ok((_, Some(entry), took)) => {
                self.ready
                    .push_back(Finding::ok("list", format!("allowed (first entries after {})", ms(took))));
                Step::Read(inspection, entry)
            }
        }
    }

    async fn read(&mut self, inspection: &Inspection, entry: &DirEntry) -> Step {
        let start = Instant::now();
        let read = limited(async {
            let options = OpenOptions { metadata: Some(entry.metadata.clone()) };
            let file = inspection.fs.open(&entry.path, options).await?;
            file.read_at(0..SAMPLE.min(entry.metadata.size)).await
        });
        self.ready.push_back(match read.await {
            Ok(_) => {
                Finding::ok("read", format!("allowed (`{}` answered in {})", entry.path, ms(start.elapsed())))
            }
            Err(error) => failed("read", "", &error),
        });
        Step::Done
    }
}

async fn limited<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(result) => result,
        Err(_) => Err(Error::new(ErrorKind::TimedOut, format!("no answer within {} s", PATIENCE.as_secs()))),
    }
}

fn failed(check: &str, what: &str, error: &Error) -> Finding {
    let found = if what.is_empty() { describe(error) } else { format!("{what}: {}", describe(error)) };
    let (meaning, action) = match error.kind() {
        ErrorKind::PermissionDenied => (
            "the credentials are accepted but do not allow this",
            "ask for the rights to list and read (s3:ListBucket on the bucket, s3:GetObject on its objects)",
        ),
        ErrorKind::Unauthenticated => (
            "there are no credentials, or the store does not accept them",
            "set AWS_PROFILE or the key variables, log in again, or use --anonymous for a public bucket",
        ),
        ErrorKind::NotFound => ("nothing has this name", "check the name of the bucket, and the endpoint"),
        ErrorKind::Unavailable | ErrorKind::TimedOut => (
            "the store does not answer from here",
            "check endpoint, region, proxy variables, and that the network lets this machine out",
        ),
        ErrorKind::InvalidInput => ("this cannot be a store", "correct the URL or the setting named"),
        _ => ("the check did not work", "see the message"),
    };
    Finding::attention(check, found)
        .means(meaning)
        .advise(hint_of(error).unwrap_or_else(|| action.to_owned()))
}

/// The error's own hint; not the general one, which sends people here.
fn hint_of(error: &Error) -> Option<String> {
    error.context("hint").is_some().then(|| hint(error)).flatten()
}

fn ms(took: Duration) -> String {
    format!("{:.0} ms", took.as_secs_f64() * 1000.0)
}
