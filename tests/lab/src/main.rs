//! `nearfs-lab`: the test server and the plain parallel client as a program.

use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use nearfs_lab::{AccessKey, Auth, Lab, Model, fetch, stamp, tree_keys};

/// An S3 server for tests and benches, and the plain client to compare with.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve S3 (path style) until SIGINT or SIGTERM.
    Serve(Serve),
    /// Fetch objects over plain parallel connections and print what it took as JSON.
    Fetch(Fetch),
}

#[derive(Args)]
struct Serve {
    /// Where to serve S3.
    #[arg(long, default_value = "127.0.0.1:9000")]
    listen: String,
    /// Where to serve the admin endpoint.
    #[arg(long, default_value = "127.0.0.1:9001")]
    admin: String,
    /// An empty bucket (repeatable).
    #[arg(long)]
    bucket: Vec<String>,
    /// Synthetic objects: big=BUCKET/KEY:SIZE or tree=BUCKET/PREFIX:DIRS:FILES:SIZE; SIZE takes K, M, G, T (repeatable).
    #[arg(long)]
    seed: Vec<Seed>,
    /// Milliseconds to the first byte of every answer.
    #[arg(long, default_value_t = 0.0)]
    ttfb_ms: f64,
    /// Up to so many milliseconds more.
    #[arg(long, default_value_t = 0.0)]
    jitter_ms: f64,
    /// Milliseconds for listings instead.
    #[arg(long)]
    list_ms: Option<f64>,
    /// Milliseconds for HEAD instead.
    #[arg(long)]
    head_ms: Option<f64>,
    /// Rate of each connection in 10^6 bytes a second; 0 = no limit.
    #[arg(long, default_value_t = 0.0)]
    conn_mbps: f64,
    /// Rate of all connections in 10^6 bytes a second; 0 = no limit.
    #[arg(long, default_value_t = 0.0)]
    total_mbps: f64,
    /// Share of GETs, in percent, that take --slow-ms instead.
    #[arg(long, default_value_t = 0.0)]
    slow_percent: f64,
    /// Milliseconds to the first byte of those.
    #[arg(long, default_value_t = 0.0)]
    slow_ms: f64,
    /// The region of the buckets.
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// Require signatures with this key, as ID:SECRET or ID:SECRET:TOKEN (repeatable).
    #[arg(long)]
    key: Vec<Key>,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Requests kept in the log.
    #[arg(long, default_value_t = 4096)]
    log: usize,
}

#[derive(Args)]
struct Fetch {
    /// The server.
    #[arg(long, default_value = "127.0.0.1:9000")]
    addr: String,
    /// Connections, each with a thread.
    #[arg(long, default_value_t = 1)]
    conns: usize,
    /// Length of each range of --big.
    #[arg(long, default_value = "8M", value_parser = size)]
    part: u64,
    /// One object in ranges: BUCKET/KEY:SIZE.
    #[arg(long)]
    big: Option<String>,
    /// Whole objects: BUCKET/PREFIX:DIRS:FILES:SIZE (repeatable).
    #[arg(long)]
    tree: Vec<String>,
    /// So many ranges of --part at random places of --big instead of all in order.
    #[arg(long)]
    random: Option<usize>,
    /// Seed of those places.
    #[arg(long, default_value_t = 1)]
    random_seed: u64,
}

#[derive(Clone)]
enum Seed {
    Big { bucket: String, key: String, size: u64 },
    Tree { bucket: String, prefix: String, dirs: usize, files: usize, size: u64 },
}

impl std::str::FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("big", spec)) => big(spec).map(|(bucket, key, size)| Self::Big { bucket, key, size }),
            Some(("tree", spec)) => tree(spec),
            _ => Err("expected big=BUCKET/KEY:SIZE or tree=BUCKET/PREFIX:DIRS:FILES:SIZE".to_owned()),
        }
    }
}

#[derive(Clone)]
struct Key(AccessKey);

