//! Signed modules: whether this kernel demands them, who signs here, and what a person has to do so that somebody does.
//!
//! Owns the facts of Secure Boot and the signing of what this program builds. Refuses to judge a signature: that is the
//! kernel's, which trusts keys that no file tells of.

mod advice;
mod demand;
mod keys;
mod pin;
mod signer;

pub use advice::advice;
pub use demand::{demanded, secure_boot};
pub use keys::{Enrolled, Key};
pub(crate) use signer::runs;
pub use signer::{carries_signature, is_signed, SignError, Signer};
