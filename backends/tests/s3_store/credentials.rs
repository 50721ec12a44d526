//! Credentials from every source that can be had without Amazon, and what happens when they end.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime};

use nearfs_lab::{AccessKey, Auth};
use object_store::CredentialProvider;

use super::*;

/// A lab that knows the keys `A` (token `tA`) and `B` (token `tB`) and wants every request signed by one of them.
fn strict_lab() -> Lab {
    let lab = lab();
    for id in ["A", "B"] {
        lab.set_access_key(AccessKey::new(id, format!("secret-{id}")).session_token(format!("t{id}")));
    }
    lab.set_auth(Auth::Required);
    lab.put("b", "x", &b"content"[..]);
    lab
}

/// Settings that find nothing but what the two files say.
fn from_files(lab: &Lab, dir: &Path) -> S3Config {
    S3Config {
        credentials: None,
        config_file: Some(dir.join("config")),
        credentials_file: Some(dir.join("credentials")),
        ..config(lab)
    }
}

/// JSON of a credential process or container, valid for `life` from now (for ever if none).
fn answer(id: &str, life: Option<Duration>, extra: &str) -> String {
    let expiry = life.map_or(String::new(), |life| {
        let at = chrono::DateTime::<chrono::Utc>::from(SystemTime::now() + life);
        format!(", \"Expiration\": \"{}\"", at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true))
    });
    format!(
        "{{\"Version\": 1, \"AccessKeyId\": \"{id}\", \"SecretAccessKey\": \"secret-{id}\", \
         \"{extra}\": \"t{id}\"{expiry}}}"
    )
}

/// A profile `p` whose process prints the file `now` and notes each call in `calls`.
struct Process(tempfile::TempDir);

