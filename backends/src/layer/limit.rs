//! A fair limit on requests in flight: no file takes all places, and silent requests lose theirs.
//!
//! Why a plain semaphore is not enough: eight objects of a store that has fallen silent, with sixteen readers each,
//! take all of 128 permits and keep them until a time-out; every healthy file waits as long. Here
//!
//! * **a file gets at most its share** of the places (max-min fairness: what files with few requests leave over goes to
//!   those that want more, in equal parts; never less than [`SMALLEST_SHARE`]), and an eighth of all places stays free
//!   of shares, so that a newcomer finds room;
//! * **places go round by file**, not by request: a file with a thousand waiting requests delays another by one;
//! * **a request that the store keeps waiting** for [`SILENCE`] **gives its place back** and is counted as stalled; a
//!   file with [`MAX_STALLED`] such requests starts no further ones until some end. There are at most as many stalled
//!   requests as places, so what is in flight is bounded by twice the limit;
//! * a stream whose reader is busy elsewhere for that long gives its place back too: it keeps nobody waiting.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::{LIMIT_RUNNING, LIMIT_STALLED, LIMIT_WAIT_SECONDS};
use crate::path::FsPath;

/// Places that a file may take however many files there are.
const SMALLEST_SHARE: usize = 4;
/// One in so many places is left to files that have none yet.
const NEWCOMERS: usize = 8;
/// Time without an answer after which a request gives its place back.
const SILENCE: Duration = Duration::from_secs(2);
/// Stalled requests of one file beyond which it starts no others.
const MAX_STALLED: usize = 8;
/// How often waiting requests look for silent ones.
const TICK: Duration = Duration::from_millis(250);

/// The limit. Cloning shares it.
#[derive(Clone)]
pub(super) struct Limit(Arc<Shared>);

struct Shared {
    places: usize,
    class: &'static str,
    start: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: usize,
    stalled: usize,
    /// Files with requests that run, stall or wait.
    files: HashMap<FsPath, Usage>,
    /// Files with waiting requests, in the order in which they come next.
    turns: VecDeque<FsPath>,
    held: HashMap<u64, Arc<Held>>,
    next_id: u64,
    looked_at: Option<Instant>,
}

#[derive(Default)]
struct Usage {
    running: usize,
    stalled: usize,
    waiting: VecDeque<Arc<Waiter>>,
}

struct Waiter {
    patience: Duration,
    call: Notify,
    /// The place that was given while the waiter slept.
    given: Mutex<Option<Place>>,
}

/// A request that holds, or held, a place.
struct Held {
    path: FsPath,
    /// Milliseconds since the start, times two, plus one while the reader is the one to move.
    clock: AtomicU64,
    /// How long the store may be silent.
    patience: Duration,
    /// Not `Running`: the fast path looks here.
    away: AtomicBool,
    /// Changed only while the state is locked.
    standing: Mutex<Standing>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Running,
    /// The store is silent; counted as stalled.
    Stalled,
    /// The reader is elsewhere; not counted.
    Parked,
}

/// A place among the requests in flight, given back when dropped.
pub(super) struct Place {
    id: u64,
    held: Arc<Held>,
    limit: Limit,
}

impl Limit {
    pub(super) fn new(places: usize, class: &'static str) -> Self {
        let state = Mutex::default();
        Limit(Arc::new(Shared { places: places.max(1), class, start: Instant::now(), state }))
    }

