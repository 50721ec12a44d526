use super::*;

#[derive(Default)]
struct Answer(Mutex<Option<i32>>);

impl Pending for Answer {
    fn fail(&self, errno: i32) -> bool {
        let mut slot = self.0.lock();
        let first = slot.is_none();
        slot.get_or_insert(errno);
        first
    }
}

fn scanner(deadline: Duration) -> (Arc<InFlight>, Scanner) {
    let in_flight = Arc::new(InFlight::default());
    let scanner = Scanner {
        in_flight: Arc::clone(&in_flight),
        deadline,
        counters: Arc::default(),
        failures: Arc::default(),
        files: Arc::default(),
        stop: Arc::default(),
    };
    (in_flight, scanner)
}

fn wait_for(answer: &Answer, limit: Duration) -> Option<i32> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(errno) = *answer.0.lock() {
            return Some(errno);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

#[test]
fn pending_sigkill_is_bit_nine_of_either_mask() {
    assert!(sigkill_pending("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
    assert!(sigkill_pending("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000101\n"));
    assert!(!sigkill_pending(
        "SigPnd:\t0000000000000200\nShdPnd:\t00000000000000fe\nSigBlk:\t0000000000000100\n"
    ));
    assert!(!sigkill_pending(""));
}

#[test]
fn a_living_thread_is_not_dying_and_an_ended_process_is() {
    assert!(proc_is_ours());
    assert!(!is_dying(std::process::id()));
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    assert!(!is_dying(tid), "a thread that is no process leader");
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    assert!(is_dying(pid));
}

#[test]
fn a_request_ends_at_the_deadline_without_any_runtime() {
    let (in_flight, scanner) = scanner(Duration::from_millis(300));
    let failures = Arc::clone(&scanner.failures);
    let _thread = scanner.spawn().unwrap();
    let answer = Arc::new(Answer::default());
    let _r = in_flight.register(Op::Read, 0, answer.clone(), Subject::Bytes(9, 0..100));
    assert_eq!(wait_for(&answer, Duration::from_secs(5)), Some(libc::ETIMEDOUT));
    assert_eq!(in_flight.len(), 0);
    assert!(failures.of_bytes(9, 50, Instant::now()).is_none(), "300 ms is not slow enough to be remembered");
}

#[test]
fn the_request_of_a_dead_caller_is_interrupted_and_its_task_dropped() {
    let (in_flight, scanner) = scanner(Duration::from_secs(60));
    let _thread = scanner.spawn().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let answer = Arc::new(Answer::default());
    let r = in_flight.register(Op::Read, child.id(), answer.clone(), Subject::Other);
    let task = runtime.spawn(std::future::pending::<()>());
    in_flight.attach(r.id(), task.abort_handle());
    assert_eq!(wait_for(&answer, Duration::from_millis(500)), None, "a living caller is left alone");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(wait_for(&answer, Duration::from_secs(5)), Some(libc::EINTR));
    assert!(runtime.block_on(task).unwrap_err().is_cancelled());
}

#[test]
fn a_caller_that_cannot_be_seen_is_never_interrupted() {
    let (in_flight, scanner) = scanner(Duration::from_secs(60));
    let _thread = scanner.spawn().unwrap();
    let answer = Arc::new(Answer::default());
    let _r = in_flight.register(Op::Read, 0, answer.clone(), Subject::Other);
    assert_eq!(wait_for(&answer, Duration::from_millis(700)), None);
}

#[test]
fn more_callers_than_one_tick_can_look_at_are_all_looked_at() {
    let (in_flight, scanner) = scanner(Duration::from_secs(60));
    // Thread numbers above the system's limit: each is gone.
    let answers: Vec<_> = (0..LOOKS_PER_TICK * 2 + 10)
        .map(|i| {
            let answer = Arc::new(Answer::default());
            let tid = i32::MAX as u32 - i as u32;
            (in_flight.register(Op::Lookup, tid, answer.clone(), Subject::Other), answer)
        })
        .collect();
    std::thread::sleep(TICK);
    let after = scanner.tick(true, 0);
    assert_eq!(in_flight.len(), LOOKS_PER_TICK + 10);
    let after = scanner.tick(true, after);
    scanner.tick(true, after);
    assert!(answers.iter().all(|(_, a)| *a.0.lock() == Some(libc::EINTR)));
}

#[test]
fn a_parked_scanner_wakes_for_the_first_request() {
    let (in_flight, scanner) = scanner(Duration::from_millis(200));
    let thread = scanner.spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while !in_flight.parked.load(Ordering::SeqCst) {
        assert!(Instant::now() < end, "an idle scanner parks");
        std::thread::sleep(Duration::from_millis(20));
    }
    let answer = Arc::new(Answer::default());
    let _r = in_flight.register(Op::Read, 0, answer.clone(), Subject::Other);
    assert_eq!(wait_for(&answer, Duration::from_secs(5)), Some(libc::ETIMEDOUT));
    drop(thread);
}

#[test]
fn the_end_of_the_mount_answers_everything_once() {
    let in_flight = Arc::new(InFlight::default());
    let answers: Vec<_> = (0..40).map(|_| Arc::new(Answer::default())).collect();
    let registered: Vec<_> =
        answers.iter().map(|a| in_flight.register(Op::Read, 1, a.clone(), Subject::Other)).collect();
    in_flight.fail_all(libc::ENOTCONN);
    assert!(answers.iter().all(|a| *a.0.lock() == Some(libc::ENOTCONN)));
    drop(registered);
    assert_eq!(in_flight.len(), 0);
}
