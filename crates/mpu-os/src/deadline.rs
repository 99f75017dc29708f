//! Runs a function with a timeout.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Runs `work` on its own thread; none if it takes longer than `timeout`. A timeout cannot end a system call: a late thread stays until
/// its call returns or this process ends.
pub fn within<T: Send + 'static>(timeout: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || sender.send(work())).ok()?;
    receiver.recv_timeout(timeout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_work_is_none() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let (end, ended) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(20), move || ended.recv().is_err()), None);
        drop(end);
    }
}
