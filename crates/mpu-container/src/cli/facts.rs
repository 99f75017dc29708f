//! What is known of a driver and a GPU, for `info` and for `--require`.

use crate::driver::{Driver, Gpu};
use crate::require::{Known, Version};

/// Of the driver alone.
pub fn of_driver(driver: &Driver) -> Known {
    Known { driver: Version::parse(&driver.version), ..Known::default() }
}

/// Of the driver and one of its GPUs.
pub fn of_gpu(driver: &Driver, _gpu: &Gpu) -> Known {
    of_driver(driver)
}
