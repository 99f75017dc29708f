//! Facts for an image's conditions: brand, architecture, CUDA version.
//!
//! Source: NVIDIA's CUDA release notes, "CUDA toolkit and corresponding driver versions", and "CUDA Version" in
//! nvidia-smi. Chips: `ctrl2080mc.h` of the open kernel modules. Compute capabilities: CUDA programming guide. Brand names:
//! NVIDIA's CUDA images.

use super::{Driver, Gpu};
use crate::require::{Facts, Version};
use mpu_rm::Client;

/// Parts of a model's name and their brands. The first match counts.
const BRANDS: &[(&str, &str)] = &[
    ("titan", "Titan"),
    ("geforce", "GeForce"),
    ("quadro rtx", "QuadroRTX"),
    ("quadro", "Quadro"),
    ("tesla", "Tesla"),
    ("grid", "GRID"),
    ("nvs", "NVS"),
    ("rtx", "NvidiaRTX"),
    ("nvidia", "Nvidia"),
];

/// A chip's architecture, its implementations (an empty list means all), and their compute capability.
type Chip = (u32, &'static [u32], (u32, u32));

const CHIPS: &[Chip] = &[
    (0x0e0, &[], (3, 0)),
    (0x0f0, &[], (3, 5)),
    (0x100, &[], (3, 5)),
    (0x110, &[], (5, 0)),
    (0x120, &[], (5, 2)),
    (0x130, &[0x0], (6, 0)),
    (0x130, &[0x2, 0x4, 0x6, 0x7, 0x8], (6, 1)),
    (0x140, &[], (7, 0)),
    (0x160, &[], (7, 5)),
    (0x170, &[0x0], (8, 0)),
    (0x170, &[0x2, 0x3, 0x4, 0x6, 0x7], (8, 6)),
    (0x180, &[], (9, 0)),
    (0x190, &[], (8, 9)),
    (0x1a0, &[0x0, 0x2], (10, 0)),
    (0x1a0, &[0x3, 0x4], (10, 3)),
    (0x1b0, &[0x0, 0x2, 0x3, 0x5, 0x6, 0x7], (12, 0)),
    (0x1b0, &[0xb], (12, 1)),
];

/// The first driver branch of each CUDA version. Debian's `libcuda1` agrees for 390, 418, 470, 535, 550 and 555.
const CUDA: &[(u32, (u32, u32))] = &[
    (367, (8, 0)),
    (384, (9, 0)),
    (387, (9, 1)),
    (396, (9, 2)),
    (410, (10, 0)),
    (418, (10, 1)),
    (440, (10, 2)),
    (450, (11, 0)),
    (455, (11, 1)),
    (460, (11, 2)),
    (465, (11, 3)),
    (470, (11, 4)),
    (495, (11, 5)),
    (510, (11, 6)),
    (515, (11, 7)),
    (520, (11, 8)),
    (525, (12, 0)),
    (530, (12, 1)),
    (535, (12, 2)),
    (545, (12, 3)),
    (550, (12, 4)),
    (555, (12, 5)),
    (560, (12, 6)),
    (565, (12, 7)),
    (570, (12, 8)),
    (575, (12, 9)),
    (580, (13, 0)),
    (590, (13, 1)),
    (595, (13, 2)),
];

impl Driver {
    /// The driver's facts for an image's conditions.
    pub fn facts(&self) -> Facts {
        let cuda = self.cuda_version().map(Version::from);
        Facts { cuda, driver: Version::parse(&self.version), ..Facts::default() }
    }

    /// The facts of the driver and one of its GPUs. Initializes the GPU if the driver has not yet.
    pub fn gpu_facts(&self, gpu: &Gpu) -> Facts {
        let chip = self.client(gpu).as_ref().and_then(Client::chip);
        let arch = chip.and_then(compute_capability).map(Version::from);
        Facts { arch, brand: Some(brand(&gpu.model).to_owned()), ..self.facts() }
    }

    /// The newest CUDA version that this driver supports, such as (13, 0). No file contains it, so it is looked up by the driver's branch. A
    /// branch newer than the table supports at least the newest listed version.
    pub fn cuda_version(&self) -> Option<(u32, u32)> {
        let branch: u32 = self.version.split('.').next()?.parse().ok()?;
        CUDA.iter().rev().find(|(from, _)| *from <= branch).map(|(_, version)| *version)
    }
}

/// NVIDIA's name of the brand, such as `Tesla`, `GeForce`, `Nvidia`; or `Unknown`.
fn brand(model: &str) -> &'static str {
    let model = model.to_ascii_lowercase();
    BRANDS.iter().find(|(word, _)| model.contains(word)).map_or("Unknown", |(_, brand)| *brand)
}

/// The compute capability, such as (9, 0). None if the chip is unknown.
fn compute_capability((architecture, implementation): (u32, u32)) -> Option<(u32, u32)> {
    let matches = |chip: &&Chip| chip.0 == architecture && (chip.1.is_empty() || chip.1.contains(&implementation));
    CHIPS.iter().find(matches).map(|chip| chip.2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::fake::Host;

    #[test]
    fn models_have_brands() {
        let check = |model: &str, expected: &str| assert_eq!(brand(model), expected, "{model}");
        check("Tesla V100-SXM2-16GB", "Tesla");
        check("NVIDIA H200", "Nvidia");
        check("NVIDIA A100-SXM4-40GB", "Nvidia");
        check("NVIDIA GeForce RTX 4090", "GeForce");
        check("Quadro RTX 6000", "QuadroRTX");
        check("Quadro P400", "Quadro");
        check("NVIDIA RTX A6000", "NvidiaRTX");
        check("NVIDIA TITAN RTX", "Titan");
        check("Simulated GPU", "Unknown");
        check("", "Unknown");
    }

    #[test]
    fn chips_have_compute_capability() {
        assert_eq!(compute_capability((0x180, 0)), Some((9, 0)));
        assert_eq!(compute_capability((0x170, 0)), Some((8, 0)));
        assert_eq!(compute_capability((0x170, 4)), Some((8, 6)));
        assert_eq!(compute_capability((0x140, 0)), Some((7, 0)));
        assert_eq!(compute_capability((0x170, 0x99)), None);
        assert_eq!(compute_capability((0x1c0, 0)), None);
    }

    #[test]
    fn releases_have_cuda() {
        let check = |version: &str, expected| {
            let driver = Driver::find(&Host::with_driver(version).root()).expect("a driver");
            assert_eq!(driver.cuda_version(), expected, "{version}");
        };
        check("340.108", None);
        check("390.157", Some((9, 1)));
        check("418.226.00", Some((10, 1)));
        check("430.64", Some((10, 1)));
        check("470.256.02", Some((11, 4)));
        check("535.261.03", Some((12, 2)));
        check("555.58.02", Some((12, 5)));
        check("580.159.04", Some((13, 0)));
        check("999.1", Some((13, 2)));
        assert!(CUDA.windows(2).all(|pair| pair[0] < pair[1] && pair[0].1 < pair[1].1), "in order");
    }

    #[test]
    fn unresponsive_driver_gives_no_architecture() {
        let host = Host::with_gpu(&[]);
        host.write("dev/nvidia0", "");
        host.write("dev/nvidiactl", "");
        let driver = Driver::find(&host.root()).expect("a driver");
        let facts = driver.gpu_facts(&driver.gpus[0]);
        assert_eq!((facts.arch, facts.brand.as_deref()), (None, Some("Nvidia")));
    }
}
