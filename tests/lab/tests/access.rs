//! Signatures and rights.

mod common;

use std::time::{SystemTime, UNIX_EPOCH};

use common::{Answer, Client};
use hmac::{Hmac, KeyInit, Mac};
use nearfs_lab::{Access, AccessKey, Auth, Lab, Op, Rights};
use sha2::{Digest, Sha256};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn hmac(key: &[u8], data: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(data.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Signs as a client does: path and query must be given in canonical form.
#[derive(Clone)]
struct Signer {
    id: &'static str,
    secret: &'static str,
    token: Option<&'static str>,
    region: &'static str,
    /// Seconds that the client's clock is ahead.
    ahead: i64,
}

impl Signer {
    fn new(id: &'static str, secret: &'static str) -> Self {
        Self { id, secret, token: None, region: "us-east-1", ahead: 0 }
    }

    fn date(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + self.ahead;
        let http = httpdate::fmt_http_date(UNIX_EPOCH + std::time::Duration::from_secs(now as u64));
        // "Sun, 06 Nov 1994 08:49:37 GMT" as "19941106T084937Z".
        let fields: Vec<&str> = http.split([' ', ':', ',']).filter(|f| !f.is_empty()).collect();
        let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let month = months.iter().position(|m| *m == fields[2]).unwrap() + 1;
        format!("{}{month:02}{}T{}{}{}Z", fields[3], fields[1], fields[4], fields[5], fields[6])
    }

    fn signature(&self, date: &str, canonical: &str) -> (String, String) {
        let scope = format!("{}/{}/s3/aws4_request", &date[..8], self.region);
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
        let mut key = format!("AWS4{}", self.secret).into_bytes();
        for part in scope.split('/') {
            key = hmac(&key, part);
        }
        (scope, hex(&hmac(&key, &text)))
    }

    fn ask(&self, c: &mut Client, method: &str, target: &str, body: &[u8], sent: &[u8]) -> Answer {
        let (date, hash) = (self.date(), hex(&Sha256::digest(body)));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (mut names, mut lines) = ("host;x-amz-content-sha256;x-amz-date".to_owned(), String::new());
        let mut headers = vec![("x-amz-content-sha256", hash.clone()), ("x-amz-date", date.clone())];
        if let Some(token) = self.token {
            names += ";x-amz-security-token";
            lines = format!("x-amz-security-token:{token}\n");
            headers.push(("x-amz-security-token", token.to_owned()));
        }
        let canonical = format!(
            "{method}\n{path}\n{query}\nhost:lab\nx-amz-content-sha256:{hash}\nx-amz-date:{date}\n{lines}\n{names}\n{hash}"
        );
        let (scope, signature) = self.signature(&date, &canonical);
        let id = self.id;
        headers.push((
            "authorization",
            format!("AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}"),
        ));
        let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        c.ask(method, target, &headers, sent).unwrap()
    }

    fn get(&self, c: &mut Client, target: &str) -> Answer {
        self.ask(c, "GET", target, b"", b"")
    }

    fn presign(&self, path: &str, expires: u64) -> String {
        let date = self.date();
        let credential = format!("{}%2F{}%2F{}%2Fs3%2Faws4_request", self.id, &date[..8], self.region);
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={date}&X-Amz-Expires={expires}\
             &X-Amz-SignedHeaders=host"
        );
        let canonical = format!("GET\n{path}\n{query}\nhost:lab\n\nhost\nUNSIGNED-PAYLOAD");
        format!("{path}?{query}&X-Amz-Signature={}", self.signature(&date, &canonical).1)
    }
}

fn lab() -> (Lab, Client) {
    let lab = Lab::builder()
        .bucket("b")
        .auth(Auth::Required)
        .access_key(AccessKey::new("good", "secret"))
        .access_key(AccessKey::new("temporary", "secret2").session_token("token"))
        .access_key(AccessKey::new("blind", "secret3").rights(Rights::no_list()))
        .start()
        .unwrap();
    lab.put("b", "k", &b"bytes"[..]);
    lab.put("b", "sp ace//x", &b"odd"[..]);
    let client = Client::new(&lab);
    (lab, client)
}

#[test]
fn right_signatures_pass_and_wrong_ones_do_not() {
    let (_lab, mut c) = lab();
    let good = Signer::new("good", "secret");
    assert_eq!(good.get(&mut c, "/b/k").text(), "bytes");
    assert_eq!(good.get(&mut c, "/b/sp%20ace//x").text(), "odd");
    assert_eq!(
        good.get(&mut c, "/b?prefix=sp&list-type=2").status,
        403,
        "signed in an order that is not canonical"
    );
    assert_eq!(good.get(&mut c, "/b?delimiter=%2F&list-type=2&prefix=sp%20ace%2F").one("KeyCount"), "1");
    assert_eq!(good.ask(&mut c, "PUT", "/b/new", b"abc", b"abc").status, 200);
    let altered = good.ask(&mut c, "PUT", "/b/new", b"abc", b"abd");
    assert_eq!((altered.status, altered.code().as_str()), (400, "XAmzContentSHA256Mismatch"));
    let refused = |answer: Answer| (answer.status, answer.code());
    let wrong = Signer::new("good", "guess").get(&mut c, "/b/k");
    assert_eq!(refused(wrong), (403, "SignatureDoesNotMatch".into()));
    let unknown = Signer::new("nobody", "secret").get(&mut c, "/b/k");
    assert_eq!(refused(unknown), (403, "InvalidAccessKeyId".into()));
    assert_eq!(refused(c.get("/b/k")), (403, "AccessDenied".into()));
    assert_eq!(c.head_of("/b/k").status, 403);
    assert_eq!(refused(c.get_with("/b/k", &[("authorization", "Basic x")])), (400, "InvalidRequest".into()));
    let late = Signer { ahead: -1000, ..good.clone() }.get(&mut c, "/b/k");
    assert_eq!(refused(late), (403, "RequestTimeTooSkewed".into()));
    let abroad = Signer { region: "eu-west-1", ..good }.get(&mut c, "/b/k");
    assert_eq!(abroad.one("Region"), "us-east-1");
    assert_eq!(refused(abroad), (400, "AuthorizationHeaderMalformed".into()));
}

#[test]
fn session_tokens_and_expiry() {
    let (lab, mut c) = lab();
    let temporary = Signer { token: Some("token"), ..Signer::new("temporary", "secret2") };
    assert_eq!(temporary.get(&mut c, "/b/k").status, 200);
    let other = Signer { token: Some("other"), ..temporary.clone() };
    assert_eq!(other.get(&mut c, "/b/k").code(), "InvalidToken");
    assert_eq!(Signer { token: None, ..temporary.clone() }.get(&mut c, "/b/k").code(), "InvalidAccessKeyId");
    assert!(lab.expire_access_key("temporary") && !lab.expire_access_key("nobody"));
    let expired = temporary.get(&mut c, "/b/k");
    assert_eq!((expired.status, expired.code().as_str()), (400, "ExpiredToken"));
    lab.set_access_key(AccessKey::new("temporary", "secret2").session_token("token"));
    assert_eq!(temporary.get(&mut c, "/b/k").status, 200, "renewed");
}

#[test]
fn presigned_addresses() {
    let (_lab, mut c) = lab();
    let good = Signer::new("good", "secret");
    assert_eq!(c.get(&good.presign("/b/k", 60)).text(), "bytes");
    assert_eq!(c.head_of(&good.presign("/b/k", 60)).status, 403, "signed for GET alone");
    assert_eq!(
        c.get(&good.presign("/b/k", 60).replace("/b/k?", "/b/other?")).code(),
        "SignatureDoesNotMatch"
    );
    let old = Signer { ahead: -100, ..good }.presign("/b/k", 60);
    assert_eq!(c.get(&old).one("Message"), "Request has expired");
}

#[test]
fn rights_hold_with_and_without_signatures() {
    let (lab, mut c) = lab();
    let blind = Signer::new("blind", "secret3");
    assert_eq!(blind.get(&mut c, "/b/k").status, 200);
    assert_eq!(blind.get(&mut c, "/b?list-type=2").status, 403);
    let absent = blind.get(&mut c, "/b/absent");
    assert_eq!((absent.status, absent.code().as_str()), (403, "AccessDenied"), "absence is not told");
    assert_eq!(Signer::new("good", "secret").get(&mut c, "/b/absent").status, 404);
    lab.set_auth(Auth::Open);
    assert_eq!(c.get("/b/absent").status, 404);
    lab.set_anonymous_rights(Rights { deny: vec![Op::HeadObject], deny_read: vec!["sp".into()] });
    assert_eq!(c.head_of("/b/k").status, 403);
    assert_eq!(c.get("/b/k").status, 200);
    assert_eq!(c.get("/b/sp%20ace//x").code(), "AccessDenied");
    assert_eq!(c.get("/b?list-type=2").status, 200);
    assert_eq!(
        Signer::new("blind", "any").get(&mut c, "/b?list-type=2").status,
        403,
        "a known key keeps its rights"
    );
    lab.set_access(Access::default());
    assert_eq!(c.head_of("/b/k").status, 200);
    assert_eq!(lab.access(), Access::default());
}
