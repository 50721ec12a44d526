use std::io::{Read, Write};
use std::sync::atomic::AtomicUsize;

use super::*;

const TIMEOUT: Duration = Duration::from_millis(200);
/// Far beyond any wait that is right.
const SLACK: Duration = Duration::from_secs(20);

fn pool(threads: usize, max_blocked: usize) -> BlockingPool {
    BlockingPool::new(BlockingPoolConfig { threads, max_blocked, timeout: TIMEOUT })
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + SLACK;
    while !condition() {
        assert!(Instant::now() < end, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A read of a pipe that nobody writes to: a real system call that hangs.
fn hang(pipe: std::io::PipeReader) -> impl FnOnce(&Beat) -> Result<()> + Send + 'static {
    move |_| {
        let mut pipe = pipe;
        pipe.read_exact(&mut [0])?;
        Ok(())
    }
}

#[tokio::test]
async fn a_hanging_call_is_answered_and_its_thread_counted_until_it_returns() {
    let pool = pool(2, 4);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let begun = Instant::now();
    let error = pool.run("stat", hang(reader)).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::TimedOut, Some("stat")));
    assert!(!error.is_retryable());
    assert!(begun.elapsed() >= TIMEOUT && begun.elapsed() < SLACK);
    assert_eq!(pool.blocked_threads(), 1);
    assert_eq!(pool.run("stat", |_| Ok(7)).await.unwrap(), 7);
    writer.write_all(&[0]).unwrap();
    until("the thread came back", || pool.blocked_threads() == 0).await;
}

#[tokio::test]
async fn too_many_hanging_calls_make_further_ones_fail_at_once() {
    let pool = pool(2, 3);
    let (pipes, mut writers): (Vec<_>, Vec<_>) = (0..3).map(|_| std::io::pipe().unwrap()).unzip();
    let calls = pipes.into_iter().map(|p| pool.run("read", hang(p)));
    for result in futures::future::join_all(calls).await {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
    }
    assert_eq!(pool.blocked_threads(), 3);
    let begun = Instant::now();
    for _ in 0..100 {
        let error = pool.run("stat", |_| Ok(())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("3 earlier calls hang"), "{error}");
    }
    assert!(begun.elapsed() < TIMEOUT * 50, "100 refusals do not wait");
    // Clean-up is never lost: it runs when a thread is free again.
    let (cleaned, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let own = cleaned.clone();
    pool.detach("close", move || {
        own.fetch_add(1, Ordering::Relaxed);
    });
    until("clean-up ran", || cleaned.load(Ordering::Relaxed) == 1).await;
    for writer in &mut writers {
        writer.write_all(&[0]).unwrap();
    }
    until("the threads came back", || pool.blocked_threads() == 0).await;
    let own = seen.clone();
    pool.run("stat", move |_| Ok(own.fetch_add(1, Ordering::Relaxed))).await.unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_slow_corner_does_not_hold_up_the_rest() {
    let pool = BlockingPool::new(BlockingPoolConfig {
        threads: 1,
        max_blocked: 8,
        timeout: Duration::from_secs(60),
    });
    let (pipes, writers): (Vec<_>, Vec<_>) = (0..4).map(|_| std::io::pipe().unwrap()).unzip();
    let stuck: Vec<_> = pipes
        .into_iter()
        .map(|pipe| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.run("read", hang(pipe)).await })
        })
        .collect();
    for n in 0..50 {
        let done = tokio::time::timeout(SLACK, pool.run("stat", move |_| Ok(n))).await;
        assert_eq!(done.expect("the only thread hangs, another helps").unwrap(), n);
    }
    assert_eq!(pool.blocked_threads(), 0, "nothing is given up before the timeout");
    for mut writer in writers {
        writer.write_all(&[0]).unwrap();
    }
    for call in stuck {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_long_call_that_shows_progress_is_not_given_up() {
    let pool = pool(1, 1);
    let begun = Instant::now();
    let work = |beat: &Beat| {
        for _ in 0..6 {
            std::thread::sleep(TIMEOUT / 2);
            beat.touch();
        }
        Ok(3)
    };
    assert_eq!(pool.run("copy", work).await.unwrap(), 3);
    assert!(begun.elapsed() >= TIMEOUT * 2);
}

#[tokio::test]
async fn a_long_call_that_shows_progress_does_not_hold_up_the_rest() {
    let pool = pool(1, 1);
    let long = pool.run("copy", |beat| {
        for _ in 0..60 {
            std::thread::sleep(TIMEOUT / 20);
            beat.touch();
        }
        Ok(Instant::now())
    });
    let short = async {
        tokio::time::sleep(TIMEOUT / 10).await;
        pool.run("stat", |_| Ok(Instant::now())).await
    };
    let (long, short) = tokio::join!(long, short);
    assert!(short.unwrap() < long.unwrap(), "the short call ran beside the long one");
}

#[tokio::test]
async fn a_dropped_call_that_has_not_begun_never_runs() {
    let pool = pool(1, 1);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let first = pool.run("read", hang(reader));
    let own = ran.clone();
    let second = pool.run("stat", move |_| Ok(own.fetch_add(1, Ordering::Relaxed)));
    futures::pin_mut!(first);
    assert!(futures::poll!(&mut first).is_pending());
    {
        futures::pin_mut!(second);
        assert!(futures::poll!(&mut second).is_pending());
    }
    writer.write_all(&[0]).unwrap();
    first.await.unwrap();
    pool.run("stat", |_| Ok(())).await.unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_panic_is_an_error_and_the_thread_goes_on() {
    let pool = pool(1, 1);
    let error = pool.run("stat", |_| -> Result<()> { panic!("on purpose") }).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Other, Some("stat")));
    assert_eq!(pool.run("stat", |_| Ok(1)).await.unwrap(), 1);
}

#[tokio::test]
async fn more_calls_than_places_are_all_served() {
    let pool = pool(2, 1);
    let calls = (0..QUEUE * 3).map(|n| pool.run("stat", move |_| Ok(n)));
    let sum: usize = futures::future::join_all(calls).await.into_iter().map(|r| r.unwrap()).sum();
    assert_eq!(sum, (0..QUEUE * 3).sum::<usize>());
    assert!(pool.0.shared.state.lock().total <= 3);
}

#[tokio::test]
async fn threads_end_with_the_last_handle() {
    let pool = pool(4, 4);
    pool.run("stat", |_| Ok(())).await.unwrap();
    let shared = Arc::downgrade(&pool.0.shared);
    let ran = Arc::new(AtomicUsize::new(0));
    let own = ran.clone();
    pool.detach("close", move || {
        own.fetch_add(1, Ordering::Relaxed);
    });
    drop(pool);
    until("all threads ended", || shared.strong_count() == 0).await;
    assert_eq!(ran.load(Ordering::Relaxed), 1, "clean-up came first");
}
