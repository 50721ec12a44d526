//! The admin endpoint: the server steered from another process, in JSON over HTTP on a port of its own.
//! Its paths are listed at [`crate::Lab::admin_address`].

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fault::{FaultId, Rule};
use crate::model::Model;
use crate::ops::put::plain;
use crate::request::decode;
use crate::server::Shared;
use crate::store::{Condition, Object};

/// Longest body of an admin request.
const MAX_BODY: usize = 1 << 30;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Synthetic {
    bucket: String,
    key: String,
    size: u64,
    key_id: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tree {
    bucket: String,
    prefix: String,
    dirs: usize,
    files_per_dir: usize,
    size: u64,
}

/// Accepts admin connections until `stop` changes.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => return Ok(()),
        };
        let Ok((stream, _)) = accepted else { continue };
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| handle(&shared, request));
            // A connection that ends badly concerns its client alone.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn handle(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let (status, value) = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => {
            let query = parts.uri.query().unwrap_or("");
            match answer(shared, &parts.method, parts.uri.path(), query, &body.to_bytes()) {
                Ok(value) => (200, value),
                Err((status, message)) => (status, json!({ "error": message })),
            }
        }
        Err(error) => (400, json!({ "error": error.to_string() })),
    };
    let mut response = Response::new(Full::new(Bytes::from(format!("{value}\n"))));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    response
        .headers_mut()
        .insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    Ok(response)
}

type Refusal = (u16, String);

fn answer(
    shared: &Arc<Shared>,
    method: &Method,
    path: &str,
    query: &str,
    body: &Bytes,
) -> Result<Value, Refusal> {
    let (room, rest) =
        path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
    match (method, room, rest) {
        (&Method::GET, "model", "") => show(&*shared.model.read()),
        (&Method::PUT, "model", "") => {
            let changes: serde_json::Map<String, Value> = parse(body)?;
            let mut model = shared.model.write();
            let mut value = show(&*model)?;
            for (name, change) in changes {
                value[name] = change;
            }
            *model = serde_json::from_value::<Model>(value).map_err(bad)?;
            show(&*model)
        }
        (&Method::GET, "faults", "") => show(&shared.faults.states()),
        (&Method::POST, "faults", "") => {
            let id = shared.faults.add(parse::<Rule>(body)?);
            Ok(json!({ "id": id }))
        }
        (&Method::DELETE, "faults", "") => {
            shared.faults.clear();
            Ok(Value::Null)
        }
        (&Method::DELETE, "faults", id) => {
            let id = id.parse().map_err(|_| (400, format!("{id} is not the number of a rule")))?;
            if shared.faults.remove(FaultId(id)) {
                Ok(Value::Null)
            } else {
                Err((404, "there is no such rule".to_owned()))
            }
        }
        (&Method::GET, "access", "") => show(&*shared.access.read()),
        (&Method::PUT, "access", "") => {
            *shared.access.write() = parse(body)?;
            Ok(Value::Null)
        }
        (&Method::GET, "counters", "") => {
            let counters = show(&shared.tally.snapshot())?;
            if query == "reset=1" {
                shared.tally.reset();
            }
            Ok(counters)
        }
        (&Method::GET, "keys", "") => {
            let all = shared.tally.all_keys().into_iter().map(|(bucket, key, counters)| {
                json!({ "bucket": bucket, "key": String::from_utf8_lossy(&key), "counters": counters })
            });
            Ok(all.collect())
        }
        (&Method::GET, "log", "") => show(&shared.tally.log()),
        (&Method::PUT | &Method::DELETE, "objects", name) => {
            let (bucket, key) = name
                .split_once('/')
                .filter(|(_, k)| !k.is_empty())
                .ok_or((400, "name BUCKET/KEY".to_owned()))?;
            let (bucket, key) =
                (String::from_utf8_lossy(&decode(bucket, false)).into_owned(), decode(key, false));
            if method == Method::PUT {
                return Ok(json!({ "version": shared.store.insert(&bucket, &key, plain(body.clone())) }));
            }
            match shared.store.delete(&bucket, &key, &Condition::default()) {
                Ok(true) => Ok(Value::Null),
                _ => Err((404, "there is no such object".to_owned())),
            }
        }
        (&Method::POST, "synthetic", "") => {
            let Synthetic { bucket, key, size, key_id } = parse(body)?;
            let object = Object::synthetic(key_id.unwrap_or_else(|| crate::stamp::key_id(&key)), size);
            Ok(json!({ "version": shared.store.insert(&bucket, key.as_bytes(), object) }))
        }
        (&Method::POST, "tree", "") => {
            let Tree { bucket, prefix, dirs, files_per_dir, size } = parse(body)?;
            let keys = shared.store.tree(&bucket, &prefix, dirs, files_per_dir, size);
            Ok(json!({ "objects": keys.len() }))
        }
        _ => Err((404, format!("there is no {method} {path}"))),
    }
}

fn parse<T: serde::de::DeserializeOwned>(body: &Bytes) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(bad)
}

fn show<T: Serialize>(value: &T) -> Result<Value, Refusal> {
    serde_json::to_value(value).map_err(|e| (500, e.to_string()))
}

fn bad(error: serde_json::Error) -> Refusal {
    (400, error.to_string())
}
