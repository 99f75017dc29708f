//! What is known of a driver and a GPU, for `info` and for `--require`.

use crate::driver::{Driver, Gpu};
use crate::require::{Known, Version};

pub fn of_driver(driver: &Driver) -> Known {
    let cuda = driver.cuda_version().map(Version::from);
    Known { cuda, driver: Version::parse(&driver.version), ..Known::default() }
}

/// Of the driver and one of its GPUs. Starts a GPU that is not started.
pub fn of_gpu(driver: &Driver, gpu: &Gpu) -> Known {
    let facts = driver.facts(gpu);
    let arch = facts.architecture.map(Version::from);
    Known { arch, brand: Some(facts.brand.to_owned()), ..of_driver(driver) }
}