impl std::str::FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = text.splitn(3, ':');
        match (fields.next(), fields.next(), fields.next()) {
            (Some(id), Some(secret), None) => Ok(Self(AccessKey::new(id, secret))),
            (Some(id), Some(secret), Some(token)) => {
                Ok(Self(AccessKey::new(id, secret).session_token(token)))
            }
            _ => Err("expected ID:SECRET or ID:SECRET:TOKEN".to_owned()),
        }
    }
}

fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        Some('T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text} is not a size such as 100K or 1G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

fn place(text: &str) -> Result<(String, String), String> {
    let (bucket, key) = text.split_once('/').ok_or_else(|| format!("{text} is not BUCKET/KEY"))?;
    Ok((bucket.to_owned(), key.to_owned()))
}

fn big(spec: &str) -> Result<(String, String, u64), String> {
    let (name, length) = spec.rsplit_once(':').ok_or_else(|| format!("{spec} is not BUCKET/KEY:SIZE"))?;
    let (bucket, key) = place(name)?;
    Ok((bucket, key, size(length)?))
}

fn tree(spec: &str) -> Result<Seed, String> {
    let wrong = || format!("{spec} is not BUCKET/PREFIX:DIRS:FILES:SIZE");
    let fields: Vec<&str> = spec.rsplitn(4, ':').collect();
    let [length, files, dirs, name] = fields[..] else { return Err(wrong()) };
    let (bucket, prefix) = place(name)?;
    let (dirs, files) = (dirs.parse().map_err(|_| wrong())?, files.parse().map_err(|_| wrong())?);
    Ok(Seed::Tree { bucket, prefix, dirs, files, size: size(length)? })
}

fn serve(args: Serve) -> io::Result<()> {
    let model = Model {
        first_byte_ms: args.ttfb_ms,
        jitter_ms: args.jitter_ms,
        list_ms: args.list_ms,
        head_ms: args.head_ms,
        connection_mbps: args.conn_mbps,
        total_mbps: args.total_mbps,
        slow_percent: args.slow_percent,
        slow_ms: args.slow_ms,
        frozen: false,
    };
    let mut builder = Lab::builder()
        .listen(args.listen)
        .admin(args.admin)
        .model(model)
        .region(args.region)
        .threads(args.threads);
    builder = builder.log_size(args.log);
    for bucket in args.bucket {
        builder = builder.bucket(bucket);
    }
    if !args.key.is_empty() {
        builder = builder.auth(Auth::Required);
    }
    for Key(key) in args.key {
        builder = builder.access_key(key);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before the server is up: from then on a signal ends it in good order.
        let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let lab = builder.start()?;
        for seed in args.seed {
            match seed {
                Seed::Big { bucket, key, size } => {
                    lab.put_synthetic(&bucket, &key, size, stamp::key_id(&key));
                }
                Seed::Tree { bucket, prefix, dirs, files, size } => {
                    lab.tree(&bucket, &prefix, dirs, files, size);
                }
            }
        }
        let admin = lab.admin_address().map_or_else(String::new, |a| format!("http://{a}"));
        writeln!(io::stdout(), "{{\"endpoint\":\"{}\",\"admin\":\"{admin}\"}}", lab.endpoint())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted,
            _ = terminated.recv() => Ok(()),
        }
    })
}

fn run_fetch(args: Fetch) -> Result<(), Box<dyn std::error::Error>> {
    let address: SocketAddr = args.addr.to_socket_addrs()?.next().ok_or("the address has no host")?;
    let mut jobs = Vec::new();
    if let Some(spec) = &args.big {
        let (bucket, key, size) = big(spec)?;
        jobs = match args.random {
            Some(count) => fetch::random(&bucket, &key, size, args.part, count, args.random_seed),
            None => fetch::parts(&bucket, &key, size, args.part),
        };
    }
    for spec in &args.tree {
        if let Seed::Tree { bucket, prefix, dirs, files, .. } = tree(spec)? {
            jobs.extend(fetch::whole(&bucket, tree_keys(&prefix, dirs, files)));
        }
    }
    let report = fetch::run(address, args.conns, &jobs)?;
    writeln!(io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(args) => serve(args).map_err(Into::into),
        Command::Fetch(args) => run_fetch(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nearfs-lab: {error}");
            ExitCode::from(2)
        }
    }
}