    /// Waits for a place for a request on `path` that shows its first progress `extra` later than others.
    ///
    /// # Cancellation
    /// Dropping the future gives up the turn.
    pub(super) async fn take(&self, path: &FsPath, extra: Duration) -> Place {
        let patience = SILENCE + extra;
        let waiter = Arc::new(Waiter { patience, call: Notify::new(), given: Mutex::new(None) });
        {
            let mut state = self.0.state.lock();
            if state.turns.is_empty() && state.running < self.0.places && self.has_share(&state, path) {
                return self.admit(&mut state, path, patience);
            }
            let usage = state.files.entry(path.clone()).or_default();
            usage.waiting.push_back(waiter.clone());
            if usage.waiting.len() == 1 {
                state.turns.push_back(path.clone());
            }
            // Those before may wait only because their files have their shares.
            self.give_out(&mut state);
        }
        let started = Instant::now();
        let turn = Turn { limit: self, path, waiter: &waiter };
        let place = loop {
            let given = waiter.given.lock().take();
            if let Some(place) = given {
                break place;
            }
            // The tick is for requests that fall silent: nothing else would wake anybody then.
            let _ = tokio::time::timeout(TICK, waiter.call.notified()).await;
            let mut state = self.0.state.lock();
            self.look_for_silence(&mut state);
            self.give_out(&mut state);
        };
        drop(turn);
        // The clock of the place started when it was given; that may be a while ago for a task that slept.
        place.held.set_clock(self.now(), false);
        LIMIT_WAIT_SECONDS.histogram([self.0.class]).record(started.elapsed().as_secs_f64());
        place
    }

    /// Requests that run, and requests that are stalled.
    #[cfg(test)]
    fn in_flight(&self) -> (usize, usize) {
        let state = self.0.state.lock();
        (state.running, state.stalled)
    }

    fn now(&self) -> u64 {
        self.0.start.elapsed().as_millis() as u64
    }

    /// Whether a file may have one more place.
    fn has_share(&self, state: &State, path: &FsPath) -> bool {
        let Some(usage) = state.files.get(path) else { return true };
        if usage.stalled >= MAX_STALLED {
            return false;
        }
        // With so many files the share is the smallest one, whatever counting them would say.
        let many = self.0.places / SMALLEST_SHARE + self.0.places / MAX_STALLED;
        let share = if state.files.len() > many { SMALLEST_SHARE } else { self.share(state, path) };
        usage.running < share
    }

    /// The places that `path`, which wants more, may have.
    fn share(&self, state: &State, path: &FsPath) -> usize {
        let shared = self.0.places - self.0.places / NEWCOMERS;
        let even = shared / state.files.len().max(1);
        let (mut hungry, mut taken) = (1, 0);
        for (_, usage) in state.files.iter().filter(|(other, _)| *other != path) {
            let wants_more = !usage.waiting.is_empty() && usage.stalled < MAX_STALLED;
            if wants_more || usage.running > even {
                hungry += 1;
            } else {
                taken += usage.running;
            }
        }
        (shared.saturating_sub(taken) / hungry).max(SMALLEST_SHARE)
    }

    fn admit(&self, state: &mut State, path: &FsPath, patience: Duration) -> Place {
        state.running += 1;
        state.files.entry(path.clone()).or_default().running += 1;
        let id = state.next_id;
        state.next_id += 1;
        let held = Arc::new(Held {
            path: path.clone(),
            clock: AtomicU64::new(self.now() * 2),
            patience,
            away: AtomicBool::new(false),
            standing: Mutex::new(Standing::Running),
        });
        state.held.insert(id, held.clone());
        LIMIT_RUNNING.gauge([self.0.class]).set(state.running as f64);
        Place { id, held, limit: self.clone() }
    }

    /// Gives free places to waiting requests, file by file.
    fn give_out(&self, state: &mut State) {
        let mut passed_over = 0;
        while state.running < self.0.places && passed_over < state.turns.len() {
            let Some(path) = state.turns.pop_front() else { return };
            if !self.has_share(state, &path) {
                state.turns.push_back(path);
                passed_over += 1;
                continue;
            }
            let usage = state.files.entry(path.clone()).or_default();
            let Some(waiter) = usage.waiting.pop_front() else { continue };
            if !usage.waiting.is_empty() {
                state.turns.push_back(path.clone());
            }
            let place = self.admit(state, &path, waiter.patience);
            *waiter.given.lock() = Some(place);
            waiter.call.notify_one();
            passed_over = 0;
        }
    }