impl Process {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        let at = dir.path().display();
        fs::write(&script, format!("#!/bin/sh\necho call >> {at}/calls\ncat {at}/now\n")).unwrap();
        fs::write(
            dir.path().join("config"),
            format!("[profile p]\nregion = eu-north-1\ncredential_process = sh {}\n", script.display()),
        )
        .unwrap();
        fs::write(dir.path().join("credentials"), "").unwrap();
        Process(dir)
    }

    fn gives(&self, text: &str) {
        // In one step: a process that reads half an answer is another test.
        fs::write(self.0.path().join("next"), text).unwrap();
        fs::rename(self.0.path().join("next"), self.0.path().join("now")).unwrap();
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.0.path().join("calls")).unwrap_or_default().lines().count()
    }

    fn config(&self, lab: &Lab) -> S3Config {
        S3Config { profile: Some("p".into()), ..from_files(lab, self.0.path()) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explicit_keys_environment_and_anonymous() {
    let lab = strict_lab();
    let keys = Some(S3Keys::new("A", "secret-A", Some("tA".into())));
    let explicit = connect(S3Config { credentials: keys, ..config(&lab) }).await;
    assert_eq!(&read(&explicit, "x").await.unwrap()[..], b"content");
    assert_eq!(explicit.credentials().describe().await.unwrap().source, "explicit keys");

    let mut config = S3Config { credentials: None, ..config(&lab) };
    config.from_env_defaults(&|name: &str| match name {
        "AWS_ACCESS_KEY_ID" => Some("B".into()),
        "AWS_SECRET_ACCESS_KEY" => Some("secret-B".into()),
        "AWS_SESSION_TOKEN" => Some("tB".into()),
        _ => None,
    });
    let env = connect(config.clone()).await;
    assert_eq!(&read(&env, "x").await.unwrap()[..], b"content");
    let info = env.credentials().describe().await.unwrap();
    assert_eq!((info.source.as_str(), info.access_key_id.as_deref()), ("environment variables", Some("B")));
    assert_eq!(env.credentials().get_credential().await.unwrap().secret_key, "secret-B");

    let anonymous = connect(S3Config { credentials: None, anonymous: true, ..config }).await;
    assert_eq!(kind(read(&anonymous, "x").await), ErrorKind::PermissionDenied);
    lab.set_auth(Auth::Open);
    assert_eq!(&read(&anonymous, "x").await.unwrap()[..], b"content");
    assert!(!lab.log().last().unwrap().signed);
    assert_eq!(anonymous.credentials().describe().await.unwrap().source, "anonymous");
    assert!(anonymous.credentials().get_credential().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn profiles_of_the_shared_files() {
    let lab = strict_lab();
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("config"),
        format!(
            "[default]\nregion = eu-west-1\n[profile work]\nregion = eu-north-1\nendpoint_url = {}\n",
            lab.endpoint()
        ),
    )
    .unwrap();
    fs::write(
        dir.path().join("credentials"),
        "[default]\naws_access_key_id = A\naws_secret_access_key = secret-A\naws_session_token = tA\n\
         [work]\naws_access_key_id = B\naws_secret_access_key = secret-B\naws_session_token = tB\n",
    )
    .unwrap();
    let base = S3Config { region: None, ..from_files(&lab, dir.path()) };
    let default = connect(base.clone()).await;
    // Before the first request: this store then names its own region.
    assert_eq!(default.region(), "eu-west-1");
    assert_eq!(&read(&default, "x").await.unwrap()[..], b"content");
    assert_eq!(default.credentials().describe().await.unwrap().source, "the default profile");

    let work = connect(S3Config { profile: Some("work".into()), endpoint: None, ..base.clone() }).await;
    assert_eq!(work.region(), "eu-north-1");
    assert_eq!(&read(&work, "x").await.unwrap()[..], b"content");
    let info = work.credentials().describe().await.unwrap();
    assert_eq!((info.source.as_str(), info.access_key_id.as_deref()), ("profile `work`", Some("B")));

    let unknown = S3Config { profile: Some("wrok".into()), ..base };
    let e = S3FileSystem::connect(unknown, Spawner::current().unwrap()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    assert!(e.context("hint").unwrap().contains("default, work"), "{e:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_credentials_expire_in_the_middle_of_the_run() {
    let lab = strict_lab();
    let process = Process::new();
    process.gives(&answer("A", Some(Duration::from_secs(6)), "SessionToken"));
    let fs = connect(process.config(&lab)).await;
    let file = open(&fs, "x").await.unwrap();
    let start = Instant::now();
    let reads = AtomicUsize::new(0);
    let reader = async {
        while start.elapsed() < Duration::from_secs(9) {
            assert_eq!(&file.read_at(0..9).await.unwrap()[..], b"content", "at {:?}", start.elapsed());
            reads.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let change = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        process.gives(&answer("B", Some(Duration::from_secs(3600)), "SessionToken"));
        tokio::time::sleep(Duration::from_secs(4)).await;
        lab.expire_access_key("A");
    };
    futures::join!(
        reader,
        futures::future::join_all((0..8).map(|_| async {
            while start.elapsed() < Duration::from_secs(9) {
                file.read_at(0..9).await.unwrap();
                tokio::time::sleep(Duration::from_millis(7)).await;
            }
        })),
        change
    );
    assert!(reads.load(Ordering::Relaxed) > 100);
    assert!(process.calls() <= 3, "one call for each expiry, not for each request: {}", process.calls());
    let info = fs.credentials().describe().await.unwrap();
    assert_eq!(info.access_key_id.as_deref(), Some("B"));
    assert!(info.expires.unwrap() > SystemTime::now());
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_an_expired_token_is_renewed_once_for_all() {
    let lab = strict_lab();
    let process = Process::new();
    process.gives(&answer("A", None, "SessionToken"));
    let fs = connect(process.config(&lab)).await;
    let file = open(&fs, "x").await.unwrap();
    assert_eq!(process.calls(), 1);

    // A source is asked at most once a second.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    lab.expire_access_key("A");
    process.gives(&answer("B", None, "SessionToken"));
    let reads = (0..32).map(|_| file.read_at(0..9));
    for result in futures::future::join_all(reads).await {
        assert_eq!(&result.unwrap()[..], b"content");
    }
    assert_eq!(process.calls(), 2);

    // Broken for good: an error that names the cause, at once, and no storm of calls.
    lab.expire_access_key("B");
    let reads = (0..32).map(|_| fs.stat_size());
    for result in futures::future::join_all(reads).await {
        let e = result.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unauthenticated);
        assert!(e.to_string().contains("expired") && !format!("{e:?}").contains("tB"), "{e}");
    }
    assert!(process.calls() <= 4, "{}", process.calls());
    // And back without a restart, within the second for which the source is left alone.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    lab.set_access_key(AccessKey::new("C", "secret-C").session_token("tC"));
    process.gives(&answer("C", None, "SessionToken"));
    assert_eq!(fs.stat_size().await.unwrap(), 7);
}

trait StatSize {
    async fn stat_size(&self) -> Result<u64>;
}

impl StatSize for S3FileSystem {
    async fn stat_size(&self) -> Result<u64> {
        Ok(self.stat(&p("x")).await?.size)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_fails_is_named_and_nothing_is_sent_unsigned() {
    let lab = strict_lab();
    let process = Process::new();
    process.gives("this is no JSON");
    let fs = connect(process.config(&lab)).await;
    let e = fs.stat(&p("x")).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unauthenticated);
    assert!(e.to_string().contains("profile `p`"), "{e}");
    assert_eq!(lab.counters().total(), 0);
    process.gives(&answer("A", None, "SessionToken"));
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(fs.stat_size().await.unwrap(), 7);
}

/// Not a test: what the tests below run in a process of its own, because the sources they are about read the
/// environment. Prints the source, and the size of `x` or the error.
#[tokio::test(flavor = "multi_thread")]
async fn helper_process() {
    if std::env::var_os("S3_STORE_HELPER").is_none() {
        return;
    }
    let mut config = S3Config::new("b");
    config.from_env_defaults(&|name: &str| std::env::var(name).ok());
    let start = Instant::now();
    let fs = connect(config).await;
    match fs.credentials().describe().await {
        Ok(info) => println!("\nsource: {} {:?}", info.source, info.access_key_id),
        Err(e) => println!("\nerror: {:?} {e:#}", e.kind()),
    }
    println!("\nseconds: {} ", start.elapsed().as_secs());
    println!("\nsize: {:?}", fs.stat_size().await.ok());
}

/// What the helper prints with this environment and no other.
fn helper(lab: &Lab, env: &[(&str, &str)]) -> String {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["credentials::helper_process", "--exact", "--nocapture"])
        .env_clear()
        .envs([("S3_STORE_HELPER", "1"), ("HOME", "/nonexistent"), ("AWS_ENDPOINT_URL_S3", &*lab.endpoint())])
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    text
}

/// A server that answers each request, named by its first line, with a body, or never.
fn stub(answer: impl Fn(&str) -> Option<String> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut from = BufReader::new(stream.try_clone().unwrap());
            let (mut first, mut length) = (String::new(), 0);
            let mut line = String::new();
            while from.read_line(&mut line).is_ok_and(|n| n > 2) {
                if first.is_empty() {
                    first.clone_from(&line);
                }
                let low = line.trim().to_lowercase();
                length = low.strip_prefix("content-length: ").map_or(length, |n| n.parse().unwrap());
                line.clear();
            }
            let Some(body) = answer(&first) else {
                silent.push(stream);
                continue;
            };
            // A body is read first: a connection closed with bytes unread is reset.
            let _ = std::io::copy(&mut from.take(length), &mut std::io::sink());
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nx-aws-ec2-metadata-token-ttl-seconds: 600\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    format!("http://{address}")
}

#[test]
fn the_role_of_a_container() {
    let lab = strict_lab();
    let url = stub(|_| Some(answer("B", Some(Duration::from_secs(3600)), "Token")));
    let said = helper(&lab, &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("{url}/creds"))]);
    assert!(said.contains("source: container role Some(\"B\")") && said.contains("size: Some(7)"), "{said}");
}

#[test]
fn the_role_of_a_machine() {
    let lab = strict_lab();
    let url = stub(|first| {
        let path = first.split(' ').nth(1).unwrap_or_default();
        Some(match path {
            "/latest/api/token" => "session".to_owned(),
            path if path.ends_with("/security-credentials/") => "trainer".to_owned(),
            path if path.ends_with("/trainer") => {
                let role = answer("A", Some(Duration::from_secs(3600)), "Token");
                role.replacen('{', "{\"Code\": \"Success\", \"Type\": \"AWS-HMAC\", \"LastUpdated\": \"2024-01-01T00:00:00Z\", ", 1)
            }
            other => panic!("asked for {other}"),
        })
    });
    let said = helper(&lab, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url)]);
    assert!(said.contains("source: instance role Some(\"A\")") && said.contains("size: Some(7)"), "{said}");
}

#[test]
fn a_web_identity_token() {
    let lab = strict_lab();
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "an OpenID token").unwrap();
    let url = stub(|_| {
        Some(
            "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
             <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>B</AccessKeyId>\
             <SecretAccessKey>secret-B</SecretAccessKey><SessionToken>tB</SessionToken>\
             <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>\
             </AssumeRoleWithWebIdentityResponse>"
                .to_owned(),
        )
    });
    let env = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/trainer"),
        ("AWS_ENDPOINT_URL_STS", &url),
    ];
    let said = helper(&lab, &env);
    assert!(
        said.contains("source: web identity token Some(\"B\")") && said.contains("size: Some(7)"),
        "{said}"
    );
}

