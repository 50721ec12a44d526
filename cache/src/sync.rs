//! The locks of what is checked under every schedule: parking_lot's, or shuttle's with the feature `shuttle`.

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::Mutex;

#[cfg(feature = "shuttle")]
pub(crate) use model::Mutex;

#[cfg(feature = "shuttle")]
mod model {
    /// shuttle's mutex with parking_lot's calls.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().expect("no schedule panics while it holds a lock")
        }
    }
}
