//! The credentials of the moment: fetched once for all who wait, kept, renewed before they expire.

mod http;
mod source;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;

pub(crate) use source::{ProfileSettings, Source};

use crate::error::{Error, ErrorKind, Result, Retry};
use crate::spawner::Spawner;

/// Renewal starts this long before expiry, or after three quarters of short lives.
const MARGIN: Duration = Duration::from_secs(300);

/// Pause after a renewal ahead of time that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// A source is asked no more often than this: what it said last holds until then, failures too.
const ASK_PAUSE: Duration = Duration::from_secs(1);

/// Where the credentials of a store come from and how long they last, for people. Holds no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CredentialInfo {
    /// The source: "environment variables", "profile `work`", "instance role", "anonymous".
    pub source: String,
    /// The access key id, which is not secret; none for anonymous access.
    pub access_key_id: Option<String>,
    /// When they expire, if they do. They are renewed before.
    pub expires: Option<SystemTime>,
}

/// The credentials of one store, shared by all its requests.
///
/// Also a credential provider for `object_store`'s own stores.
#[derive(Debug)]
pub struct Credentials {
    source: Source,
    spawner: Spawner,
    state: Arc<Mutex<State>>,
    /// Held by whoever asks the source.
    asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct State {
    held: Option<Held>,
    /// When the source was last asked for want of usable credentials.
    asked: Option<Instant>,
    /// What came of it, if nothing good.
    failed: Option<Error>,
}

/// Credentials as a source gave them.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) credential: Arc<AwsCredential>,
    pub(crate) expires: Option<SystemTime>,
    pub(crate) source: String,
}

#[derive(Debug)]
struct Held {
    loaded: Loaded,
    /// When to start renewing.
    renew: Option<SystemTime>,
}

impl Held {
    fn new(loaded: Loaded) -> Self {
        let renew = loaded.expires.map(|expires| {
            let life = expires.duration_since(SystemTime::now()).unwrap_or_default();
            // A random part, so that a thousand workers do not ask at the same moment.
            let margin = MARGIN.min(life / 4).mul_f64(rand::random_range(0.6..1.0));
            expires.checked_sub(margin).unwrap_or(expires)
        });
        Held { loaded, renew }
    }

    fn is_valid(&self) -> bool {
        self.loaded.expires.is_none_or(|e| e > SystemTime::now())
    }

    fn is_due(&self) -> bool {
        self.renew.is_some_and(|r| r <= SystemTime::now())
    }
}

impl Credentials {
    pub(crate) fn new(source: Source, spawner: Spawner) -> Self {
        Credentials { source, spawner, state: Arc::default(), asking: Arc::default() }
    }

    /// What to sign with; `None` for anonymous access. Within our runtime only.
    pub(crate) async fn get(&self) -> Result<Option<Arc<AwsCredential>>> {
        let chain = match &self.source {
            Source::Anonymous => return Ok(None),
            Source::Fixed(loaded) => return Ok(Some(Arc::clone(&loaded.credential))),
            Source::Chain(chain) => chain,
        };
        let held = {
            let state = self.state.lock();
            let valid = state.held.as_ref().filter(|h| h.is_valid());
            valid.map(|h| (Arc::clone(&h.loaded.credential), h.is_due()))
        };
        if let Some((credential, due)) = held {
            if due && let Ok(turn) = Arc::clone(&self.asking).try_lock_owned() {
                let (chain, state) = (Arc::clone(chain), Arc::clone(&self.state));
                self.spawner.spawn(async move {
                    let _turn = turn;
                    renew_ahead(&chain, &state).await;
                });
            }
            return Ok(Some(credential));
        }
        self.ask(chain, |state| state.held.as_ref().filter(|h| h.is_valid()).map(|h| h.loaded.clone()))
            .await
            .map(|loaded| Some(loaded.credential))
    }

    /// After the store refused `refused` as expired: true if there are other credentials now.
    pub(crate) async fn refresh(&self, refused: Option<&Arc<AwsCredential>>) -> Result<bool> {
        let (Source::Chain(chain), Some(refused)) = (&self.source, refused) else { return Ok(false) };
        let other = |credential: &AwsCredential| credential != &**refused;
        let loaded = self
            .ask(chain, |state| {
                state.held.as_ref().filter(|h| other(&h.loaded.credential)).map(|h| h.loaded.clone())
            })
            .await?;
        Ok(other(&loaded.credential))
    }

    /// Asks the source, one caller at a time. Who finds that `fits` something already, or that the source was asked just
    /// now, takes what there is.
    async fn ask(
        &self,
        chain: &Arc<source::Chain>,
        fits: impl Fn(&State) -> Option<Loaded>,
    ) -> Result<Loaded> {
        let _turn = self.asking.lock().await;
        {
            let state = self.state.lock();
            if let Some(loaded) = fits(&state) {
                return Ok(loaded);
            }
            if state.asked.is_some_and(|when| when.elapsed() < ASK_PAUSE) {
                match (&state.failed, &state.held) {
                    (Some(error), _) => return Err(error.duplicate()),
                    (None, Some(held)) => return Ok(held.loaded.clone()),
                    (None, None) => {}
                }
            }
        }
        let loaded = chain.load().await;
        let mut state = self.state.lock();
        state.asked = Some(Instant::now());
        state.failed = loaded.as_ref().err().map(Error::duplicate);
        if let Ok(loaded) = &loaded {
            tracing::debug!(source = loaded.source, "credentials loaded");
            state.held = Some(Held::new(loaded.clone()));
        }
        loaded
    }

    /// Where the credentials come from; asks the source if nobody has yet.
    ///
    /// # Errors
    /// `Unauthenticated` if no source has any; the message lists the sources tried.
    pub async fn describe(self: &Arc<Self>) -> Result<CredentialInfo> {
        let this = Arc::clone(self);
        let credential = self.spawner.run(async move { this.get().await }).await?;
        let (source, expires) = match &self.source {
            Source::Anonymous => ("anonymous".to_owned(), None),
            Source::Fixed(loaded) => (loaded.source.clone(), None),
            Source::Chain(_) => {
                let state = self.state.lock();
                let held = state.held.as_ref().map(|h| (h.loaded.source.clone(), h.loaded.expires));
                held.unwrap_or_default()
            }
        };
        Ok(CredentialInfo { source, access_key_id: credential.map(|c| c.key_id.clone()), expires })
    }
}

/// Renews while the old ones are still good: a failure only postpones.
async fn renew_ahead(chain: &source::Chain, state: &Mutex<State>) {
    match chain.load().await {
        Ok(loaded) => state.lock().held = Some(Held::new(loaded)),
        Err(error) => {
            tracing::warn!("credentials cannot be renewed yet: {error:#}");
            if let Some(held) = &mut state.lock().held {
                held.renew = Some(SystemTime::now() + RETRY_PAUSE.mul_f64(rand::random_range(0.5..1.0)));
            }
        }
    }
}

#[async_trait]
impl CredentialProvider for Credentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let generic = |source: Error| object_store::Error::Generic { store: "S3", source: Box::new(source) };
        self.get().await.map_err(generic)?.ok_or_else(|| {
            generic(Error::new(ErrorKind::Unauthenticated, "anonymous access has no credentials"))
        })
    }
}

/// `Unauthenticated`; `transient` if asking again later may help.
pub(crate) fn unauthenticated(message: impl Into<String>, transient: bool) -> Error {
    let retry = if transient { Retry::Later(None) } else { Retry::Never };
    Error::new(ErrorKind::Unauthenticated, message).with_retry(retry)
}
