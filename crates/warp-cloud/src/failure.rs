//! Why a provider did not do what it was asked, in one form for all of them, with the provider's own words kept.

use serde::{Deserialize, Serialize};

/// What a failure means for whoever wants a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Class {
    /// Sold out: another offer, or later.
    NoCapacity,
    /// The account may not have more: another provider.
    Quota,
    /// The account has no money: another provider, and somebody must pay.
    NoBalance,
    /// The provider does not know who asks: nothing works until the credentials are mended.
    BadCredentials,
    /// The request itself is wrong or not allowed: repeating it changes nothing.
    Refused,
    /// The price is above what was agreed when the offer was chosen.
    PriceChanged,
    /// It may work later, and it may have worked although no answer came.
    Transient,
}

impl Class {
    /// Whether nothing was bought for certain.
    pub fn is_definite(self) -> bool {
        self != Self::Transient
    }

    /// Whether every offer of this account fails the same way.
    pub fn is_of_account(self) -> bool {
        matches!(self, Self::Quota | Self::NoBalance | Self::BadCredentials)
    }

    /// What a status of HTTP means where the vendor says no more.
    pub(crate) fn of_status(status: http::StatusCode) -> Self {
        match status.as_u16() {
            401 | 403 => Self::BadCredentials,
            402 => Self::NoBalance,
            408 | 409 | 425 | 429 | 500.. => Self::Transient,
            _ => Self::Refused,
        }
    }

    /// The word conditions and attempts use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoCapacity => "NoCapacity",
            Self::Quota => "QuotaExceeded",
            Self::NoBalance => "NoBalance",
            Self::BadCredentials => "BadCredentials",
            Self::Refused => "Refused",
            Self::PriceChanged => "PriceChanged",
            Self::Transient => "Transient",
        }
    }

    /// The class of a word of [`Class::as_str`].
    pub fn of(word: &str) -> Option<Self> {
        let all = [
            Self::NoCapacity,
            Self::Quota,
            Self::NoBalance,
            Self::BadCredentials,
            Self::Refused,
            Self::PriceChanged,
            Self::Transient,
        ];
        all.into_iter().find(|class| class.as_str() == word)
    }
}

/// A failure in one form. `words` are the provider's own and never carry a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct Failure {
    pub class: Class,
    pub words: String,
}

impl Failure {
    pub fn new(class: Class, words: impl Into<String>) -> Self {
        Self {
            class,
            words: words.into(),
        }
    }
}