#[test]
fn a_single_sign_on() {
    let lab = strict_lab();
    let home = tempfile::tempdir().unwrap();
    let cache = home.path().join(".aws/sso/cache");
    fs::create_dir_all(&cache).unwrap();
    fs::write(
        home.path().join(".aws/config"),
        "[profile work]\nsso_session = corp\nsso_account_id = 123456789012\nsso_role_name = trainer\n\
         [sso-session corp]\nsso_region = us-east-1\nsso_start_url = https://corp.invalid/start\n",
    )
    .unwrap();
    // The file is named by the SHA-1 of `corp`.
    fs::write(
        cache.join("ee0bfd2552fbd840c02cc48b6e823320543c450f.json"),
        "{\"accessToken\": \"logged-in\", \"expiresAt\": \"2099-01-01T00:00:00Z\", \"region\": \"us-east-1\", \
         \"startUrl\": \"https://corp.invalid/start\"}",
    )
    .unwrap();
    let url = stub(|_| {
        Some(
            "{\"roleCredentials\": {\"accessKeyId\": \"A\", \"secretAccessKey\": \"secret-A\", \
             \"sessionToken\": \"tA\", \"expiration\": 4070908800000}}"
                .to_owned(),
        )
    });
    let env =
        [("HOME", home.path().to_str().unwrap()), ("AWS_PROFILE", "work"), ("AWS_ENDPOINT_URL_SSO", &url)];
    let said = helper(&lab, &env);
    assert!(said.contains("source: profile `work` Some(\"A\")") && said.contains("size: Some(7)"), "{said}");
}

#[test]
fn variables_of_the_environment() {
    let lab = strict_lab();
    let keys =
        [("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "secret-A"), ("AWS_SESSION_TOKEN", "tA")];
    let said = helper(&lab, &keys);
    assert!(said.contains("source: environment variables") && said.contains("size: Some(7)"), "{said}");
}

#[test]
fn f2_a_silent_metadata_service_ends_soon_and_all_sources_are_named() {
    let lab = strict_lab();
    let url = stub(|_| None);
    let said = helper(&lab, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url)]);
    let seconds = said.split("seconds: ").nth(1).and_then(|s| s.split(' ').next()?.parse::<u64>().ok());
    assert!(seconds.is_some_and(|s| s <= 10), "{said}");
    for source in ["default profile", "web identity token", "container role", "instance role"] {
        assert!(said.contains(source), "{source} is not named: {said}");
    }
    assert!(said.contains("error: Unauthenticated") && said.contains("size: None"), "{said}");
    assert_eq!(lab.counters().total(), 0, "nothing is sent unsigned");
}
