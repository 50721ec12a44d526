use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::config::RetryConfig;
use crate::path::FsPath;

#[tokio::test(start_paused = true)]
async fn an_open_gate_costs_no_time_and_a_wish_for_a_pause_stops_everybody() {
    let (gate, config, path) = (Gate::new(), RetryConfig::default(), FsPath::root());
    let patience = Patience::new(&config, "read", &path);
    let start = Instant::now();
    let pass = gate.pass(&patience).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let e = Error::new(ErrorKind::Throttled, "x").with_retry(Retry::Later(Some(Duration::from_secs(2))));
    gate.failed(pass, &e);
    assert!(gate.is_closed());
    gate.pass(&patience).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(2));
    let longer =
        Error::new(ErrorKind::Throttled, "x").with_retry(Retry::Later(Some(Duration::from_secs(99))));
    gate.failed(Pass::now(), &longer);
    let e = gate.pass(&patience).await.unwrap_err();
    assert_eq!((e.kind(), e.retry()), (ErrorKind::Throttled, Retry::Exhausted));
    assert!(start.elapsed() <= Duration::from_secs(61));
}

#[tokio::test(start_paused = true)]
async fn other_failures_do_not_close_it() {
    let gate = Gate::new();
    gate.failed(Pass::now(), &Error::new(ErrorKind::Unavailable, "x"));
    assert!(!gate.is_closed());
}

/// What refuses calls in the tests below.
enum Refusals {
    /// This share, drawn by chance from a fixed seed, at any rate.
    Share(f64, Box<StdRng>),
    /// Those above a rate, with half a second's worth of unused calls saved up.
    Above { rate: f64, tokens: f64, at: Instant },
    /// All in this time.
    Outage(Instant, Instant),
}

impl Refusals {
    fn share(share: f64) -> Self {
        Refusals::Share(share, Box::new(StdRng::seed_from_u64(1)))
    }

    fn above(rate: f64) -> Self {
        Refusals::Above { rate, tokens: rate / 2.0, at: Instant::now() }
    }

    fn refuses(&mut self) -> bool {
        let now = Instant::now();
        match self {
            Refusals::Share(share, rng) => rng.random_bool(*share),
            Refusals::Above { rate, tokens, at } => {
                *tokens = (*tokens + (now - *at).as_secs_f64() * *rate).min(*rate / 2.0);
                *at = now;
                let empty = *tokens < 1.0;
                *tokens -= if empty { 0.0 } else { 1.0 };
                empty
            }
            Refusals::Outage(from, to) => (*from..*to).contains(&now),
        }
    }
}

/// A store whose answers take 30 ms, and callers who use it through gates: as fast as they can, with pauses after
/// refusals as [`Patience`] makes them, but from a fixed seed and without end.
#[derive(Clone)]
struct World {
    store: Arc<Mutex<Refusals>>,
    seconds: Arc<Mutex<Vec<(u32, u32)>>>,
}

impl World {
    fn new(refusals: Refusals) -> Self {
        World { store: Arc::new(Mutex::new(refusals)), seconds: Arc::default() }
    }

    /// So many callers of each gate (`None`: without one) for so many seconds; the answers and refusals of each.
    async fn run(self, gates: &[Option<Arc<Gate>>], callers: usize, seconds: u64) -> Vec<(u32, u32)> {
        let start = Instant::now();
        self.seconds.lock().resize(seconds as usize, (0, 0));
        let end = start + Duration::from_secs(seconds);
        let workers: Vec<_> = (0..gates.len() * callers)
            .map(|n| {
                let (world, gate) = (self.clone(), gates[n / callers].clone());
                let rng = StdRng::seed_from_u64(n as u64);
                tokio::spawn(tokio::time::timeout_at(end, world.call(gate, rng, start)))
            })
            .collect();
        for worker in workers {
            worker.await.unwrap().unwrap_err();
        }
        std::mem::take(&mut *self.seconds.lock())
    }

    async fn call(self, gate: Option<Arc<Gate>>, mut rng: StdRng, start: Instant) {
        let (config, path) = (RetryConfig::default(), FsPath::root());
        let mut refusals = 0;
        loop {
            let pass = match &gate {
                Some(gate) => gate.pass(&Patience::new(&config, "read", &path)).await.unwrap(),
                None => Pass::now(),
            };
            tokio::time::sleep(Duration::from_millis(30)).await;
            let refused = self.store.lock().refuses();
            if let Some(second) = self.seconds.lock().get_mut(start.elapsed().as_secs() as usize) {
                *(if refused { &mut second.1 } else { &mut second.0 }) += 1;
            }
            if !refused {
                gate.iter().for_each(|gate| gate.succeeded(pass));
                refusals = 0;
                continue;
            }
            let e = Error::new(ErrorKind::Throttled, "x");
            gate.iter().for_each(|gate| gate.failed(pass, &e));
            let bound = config.initial_backoff.saturating_mul(1 << refusals).min(config.max_backoff);
            refusals = (refusals + 1).min(config.max_retries);
            tokio::time::sleep(bound.mul_f64(rng.random::<f64>())).await;
        }
    }
}

