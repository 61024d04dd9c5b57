//! A token that is fetched with the account's credentials and kept until shortly before it expires.

use std::future::Future;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::account::Secret;
use crate::failure::Failure;

/// How long before its end a token is not used any more.
const SLACK: Duration = Duration::from_mins(2);
/// The longest a token is kept, whatever is said of it.
const LONGEST: Duration = Duration::from_hours(1);

/// What a token's issuer says.
#[derive(Deserialize)]
pub(crate) struct Issued {
    access_token: String,
    expires_in: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Token(Mutex<Option<(Instant, Secret)>>);

impl Token {
    /// The token of the moment; `fetch` gets another where there is none.
    pub(crate) async fn get<F>(&self, fetch: impl FnOnce() -> F) -> Result<Secret, Failure>
    where
        F: Future<Output = Result<Issued, Failure>>,
    {
        let mut kept = self.0.lock().await;
        if let Some((until, token)) = &*kept
            && Instant::now() < *until
        {
            return Ok(token.clone());
        }
        let issued = fetch().await?;
        let lasts = Duration::from_secs(issued.expires_in).min(LONGEST);
        let token = Secret::new(issued.access_token);
        *kept = Some((Instant::now() + lasts.saturating_sub(SLACK), token.clone()));
        Ok(token)
    }
}
