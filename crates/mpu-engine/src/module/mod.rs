//! The module engine: MPU inside the kernel, as `mpu.ko`.
//!
//! Owns the way from the module's sources to a loaded module and back: what this host must offer ([`checks`]), what is
//! built ([`sources`], [`build`]), loading and unloading ([`load`]), what will be done ([`plan`]) and doing it ([`raise`]), and what the
//! module says about itself ([`state`]); who keeps it in the kernel ([`holders`]); when it was loaded ([`record`]).
//! [`foreign`] finds other projects' modules of our names.
//! Knows nothing of what the module does inside the kernel.

pub mod build;
pub mod checks;
pub mod elf;
pub mod elsewhere;
pub mod error;
pub mod foreign;
pub mod headers;
pub mod holders;
pub mod installed;
pub mod load;
pub mod load_error;
pub mod packed;
pub mod plan;
pub mod prebuilt;
pub mod proof;
pub mod raise;
pub mod record;
pub mod sources;
pub mod state;
pub mod swap;
pub mod trust;
