//! The public suite on S3: the lab's server, and moto.

mod moto;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nearfs_backends::config::{S3Config, S3Keys};
use nearfs_backends::conformance::{self, Options, Report};
use nearfs_backends::{FileSystem, FsPath, S3FileSystem, Spawner};
use nearfs_lab::Lab;

/// One bucket, a directory of it for each check.
async fn suite(endpoint: String) -> Report {
    let count = AtomicUsize::new(0);
    conformance::run(
        || {
            let config = S3Config {
                endpoint: Some(endpoint.clone()),
                region: Some("us-east-1".to_owned()),
                prefix: FsPath::parse(format!("check {}", count.fetch_add(1, Ordering::Relaxed))).unwrap(),
                credentials: Some(S3Keys::new("id", "secret", None)),
                ..S3Config::new("bucket")
            };
            async move {
                S3FileSystem::connect(config, Spawner::current().unwrap()).await.unwrap()
                    as Arc<dyn FileSystem>
            }
        },
        Options::default(),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn lab_s3_passes() {
    let lab = Lab::builder().bucket("bucket").start().unwrap();
    check(suite(lab.endpoint()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn moto_passes() {
    let moto = moto::Moto::start("bucket");
    check(suite(moto.endpoint.clone()).await);
}

fn check(report: Report) {
    println!("{report}");
    report.assert_passed();
    assert!(report.passed() > 30, "the suite ran: {report}");
}