fn gates(n: usize) -> Vec<Option<Arc<Gate>>> {
    (0..n).map(|_| Some(Arc::new(Gate::new()))).collect()
}

/// Answers a second, and the share of refusals.
fn of(seconds: &[(u32, u32)]) -> (f64, f64) {
    let (good, refused) =
        seconds.iter().fold((0.0, 0.0), |(g, r), s| (g + f64::from(s.0), r + f64::from(s.1)));
    (good / seconds.len() as f64, refused / (good + refused))
}

#[tokio::test(start_paused = true)]
async fn a_few_refusals_at_any_rate_slow_nobody_down() {
    let (free, _) = of(&World::new(Refusals::share(0.01)).run(&[None], 64, 10).await);
    let (rate, _) = of(&World::new(Refusals::share(0.01)).run(&gates(1), 64, 60).await);
    println!("{rate:.0} answers a second, {free:.0} without a gate");
    assert!(rate > 0.9 * free);
}

/// Slowing down does not help, so it ends.
#[tokio::test(start_paused = true)]
async fn e3_a_share_refused_at_any_rate_costs_less_than_half_the_rate() {
    for share in [0.15, 0.3, 0.4] {
        let (free, _) = of(&World::new(Refusals::share(share)).run(&[None], 64, 30).await);
        let seconds = World::new(Refusals::share(share)).run(&gates(1), 64, 120).await;
        let fast = seconds.iter().position(|s| f64::from(s.0) > free / 2.0).expect("it becomes fast");
        let (rate, _) = of(&seconds[40..]);
        println!("{share}: fast after {fast} s, then {rate:.0} answers a second, {free:.0} without a gate");
        assert!(fast <= 30, "{seconds:?}");
        assert!(rate >= free / 2.0, "{seconds:?}");
    }
}

/// Slowing down helps, and does not end: also not for those who see only the refusals that others cause.
#[tokio::test(start_paused = true)]
async fn e3_a_limit_shared_by_eight_is_used_and_hardly_overrun() {
    let world = World::new(Refusals::above(100.0));
    let seconds = world.run(&gates(8), 8, 200).await;
    let ((_, warming_up), (rate, share)) = (of(&seconds[..20]), of(&seconds[20..]));
    println!("{warming_up:.2} refused in 20 s, then {share:.2}, at {rate:.1} answers a second");
    assert!(warming_up < 0.3, "{seconds:?}");
    assert!(share < 0.2 && rate > 95.0, "{seconds:?}");
    let (rate, share) = of(&World::new(Refusals::above(100.0)).run(&gates(1), 64, 100).await);
    println!("alone {share:.2} refused, at {rate:.1} answers a second");
    assert!(share < 0.1 && rate > 90.0);
}

#[tokio::test(start_paused = true)]
async fn e3_an_outage_is_met_with_few_calls_and_soon_over() {
    let from = Instant::now() + Duration::from_secs(10);
    let outage = Refusals::Outage(from, from + Duration::from_secs(5));
    let seconds = World::new(outage).run(&gates(1), 64, 40).await;
    let calls: u32 = seconds.iter().map(|s| s.1).sum();
    let full = of(&seconds[..10]).0;
    let back = seconds[15..].iter().position(|s| f64::from(s.0) > 0.8 * full).expect("it recovers");
    println!("{calls} calls in an outage of 5 s by 64 callers; back to {full:.0} a second after {back} s");
    assert!(calls <= 64 * 5, "{seconds:?}");
    assert!(back <= 10, "{seconds:?}");
    assert!(of(&seconds[25..]).0 > 0.9 * full, "{seconds:?}");
}

/// What was concluded of one store, or time, does not hold for the next.
#[tokio::test(start_paused = true)]
async fn conclusions_are_revised() {
    let gates = gates(1);
    let before = World::new(Refusals::share(0.3)).run(&gates, 64, 60).await;
    let limited = World::new(Refusals::above(100.0)).run(&gates, 64, 60).await;
    let lifted = World::new(Refusals::share(0.0)).run(&gates, 64, 30).await;
    let (rate, share) = of(&limited[20..]);
    println!("{:.0} a second, then {rate:.0} with {share:.2} refused", of(&before[40..]).0);
    assert!(of(&before[40..]).0 > 500.0, "{before:?}");
    assert!(share < 0.2 && rate > 80.0, "{limited:?}");
    assert!(of(&lifted[15..]).0 > 1_800.0, "{lifted:?}");
}
