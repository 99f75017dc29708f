//! Driver capabilities, which select the parts of the driver for a container.
//!
//! Source: NVIDIA Container Toolkit, "Specialized Configurations", driver capabilities.

use crate::kebab_name::KebabName;
use clap::ValueEnum;
use std::fmt;
use strum::VariantArray;

/// The names are those in `NVIDIA_DRIVER_CAPABILITIES` and of the container CLI's flags. In alphabetical order, which is the hook's
/// order of arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, VariantArray)]
#[repr(u8)]
pub enum Capability {
    Compat32,
    Compute,
    Display,
    Graphics,
    Ngx,
    Utility,
    Video,
}

impl Capability {
    pub const ALL: &[Capability] = Self::VARIANTS;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(u8);

impl Capabilities {
    pub const NONE: Capabilities = Capabilities(0);
    pub const ALL: Capabilities = Capabilities((1 << Capability::ALL.len()) - 1);
    /// All but 32-bit libraries, as in CDI files of NVIDIA's generator: one file serves containers with different requests.
    pub const WHOLE: Capabilities = Capabilities(Self::ALL.0 & !(1 << Capability::Compat32 as u8));
    /// The default of a container that names none: `utility,compute`.
    pub const DEFAULT: Capabilities = Capabilities(1 << Capability::Utility as u8 | 1 << Capability::Compute as u8);

    pub fn has(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u8) != 0
    }

    #[must_use]
    pub fn with(self, capability: Capability) -> Capabilities {
        Capabilities(self.0 | 1 << capability as u8)
    }

    #[must_use]
    pub fn and(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 & other.0)
    }

    pub fn iter(self) -> impl Iterator<Item = Capability> {
        Capability::ALL.iter().copied().filter(move |capability| self.has(*capability))
    }

    /// Parses a comma-separated list; `all` means every capability. The error is the first unknown name.
    pub fn parse(list: &str) -> Result<Capabilities, &str> {
        let mut words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
        words.try_fold(Capabilities::NONE, |set, word| match Capability::from_kebab_name(word) {
            _ if word == "all" => Ok(Capabilities::ALL),
            Some(capability) => Ok(set.with(capability)),
            None => Err(word),
        })
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(KebabName::kebab_name).collect::<Vec<_>>().join(","))
    }
}
