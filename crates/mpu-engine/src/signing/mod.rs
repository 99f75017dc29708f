//! Secure Boot, and signing of built modules. It verifies no signature: the kernel may trust keys that no file lists.

mod advice;
mod keys;
mod signer;

pub use advice::advice;
pub use keys::{Enrolled, Key};
pub(crate) use signer::runs;
pub use signer::{SignError, Signer, carries_signature, demanded, is_signed, secure_boot};
