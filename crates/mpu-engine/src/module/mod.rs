//! The module engine: MPU inside the kernel, as `mpu.ko`. [`plan`] decides, [`raise`] carries out.

pub mod build;
pub mod checks;
pub mod compression;
pub mod elf;
pub mod error;
pub mod foreign;
pub mod headers;
pub mod holders;
pub mod load;
pub mod load_error;
pub mod other_kernel;
pub mod plan;
pub mod prebuilt;
pub mod proof;
pub mod raise;
pub mod record;
pub mod sources;
pub mod state;
pub mod swap;
pub mod trust;
