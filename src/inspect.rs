//! [`Inspection`]: how a store is reached, for people who look for a fault.

use std::sync::Arc;

use nearfs_backends::{CredentialInfo, FileSystem, Result, S3FileSystem, StoreUrl};

use crate::client::Client;
use crate::runtime::spawner;

/// A store without retries, limits and caches, so that each call is one attempt and says what it met.
#[derive(Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The store, rooted at the URL.
    pub fs: Arc<dyn FileSystem>,
    /// Where requests go; empty for stores on this machine.
    pub endpoint: String,
    /// The region that requests are signed for, for S3.
    pub region: Option<String>,
    /// The credentials in use and where they came from, for S3. Holds no secret.
    pub credentials: Option<Result<CredentialInfo>>,
}

impl Client {
    /// Connects to the store that `url` names, bare.
    ///
    /// # Errors
    /// As [`Client::filesystem`]; missing credentials are reported in the result.
    pub async fn inspect(&self, url: &str) -> Result<Inspection> {
        let url = StoreUrl::parse(url)?;
        let this = self.clone();
        spawner()?.run(async move { this.inspect_here(&url).await }).await
    }

    async fn inspect_here(&self, url: &StoreUrl) -> Result<Inspection> {
        let plan = self.config().store_plan(url, spawner()?)?;
        if !matches!(url.scheme(), "s3" | "s3a") || url.authority().is_empty() {
            let fs = self.registry().open(url, &plan.options).await?;
            let endpoint = fs.identity().endpoint;
            return Ok(Inspection { fs, endpoint, region: None, credentials: None });
        }
        let mut config = plan.options.s3;
        config.bucket = url.authority().to_owned();
        config.prefix = url.path()?;
        let fs = S3FileSystem::connect(config, spawner()?).await?;
        let credentials = Some(fs.credentials().describe().await);
        let region = Some(fs.region());
        let endpoint = fs.identity().endpoint;
        Ok(Inspection { fs, endpoint, region, credentials })
    }
}
