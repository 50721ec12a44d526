//! An S3 server for tests, examples and benches: objects kept exactly by the bytes of their keys, synthetic
//! objects that cost no memory, a latency model, faults and counters, all steerable while it runs.
//!
//! ```
//! use nearfs_lab::{AccessKey, Auth, Fault, Lab, Model, Op, Rights, Rule, stamp};
//!
//! let lab = Lab::builder().bucket("b").start()?;              // on 127.0.0.1, its own threads; drop stops it
//! let url = lab.endpoint();                                   // "http://127.0.0.1:PORT", path style, any credentials
//! lab.put("b", "a//b", &b"bytes"[..]);                        // real bytes; keys are bytes, never rewritten
//! let version = lab.put_synthetic("b", "big", 1 << 40, 7);    // stamped content, no memory; key id 7
//! lab.tree("b", "small", 50, 100, 100 << 10);                 // small/d0000/f00000.bin …, id = stamp::key_id(key)
//! assert!(stamp::verify(&stamp::make(64, 7, version), 0, 7).is_ok());
//!
//! lab.set_model(Model::network(30.0, 90.0));                  // 30 ms to the first byte, 90 MB/s per connection
//! lab.fault(Rule::on(Op::GetObject, Fault::status(503)).key("big").skip(2).times(1));
//! lab.fault(Rule::on(Op::GetObject, Fault::Stall { after: 1 << 20 }).prefix("small/").once());
//! lab.fault(Rule::on(Op::HeadObject, Fault::status(503)).or(Op::ListObjectsV2).probability(0.3, 42));
//! lab.clear_faults();
//!
//! assert_eq!(lab.counters().of(Op::GetObject), 0);            // by operation, statuses, bytes, connections
//! assert_eq!(lab.key_counters("b", "big").body_bytes, 0);     // by key; listings under their prefix
//! assert!(lab.log().is_empty());                              // method, raw path, range, if-match, signed, …
//! lab.reset_counters();
//!
//! lab.set_access_key(AccessKey::new("id", "secret").session_token("t").rights(Rights::no_list()));
//! lab.set_auth(Auth::Required);                               // 403 or 400 for unsigned, wrong and expired
//! lab.expire_access_key("id");
//! # let _ = url;
//! # std::io::Result::Ok(())
//! ```
//!
//! * Path style (`/bucket/key`). Requests name their operation as in the S3 API reference: [`Op`].
//! * Every rule that matches acts, in the order added; see [`Fault`] for what can go wrong and [`Rule`] for when.
//! * Overwriting a key gives it the next version; synthetic content shows it in its stamps: [`stamp`].
//! * Signatures are not looked at unless [`Auth::Required`]; rights ([`Rights`]) hold in either case.
//! * [`fetch`] is the plain parallel client that benches compare with; the binary `nearfs-lab` has both.
//! * Listings without `encoding-type=url` show control characters as character references, which XML parsers
//!   refuse, as on S3. With it names are form-encoded as on S3: a space is `+`, a plus is `%2B`.

mod access;
mod admin;
mod body;
mod call;
mod content;
mod counters;
mod error;
mod fault;
pub mod fetch;
mod lab;
mod listing;
mod model;
mod op;
mod ops;
mod request;
mod rng;
mod server;
pub mod stamp;
mod store;
mod xml;

pub use access::{Access, AccessKey, Auth, Rights};
pub use counters::{Counters, KeyCounters, LogEntry};
pub use fault::{Fault, FaultId, Replacement, Rule, RuleState};
pub use lab::{Lab, LabBuilder, tree_keys};
pub use model::Model;
pub use op::Op;
