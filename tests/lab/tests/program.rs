//! The admin endpoint and the program.

mod common;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Answer, Client};
use nearfs_lab::{Lab, fetch, stamp, tree_keys};
use serde_json::{Value, json};

fn admin(address: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
    let answer: Answer = Client::connect(address).ask(method, path, &[], &body).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

#[test]
fn the_admin_endpoint_steers_the_server() {
    let lab = Lab::builder().bucket("b").admin("127.0.0.1:0").start().unwrap();
    let at = lab.admin_address().unwrap();
    let ask = |method: &str, path: &str, body: Value| admin(at, method, path, &body);
    let none = Value::Null;

    assert_eq!(ask("PUT", "/model", json!({"first_byte_ms": 3, "list_ms": 5})).1["list_ms"], 5.0);
    assert_eq!(ask("PUT", "/model", json!({"list_ms": null})).1["first_byte_ms"], 3.0, "the rest stays");
    assert_eq!((lab.model().first_byte_ms, lab.model().list_ms), (3.0, None));
    let (status, error) = ask("PUT", "/model", json!({"first_bite_ms": 3}));
    assert!(status == 400 && error["error"].as_str().unwrap().contains("first_bite_ms"), "{error}");
    assert_eq!(ask("GET", "/model", none.clone()).1["connection_mbps"], 0.0);

    assert_eq!(
        ask("POST", "/synthetic", json!({"bucket": "b", "key": "k", "size": 100, "key_id": 4})).1["version"],
        1
    );
    assert_eq!(ask("POST", "/synthetic", json!({"bucket": "b", "key": "k", "size": 100})).1["version"], 2);
    assert_eq!(
        ask("POST", "/tree", json!({"bucket": "t", "prefix": "p", "dirs": 2, "files_per_dir": 3, "size": 1}))
            .1["objects"],
        6
    );
    assert_eq!(lab.keys("t").len(), 6);
    let put = Client::connect(at).put("/objects/b/a%2F%2Fb", &[], b"bytes");
    assert_eq!((put.status, lab.get("b", "a//b").unwrap().as_ref()), (200, &b"bytes"[..]));
    assert_eq!(ask("DELETE", "/objects/b/a//b", none.clone()).0, 200);
    assert_eq!(ask("DELETE", "/objects/b/a//b", none.clone()).0, 404);
    assert_eq!(ask("PUT", "/objects/b/", json!(1)).0, 400);

    let rule = json!({"ops": ["GetObject"], "key": "k", "times": 1, "fault": {"status": {"status": 503}}});
    let id = ask("POST", "/faults", rule).1["id"].as_u64().unwrap();
    let mut c = Client::new(&lab);
    assert_eq!((c.get("/b/k").status, c.get("/b/k").status), (503, 200));
    let rules = ask("GET", "/faults", none.clone()).1;
    assert_eq!((&rules[0]["fired"], &rules[0]["matched"]), (&json!(1), &json!(2)));
    assert_eq!(ask("DELETE", &format!("/faults/{id}"), none.clone()).0, 200);
    assert_eq!(ask("DELETE", &format!("/faults/{id}"), none.clone()).0, 404);
    assert_eq!(ask("POST", "/faults", json!({"fault": "stall"})).0, 400);
    assert_eq!(ask("POST", "/faults", json!({"ops": ["HeadObject"], "fault": "hangup"})).0, 200);
    assert_eq!(
        ask(
            "POST",
            "/faults",
            json!({"fault": {"swap": {"with": {"synthetic": {"size": 1, "key_id": 2}}}}, "key": "x"})
        )
        .0,
        200
    );
    assert!(Client::new(&lab).ask("HEAD", "/b/k", &[], b"").is_err());
    assert_eq!(ask("DELETE", "/faults", none.clone()).0, 200);
    assert!(lab.faults().is_empty());

    let counters = ask("GET", "/counters?reset=1", none.clone()).1;
    assert_eq!((&counters["requests"]["GetObject"], &counters["statuses"]["503"]), (&json!(2), &json!(1)));
    assert_eq!(lab.counters().total(), 0);
    c.get("/b/k");
    assert_eq!(ask("GET", "/log", none.clone()).1[0]["path"], "/b/k");
    let keys = ask("GET", "/keys", none.clone()).1;
    assert_eq!((&keys[0]["key"], &keys[0]["counters"]["body_bytes"]), (&json!("k"), &json!(100)));

    let access =
        json!({"auth": "required", "keys": [{"id": "i", "secret": "s", "rights": {"deny": ["GetObject"]}}]});
    assert_eq!(ask("PUT", "/access", access).0, 200);
    assert_eq!(c.get("/b/k").status, 403);
    assert_eq!(ask("GET", "/access", none.clone()).1["keys"][0]["id"], "i");
    assert_eq!(ask("GET", "/nothing", none).0, 404);
}

#[test]
fn the_plain_client_fetches_all_of_it() {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put_synthetic("b", "big file", 10_000_001, 1);
    let keys = lab.tree("b", "small", 3, 5, 1000);
    let report = fetch::run(lab.address(), 4, &fetch::parts("b", "big file", 10_000_001, 1 << 20)).unwrap();
    assert_eq!((report.bytes, report.requests), (10_000_001, 10));
    assert!(report.seconds > 0.0 && report.mb_per_second > 0.0 && report.cpu_seconds > 0.0);
    let report = fetch::run(lab.address(), 2, &fetch::whole("b", &keys)).unwrap();
    assert_eq!((report.bytes, report.requests), (15_000, 15));
    lab.reset_counters();
    let jobs = fetch::random("b", "big file", 10_000_001, 65_536, 50, 9);
    assert_eq!(fetch::run(lab.address(), 3, &jobs).unwrap().bytes, 50 * 65_536);
    let ranges: std::collections::BTreeSet<_> = lab.log().into_iter().map(|e| e.range).collect();
    assert!(ranges.len() > 30, "at random places: {}", ranges.len());
    assert!(
        fetch::run(lab.address(), 2, &fetch::whole("b", ["absent"])).unwrap_err().to_string().contains("404")
    );
    lab.fault(nearfs_lab::Rule::any(nearfs_lab::Fault::Cut { after: 10 }));
    assert!(fetch::run(lab.address(), 1, &fetch::whole("b", &keys)).is_err());
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_program_serves_and_fetches() {
    let program = env!("CARGO_BIN_EXE_nearfs-lab");
    let mut command = Command::new(program);
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--bucket",
        "empty",
        "--list-ms",
        "2",
    ]);
    command.args(["--seed", "big=b/big:3M", "--seed", "tree=b/small:2:3:10K", "--conn-mbps", "500"]);
    let mut server = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let address = |name: &str| {
        ready[name].as_str().unwrap().strip_prefix("http://").unwrap().parse::<SocketAddr>().unwrap()
    };
    let (s3, at) = (address("endpoint"), address("admin"));
    assert_eq!(Client::connect(s3).get("/").all("Name"), ["b", "empty"]);
    let file = Client::connect(s3).get("/b/small/d0001/f00002.bin");
    assert_eq!(stamp::verify(&file.body, 0, stamp::key_id(&tree_keys("small", 2, 3)[5])), Ok(1));
    assert_eq!(admin(at, "GET", "/model", &Value::Null).1["connection_mbps"], 500.0);
    let fetched = Command::new(program)
        .args(["fetch", "--addr", &s3.to_string(), "--conns", "3", "--part", "1M", "--big", "b/big:3M"])
        .args(["--tree", "b/small:2:3:10K"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&fetched.stdout).unwrap();
    assert_eq!((&report["bytes"], &report["requests"]), (&json!((3 << 20) + 6 * 10_240), &json!(9)));
    for bad in ["big=b:1", "tree=b/p:1:1", "big=b/k:1X", "other=x"] {
        let refused = Command::new(program).args(["serve", "--seed", bad]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{bad}");
    }
    let failed = Command::new(program)
        .args(["fetch", "--addr", &s3.to_string(), "--big", "b/none:1M"])
        .output()
        .unwrap();
    assert_eq!(
        (failed.status.code(), String::from_utf8_lossy(&failed.stderr).contains("404")),
        (Some(2), true)
    );
    assert!(Command::new("kill").args(["-TERM", &server.0.id().to_string()]).status().unwrap().success());
    let deadline = Instant::now() + Duration::from_secs(10);
    let status = loop {
        if let Some(status) = server.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it ends when told to");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
}

#[test]
fn keys_on_the_command_line_are_required() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfs-lab"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--key", "id:secret:token"]);
    let mut server = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let at = ready["admin"].as_str().unwrap().strip_prefix("http://").unwrap().parse().unwrap();
    let access = admin(at, "GET", "/access", &Value::Null).1;
    assert_eq!((&access["auth"], &access["keys"][0]["session_token"]), (&json!("required"), &json!("token")));
}
