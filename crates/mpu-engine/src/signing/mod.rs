//! Secure Boot, and the signing of what this program builds. Judges no signature: the kernel trusts keys that no file tells of.

mod advice;
mod keys;
mod signer;

pub use advice::advice;
pub use keys::{Enrolled, Key};
pub(crate) use signer::runs;
pub use signer::{SignError, Signer, carries_signature, demanded, is_signed, secure_boot};