    fn look_for_silence(&self, state: &mut State) {
        let now = Instant::now();
        if state.looked_at.is_some_and(|at| now - at < TICK / 2) {
            return;
        }
        state.looked_at = Some(now);
        let now = self.now();
        let held: Vec<_> = state.held.values().cloned().collect();
        for one in held {
            if *one.standing.lock() != Standing::Running {
                continue;
            }
            let clock = one.clock.load(Ordering::Relaxed);
            let (silent, reader_moves) =
                (Duration::from_millis(now.saturating_sub(clock / 2)), clock % 2 == 1);
            let standing = match reader_moves {
                true if silent > SILENCE => Standing::Parked,
                false if silent > one.patience && state.stalled < self.0.places => Standing::Stalled,
                _ => continue,
            };
            self.change(state, &one, standing);
        }
    }

    /// Moves a request to another standing. Places that become free are not given out here.
    fn change(&self, state: &mut State, held: &Held, to: Standing) {
        let from = std::mem::replace(&mut *held.standing.lock(), to);
        held.away.store(to != Standing::Running, Ordering::Relaxed);
        let usage = state.files.entry(held.path.clone()).or_default();
        match from {
            Standing::Running => (state.running, usage.running) = (state.running - 1, usage.running - 1),
            Standing::Stalled => (state.stalled, usage.stalled) = (state.stalled - 1, usage.stalled - 1),
            Standing::Parked => {}
        }
        match to {
            Standing::Running => (state.running, usage.running) = (state.running + 1, usage.running + 1),
            Standing::Stalled => (state.stalled, usage.stalled) = (state.stalled + 1, usage.stalled + 1),
            Standing::Parked => {}
        }
        forget_unused(state, &held.path);
        LIMIT_RUNNING.gauge([self.0.class]).set(state.running as f64);
        LIMIT_STALLED.gauge([self.0.class]).set(state.stalled as f64);
    }
}

fn forget_unused(state: &mut State, path: &FsPath) {
    if state.files.get(path).is_some_and(|u| u.running == 0 && u.stalled == 0 && u.waiting.is_empty()) {
        state.files.remove(path);
    }
}

/// A waiting request; takes itself off the list when it is given up.
struct Turn<'a> {
    limit: &'a Limit,
    path: &'a FsPath,
    waiter: &'a Arc<Waiter>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.limit.0.state.lock();
        if let Some(usage) = state.files.get_mut(self.path) {
            let before = usage.waiting.len();
            usage.waiting.retain(|w| !Arc::ptr_eq(w, self.waiter));
            if before > 0 && usage.waiting.is_empty() {
                state.turns.retain(|p| p != self.path);
            }
        }
        forget_unused(&mut state, self.path);
        drop(state);
        // A place given at the last moment goes back, which locks the state: so not before it is free.
        let given = self.waiter.given.lock().take();
        drop(given);
    }
}

impl Held {
    fn set_clock(&self, now: u64, reader_moves: bool) {
        self.clock.store(now * 2 + u64::from(reader_moves), Ordering::Relaxed);
    }
}

impl Place {
    /// The reader waits for the store, for the first time since something came.
    pub(super) fn store_moves(&self) {
        if self.held.clock.load(Ordering::Relaxed) % 2 == 1 || self.is_parked() {
            self.moved(false);
        }
    }

    /// Something came; the reader has it now.
    pub(super) fn reader_moves(&self) {
        self.moved(true);
    }

    fn is_parked(&self) -> bool {
        self.held.away.load(Ordering::Relaxed) && *self.held.standing.lock() == Standing::Parked
    }

