//! Secure Boot, and signing of built modules. It verifies no signature: the kernel may trust keys that no file lists.

mod advice;
mod keys;
mod signer;

pub use advice::advice;
pub use keys::{Enrolled, Key};
pub(crate) use signer::can_run;
pub use signer::{SignError, Signer, demanded, has_signature, is_signed, secure_boot};
