//! Refusals that are not absence: rights, archives, regions.

use nearfs_backends::config::ClientConfig;
use nearfs_lab::{AccessKey, Fault, Op, Rights, Rule};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn d2_without_the_right_to_list() {
    let lab = lab();
    lab.put("b", "here", &b"content"[..]);
    lab.put("b", "d/below", &b"content"[..]);
    lab.set_access_key(AccessKey::new("id", "secret").rights(Rights::no_list()));
    let fs = fs(&lab).await;
    assert_eq!(&read(&fs, "here").await.unwrap()[..], b"content");
    assert_eq!(&read(&fs, "d/below").await.unwrap()[..], b"content");
    for absent in [fs.stat(&p("absent")).await, open(&fs, "absent").await.map(|f| f.metadata().clone())] {
        let e = absent.unwrap_err();
        assert_eq!((e.kind(), e.is_retryable()), (ErrorKind::PermissionDenied, false));
        assert!(e.to_string().contains("absence cannot be told from refusal"), "{e}");
    }
    let e = list(&fs, "", false).await.unwrap_err();
    assert_eq!((e.kind(), e.context("status")), (ErrorKind::PermissionDenied, Some("403")));
    write(&fs, "new", "data").await.unwrap();

    let lenient = connect(S3Config { refusal_means_absent: true, ..config(&lab) }).await;
    assert_eq!(kind(lenient.stat(&p("absent")).await), ErrorKind::NotFound);
    assert_eq!(lenient.stat(&p("here")).await.unwrap().size, 7);
    assert_eq!(kind(list(&lenient, "", false).await), ErrorKind::PermissionDenied, "a listing is no look-up");
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_head_refused_but_get_allowed() {
    let lab = lab();
    lab.put("b", "here", &b"content"[..]);
    lab.put("b", "empty", &b""[..]);
    lab.fault(Rule::on(Op::HeadObject, Fault::status(403)));
    let fs = fs(&lab).await;
    let by_get = fs.stat(&p("here")).await.unwrap();
    assert_eq!(by_get, list(&fs, "", false).await.unwrap()[1].metadata);
    assert_eq!(fs.stat(&p("empty")).await.unwrap().size, 0);
    assert_eq!(&read(&fs, "here").await.unwrap()[..], b"content");
    assert_eq!(kind(fs.stat(&p("absent")).await), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_archived_objects_are_refused_at_open() {
    let lab = lab();
    lab.put("b", "cold", &b"content"[..]);
    lab.put("b", "thawed", &b"content"[..]);
    lab.set_storage_class("b", "cold", "DEEP_ARCHIVE", false);
    lab.set_storage_class("b", "thawed", "GLACIER", true);
    let fs = fs(&lab).await;
    assert!(fs.stat(&p("cold")).await.unwrap().archived);
    for metadata in [None, Some(list(&fs, "", false).await.unwrap()[0].metadata.clone())] {
        let e = fs.open(&p("cold"), OpenOptions { metadata }).await.unwrap_err();
        assert_eq!((e.kind(), e.is_retryable()), (ErrorKind::Archived, false));
        assert!(e.to_string().contains("archived"), "{e}");
    }
    assert_eq!(&read(&fs, "thawed").await.unwrap()[..], b"content");
    let listed = list(&fs, "", false).await.unwrap()[1].metadata.clone();
    let file = fs.open(&p("thawed"), OpenOptions { metadata: Some(listed) }).await.unwrap();
    assert_eq!(&file.read_at(0..9).await.unwrap()[..], b"content");

    // Archived after it was opened.
    lab.set_storage_class("b", "thawed", "GLACIER", false);
    assert_eq!(kind(file.read_at(0..9).await), ErrorKind::Archived);
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_a_wrong_region_is_corrected_once() {
    for redirect in [true, false] {
        let lab = lab();
        lab.put("b", "here", &b"content"[..]);
        lab.fault(Rule::any(Fault::Region { region: "eu-west-3".into(), redirect }));
        for first in ["stat", "list", "write", "absent"] {
            let fs = fs(&lab).await;
            match first {
                "stat" => assert_eq!(fs.stat(&p("here")).await.unwrap().size, 7),
                "list" => assert!(!list(&fs, "", false).await.unwrap().is_empty()),
                "write" => drop(write(&fs, "new", "data").await.unwrap()),
                _ => assert_eq!(kind(fs.stat(&p("absent")).await), ErrorKind::NotFound),
            }
            assert_eq!(fs.region(), "eu-west-3");
            assert_eq!(&read(&fs, "here").await.unwrap()[..], b"content");
        }
        // A store that changes its mind is not followed for ever.
        let fs = fs(&lab).await;
        fs.stat(&p("here")).await.unwrap();
        lab.clear_faults();
        lab.fault(Rule::any(Fault::Region { region: "mars-1".into(), redirect }));
        let e = list(&fs, "", false).await.unwrap_err();
        assert_eq!((e.kind(), e.is_retryable()), (ErrorKind::InvalidInput, false));
        assert!(e.context("hint").unwrap().contains("mars-1"), "{e:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_named() {
    let lab = lab();
    let fs = connect(S3Config { bucket: "nothere".into(), ..config(&lab) }).await;
    for e in [list(&fs, "", false).await.unwrap_err(), write(&fs, "x", "y").await.unwrap_err()] {
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(e.to_string().contains("bucket"), "{e}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_tell_no_secrets() {
    let lab = lab();
    lab.set_access_key(AccessKey::new("id", "another"));
    lab.set_auth(nearfs_lab::Auth::Required);
    let keys = S3Keys::new("id", "the-secret", Some("the-token".into()));
    let client = ClientConfig {
        proxy: Some("http://me:the-password@127.0.0.1:1".into()),
        no_proxy: Some("127.0.0.1".into()),
        ..config(&lab).client
    };
    let fs = connect(S3Config { credentials: Some(keys), client, ..config(&lab) }).await;
    for e in [fs.stat(&p("x")).await.unwrap_err(), list(&fs, "", false).await.unwrap_err()] {
        assert_eq!(e.kind(), ErrorKind::Unauthenticated, "{e:#}");
        let all = format!("{e:#} {e:?} {fs:?}");
        for secret in ["the-secret", "the-token", "the-password", "Signature="] {
            assert!(!all.contains(secret), "{secret} in {all}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_listed_but_not_readable() {
    let lab = lab();
    lab.put("b", "secret", &b"content"[..]);
    let rights = Rights { deny_read: vec!["secret".into(), "absent".into()], ..Rights::default() };
    lab.set_access_key(AccessKey::new("id", "secret").rights(rights));
    let fs = fs(&lab).await;
    assert_eq!(fs.stat(&p("secret")).await.unwrap(), list(&fs, "", false).await.unwrap()[0].metadata);
    assert_eq!(kind(fs.stat(&p("absent")).await), ErrorKind::NotFound);
    assert_eq!(kind(read(&fs, "secret").await), ErrorKind::PermissionDenied);
}
