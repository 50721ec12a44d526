//! From settings to what the stores are opened with: the one place where `AWS_*` reaches a backend.

use nearfs_backends::config::{RetryConfig, S3Config};
use nearfs_backends::{Result, Spawner, StoreOptions, StoreUrl};

use super::{Config, Origin, Settings, setting};

/// What one store is opened and wrapped with.
#[derive(Debug, Clone)]
pub(crate) struct StorePlan {
    pub(crate) settings: Settings,
    pub(crate) options: StoreOptions,
    pub(crate) retry: RetryConfig,
}

impl Config {
    /// The plan for the store that holds `url`.
    ///
    /// # Errors
    /// As [`Config::settings`].
    pub(crate) fn store_plan(&self, url: &StoreUrl, spawner: Spawner) -> Result<StorePlan> {
        let text = url.to_string();
        let settings = self.settings(Some(&text))?;
        let mut options = StoreOptions::new(spawner);
        options.s3 = self.s3(&text, &settings);
        options.local.io_timeout = options.local.io_timeout.min(settings.deadline);
        let mut retry = RetryConfig { max_retries: settings.retries, ..Default::default() };
        // A little less than the deadline, so that the failure itself is reported and not only that time is up.
        retry.max_elapsed = settings.deadline.mul_f64(0.9);
        // Who comes during a pause must see its end.
        retry.max_backoff = retry.max_backoff.min(settings.deadline / 4);
        retry.initial_backoff = retry.initial_backoff.min(retry.max_backoff);
        Ok(StorePlan { settings, options, retry })
    }

    fn s3(&self, url: &str, settings: &Settings) -> S3Config {
        let mut s3 = S3Config {
            endpoint: settings.endpoint_url.clone(),
            region: settings.region.clone(),
            profile: settings.profile.clone().filter(|_| self.profile_beats_keys(url)),
            anonymous: settings.anonymous,
            path_style: settings.path_style,
            requester_pays: settings.requester_pays,
            ca_bundle: settings.ca_bundle.clone(),
            ..Default::default()
        };
        s3.client.connect_timeout = settings.connect_timeout;
        s3.client.first_byte_timeout = settings.first_byte_timeout;
        s3.client.read_gap_timeout = settings.read_gap_timeout;
        // The stated endpoint also decides which proxy variable counts.
        s3.from_env_defaults(&|name| self.environment.get(name).map(str::to_owned));
        s3
    }

    /// As with the AWS tools, `AWS_PROFILE` loses against keys in the environment, and so does what is weaker still; a
    /// profile named for nearfs wins.
    fn profile_beats_keys(&self, url: &str) -> bool {
        let named = setting("profile").map(|s| self.find(s, Some(url)).1);
        let weak = match named {
            Some(Origin::Env(name)) => name.starts_with("AWS_"),
            Some(Origin::File(_) | Origin::Default) | None => true,
            Some(Origin::Flag(_) | Origin::Section(..)) => false,
        };
        let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
        !(weak && keys.iter().all(|k| self.environment.get(k).is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;

    fn plan(config: &Config) -> S3Config {
        let url = StoreUrl::parse("s3://b/p").unwrap();
        let spawner = crate::runtime::spawner().unwrap();
        config.store_plan(&url, spawner).unwrap().options.s3
    }

    #[test]
    fn keys_and_profiles_are_chosen_as_the_aws_tools_do() {
        let keys =
            [("AWS_ACCESS_KEY_ID", "AK"), ("AWS_SECRET_ACCESS_KEY", "s"), ("NEARFS_CONFIG", "/dev/null")];
        let load = |more: &[(&str, &str)]| {
            let env: Environment = keys.iter().chain(more).copied().collect();
            Config::load(None, env).unwrap()
        };
        let env = load(&[("AWS_PROFILE", "work")]);
        assert!(plan(&env).credentials.is_some() && plan(&env).profile.is_none());
        let mut flag = load(&[("AWS_PROFILE", "work")]);
        flag.set("profile", "mine", "--profile").unwrap();
        assert_eq!((plan(&flag).profile.as_deref(), plan(&flag).credentials), (Some("mine"), None));
        let own = load(&[("NEARFS_PROFILE", "mine")]);
        assert_eq!(plan(&own).profile.as_deref(), Some("mine"));
        let mut anonymous = load(&[]);
        anonymous.set("anonymous", "true", "--anonymous").unwrap();
        assert!(plan(&anonymous).anonymous && plan(&anonymous).credentials.is_none());
    }

    #[test]
    fn an_endpoint_in_a_section_beats_the_general_one_of_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "[store.\"s3://b\"]\nendpoint_url = 'http://own:1'\nread_gap_timeout = '3s'\n")
            .unwrap();
        let env: Environment = [("AWS_ENDPOINT_URL", "http://general:1")].into_iter().collect();
        let config = Config::load(Some(&file), env).unwrap();
        let s3 = plan(&config);
        assert_eq!(s3.endpoint.as_deref(), Some("http://own:1"));
        assert_eq!(s3.client.read_gap_timeout.as_secs(), 3);
        let other = config.settings(Some("s3://c")).unwrap();
        assert_eq!(other.endpoint_url.as_deref(), Some("http://general:1"));
    }
}
