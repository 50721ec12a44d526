//! How requests travel: hosts, proxies, TLS, headers.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::*;

/// A server that notes the head of each request and answers 404.
fn listener() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (heads, seen) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let heads = heads.clone();
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                loop {
                    let head: Vec<_> =
                        lines.by_ref().map_while(|l| l.ok().filter(|l| !l.is_empty())).collect();
                    if head.is_empty() || heads.send(head.join("\n").to_lowercase()).is_err() {
                        return;
                    }
                    let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
    });
    (url, seen)
}

/// The heads of the two requests of one `stat`, HEAD first.
async fn heads_of_stat(config: S3Config, seen: &mpsc::Receiver<String>) -> [String; 2] {
    let _ = connect(config).await.stat(&p("a b")).await;
    let mut heads = [seen.recv_timeout(SOON).unwrap(), seen.recv_timeout(SOON).unwrap()];
    heads.sort_by_key(|head| !head.starts_with("head"));
    heads
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_hosts_and_headers() {
    let unused = lab();
    let (proxy, seen) = listener();
    let through = |no_proxy: Option<&str>, endpoint: &str| S3Config {
        endpoint: Some(endpoint.to_owned()),
        path_style: Some(false),
        requester_pays: true,
        client: ClientConfig {
            proxy: Some(proxy.replace("http://", "http://user:password@")),
            no_proxy: no_proxy.map(str::to_owned),
            user_agent: Some("trainer/7".into()),
            ..ClientConfig::default()
        },
        ..config(&unused)
    };
    let [head, list] = heads_of_stat(through(None, "http://store.invalid:90"), &seen).await;
    assert!(head.starts_with("head http://b.store.invalid:90/a%20b http/1.1"), "{head}");
    assert!(
        list.starts_with("get http://b.store.invalid:90/?encoding-type=url&list-type=2&prefix=a%20b%2f"),
        "{list}"
    );
    for text in [
        "user-agent: trainer/7",
        "x-amz-request-payer: requester",
        "proxy-authorization: basic",
        "accept-encoding: identity",
        "authorization: aws4-hmac-sha256",
    ] {
        assert!(head.contains(text) && list.contains(text), "{text} in {head}\n{list}");
    }
    assert!(head.contains(";x-amz-request-payer,"), "under the signature: {head}");

    // The same listener as the store itself: not by absolute URL.
    let [head, _] =
        heads_of_stat(S3Config { path_style: None, ..through(Some("example.com,127.0.0.1"), &proxy) }, &seen)
            .await;
    assert!(head.starts_with("head /b/a%20b http/1.1") && !head.contains("proxy-auth"), "{head}");

    let [head, _] = heads_of_stat(
        S3Config { credentials: None, anonymous: true, ..through(None, "http://store.invalid:90") },
        &seen,
    )
    .await;
    assert!(head.contains("x-amz-request-payer: requester") && !head.contains("aws4"), "{head}");
}

/// TLS in front of the lab; its URL and its certificate.
async fn tls(lab: &Lab) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let address = lab.address();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let (Ok(mut near), Ok(mut far)) =
                    (acceptor.accept(stream).await, tokio::net::TcpStream::connect(address).await)
                else {
                    return;
                };
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    (url, made.cert.pem())
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_by_the_certificates_of_a_bundle() {
    let lab = lab();
    lab.put_synthetic("b", "x", 3 << 20, 7);
    let (url, certificate) = tls(&lab).await;
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("ca.pem");
    std::fs::write(&bundle, certificate).unwrap();

    let known = S3Config { endpoint: Some(url.clone()), ca_bundle: Some(bundle), ..config(&lab) };
    let fs = connect(known.clone()).await;
    assert!(nearfs_lab::stamp::verify(&read(&fs, "x").await.unwrap(), 0, 7).is_ok());
    write(&fs, "y", vec![1u8; 9 << 20]).await.unwrap();
    assert_eq!(lab.size("b", "y"), Some(9 << 20));

    let unknown = connect(S3Config { ca_bundle: None, ..known }).await;
    let e = unknown.stat(&p("x")).await.unwrap_err();
    assert!(format!("{e:#}").to_lowercase().contains("certificate"), "{e:#}");
}

/// Not a test: what the next one runs in a process without the system's certificates.
#[tokio::test(flavor = "multi_thread")]
async fn helper_process() {
    let Some(endpoint) = std::env::var("S3_STORE_PLAIN").ok() else { return };
    let keys = Some(S3Keys::new("id", "secret", None));
    let plain = S3Config { endpoint: Some(endpoint), credentials: keys, ..S3Config::new("b") };
    println!("\nplain: {:?}", connect(plain.clone()).await.stat(&p("x")).await.map(|m| m.size));
    let tls = S3Config { endpoint: Some("https://localhost:1".into()), ..plain };
    let e = S3FileSystem::connect(tls, Spawner::current().unwrap()).await.unwrap_err();
    println!("\ntls: {e} {:?}", e.context("hint"));
}

#[test]
fn a_machine_without_certificates_can_do_without_tls() {
    let lab = lab();
    lab.put("b", "x", &b"12345"[..]);
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["network::helper_process", "--exact", "--nocapture"])
        .env_clear()
        .envs([("HOME", "/nonexistent"), ("SSL_CERT_FILE", "/dev/null"), ("SSL_CERT_DIR", "/nonexistent")])
        .env("S3_STORE_PLAIN", lab.endpoint())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(
        said.contains("plain: Ok(5)") && said.contains("tls: ") && said.contains("ca-certificates"),
        "{said}"
    );
}
