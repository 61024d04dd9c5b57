//! One answer for all who wait for the same question. An answer is shared only with those who asked before it was
//! asked for, so nobody gets one that is older than the question.

use std::future::Future;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::failure::Failure;

type Last<T> = Option<(Instant, Result<T, Failure>)>;

#[derive(Debug)]
pub(crate) struct Shared<T>(Mutex<Last<T>>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> Shared<T> {
    /// What `ask` says, or what it said to somebody else who waited at the same time.
    pub(crate) async fn get<F>(&self, ask: impl FnOnce() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        if let Some((begun, answer)) = &*last
            && *begun > asked
        {
            return answer.clone();
        }
        let begun = Instant::now();
        let answer = ask().await;
        *last = Some((begun, answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_together_share_and_those_who_come_later_do_not() {
        let (shared, asked) = (Shared::<u32>::default(), AtomicU32::new(0));
        let ask = || async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(asked.fetch_add(1, Ordering::Relaxed))
        };
        let late = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            shared.get(ask).await
        };
        let later = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            shared.get(ask).await
        };
        let (first, late, later) = tokio::join!(shared.get(ask), late, later);
        assert_eq!((first, late, later), (Ok(0), Ok(1), Ok(1)));
    }
}