    fn moved(&self, reader_moves: bool) {
        self.held.set_clock(self.limit.now(), reader_moves);
        if self.held.away.load(Ordering::Relaxed) {
            let mut state = self.limit.0.state.lock();
            // It runs again, also beyond the limit: what is under way is not stopped, new requests wait instead.
            self.limit.change(&mut state, &self.held, Standing::Running);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.limit.0.state.lock();
        state.held.remove(&self.id);
        self.limit.change(&mut state, &self.held, Standing::Parked);
        self.limit.give_out(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FsPath {
        FsPath::parse(text).unwrap()
    }

    async fn take(limit: &Limit, name: &str) -> Option<Place> {
        tokio::time::timeout(Duration::from_millis(1), limit.take(&path(name), Duration::ZERO)).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_gets_its_share_and_a_newcomer_finds_room() {
        let limit = Limit::new(16, "data");
        let mut places = Vec::new();
        while let Some(place) = take(&limit, "greedy").await {
            places.push(place);
        }
        assert_eq!(places.len(), 14, "all but an eighth of the places while alone");
        let newcomer = take(&limit, "newcomer").await;
        assert!(newcomer.is_some());
        assert!(take(&limit, "newcomer").await.is_some(), "it has less than an even share");
        places.truncate(7);
        let mut more = 0;
        while let Some(place) = take(&limit, "greedy").await {
            places.push(place);
            more += 1;
        }
        assert_eq!(more, 6, "all but what the newcomer uses");
        drop(places);
        drop(newcomer);
        assert_eq!(limit.in_flight(), (0, 0));
        let state = limit.0.state.lock();
        assert!(state.files.is_empty() && state.turns.is_empty() && state.held.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_files_with_few_requests_leave_over_goes_to_who_wants_more() {
        let limit = Limit::new(128, "data");
        let mut silent = Vec::new();
        for i in 0..64 {
            silent.push(take(&limit, &format!("silent{}", i % 8)).await.expect("there is room"));
        }
        let mut places = Vec::new();
        while let Some(place) = take(&limit, "healthy").await {
            places.push(place);
        }
        assert_eq!(places.len(), 128 - 16 - 64);
    }

    #[tokio::test(start_paused = true)]
    async fn places_go_round_by_file() {
        let limit = Limit::new(1, "data");
        let first = limit.take(&path("x"), Duration::ZERO).await;
        let (send, mut order) = tokio::sync::mpsc::unbounded_channel();
        for name in ["a", "a", "a", "b", "c"] {
            let (limit, send) = (limit.clone(), send.clone());
            tokio::spawn(async move {
                let _place = limit.take(&path(name), Duration::ZERO).await;
                send.send(name).unwrap();
            });
            tokio::task::yield_now().await;
        }
        drop((first, send));
        let mut got = Vec::new();
        while let Some(name) = order.recv().await {
            got.push(name);
        }
        assert_eq!(got, ["a", "b", "c", "a", "a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_requests_lose_their_places_and_their_file_starts_no_more() {
        let limit = Limit::new(16, "data");
        let mut stalled = Vec::new();
        for i in 0.. {
            match take(&limit, &format!("stalled{}", i % 4)).await {
                Some(place) => stalled.push(place),
                None => break,
            }
        }
        assert_eq!(stalled.len(), 16);
        tokio::time::timeout(Duration::from_secs(3), limit.take(&path("healthy"), Duration::ZERO))
            .await
            .expect("places came back from the silent requests");
        assert_eq!(limit.in_flight(), (0, 16));
        // An answer after all: it runs again.
        stalled[0].reader_moves();
        assert_eq!(limit.in_flight(), (1, 15));
        drop(stalled);
        assert_eq!(limit.in_flight(), (0, 0));
        assert!(limit.0.state.lock().files.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_readers_block_nobody() {
        let limit = Limit::new(4, "data");
        let mut open = Vec::new();
        for i in 0..40 {
            let name = path(&format!("f{}", i % 3));
            let place = limit.take(&name, Duration::ZERO);
            let place =
                tokio::time::timeout(Duration::from_secs(4), place).await.expect("a place for every stream");
            place.reader_moves();
            open.push(place);
        }
        open[0].store_moves();
        assert!(limit.in_flight().0 >= 1);
        drop(open);
        assert_eq!(limit.in_flight(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_given_up_turn_is_forgotten() {
        let limit = Limit::new(1, "data");
        let place = limit.take(&path("a"), Duration::ZERO).await;
        for _ in 0..10 {
            assert!(take(&limit, "b").await.is_none());
        }
        drop(place);
        assert!(take(&limit, "c").await.is_some());
        assert!(limit.0.state.lock().files.is_empty());
    }
}
