//! What the administrator wants of an engine: which one, and with which releases of the driver.
//!
//! Owns the words, and the refusal of a release that is not wanted. What is taken where both engines will do is `engine`'s.

use crate::driver::{Driver, NEWEST_KNOWN, OLDEST_KNOWN};
use crate::exit::Exit;
use crate::explain::Explain;
use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the caller asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// The one that suits this host best
    Auto,
    /// The kernel module
    Module,
    /// The supervisor in user space
    Notify,
}

/// Which modules are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Modules {
    /// One that was built elsewhere, else one that DKMS installed, else one that is built here.
    #[default]
    Any,
    /// Those that were built elsewhere, and no other.
    Prebuilt,
}

/// How the module redirects the driver's functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Redirect {
    /// The first way that the kernel has and grants.
    #[default]
    Auto,
    /// Direct calls, and nothing else.
    Direct,
    /// An ftrace handler, and nothing else.
    Ipmodify,
}

impl Redirect {
    /// The word that the module's parameter `redirect` takes, and that its `state` says.
    pub fn word(self) -> &'static str {
        match self {
            Redirect::Auto => "auto",
            Redirect::Direct => "direct",
            Redirect::Ipmodify => "ipmodify",
        }
    }
}

/// Which releases of the driver are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drivers {
    /// Every one.
    #[default]
    Any,
    /// Those that this MPU was checked against.
    Known,
}

impl Drivers {
    /// Whether the loaded driver, if one is, is of a release that is wanted.
    ///
    /// # Errors
    /// Names the release that is not.
    pub fn take(self, driver: Option<&Driver>) -> Result<(), UnknownDriver> {
        match driver {
            Some(driver) if self == Drivers::Known && driver.known().is_none() => {
                Err(UnknownDriver { version: driver.version.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// The driver is of a release that this MPU was not checked against, and the administrator wants no such release.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "NVIDIA driver {version} is not one that this MPU knows ({OLDEST_KNOWN} to branch {}), and the configuration accepts no other",
    NEWEST_KNOWN.branch()
)]
pub struct UnknownDriver {
    /// As the driver writes it.
    pub version: String,
}

impl Explain for UnknownDriver {
    fn code(&self) -> &'static str {
        "unknown_driver"
    }

    fn exit(&self) -> Exit {
        Exit::NotReady
    }

    fn fix(&self) -> String {
        "update MPU; or remove `drivers = \"known\"` from /etc/mpu/config.toml: MPU then translates what it recognises, \
         and `mpu probe` says whether it is right"
            .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    #[test]
    fn release_outside_table_is_refused_only_where_no_other_is_wanted() {
        let fake = FakeHost::in_order();
        for (version, is_known) in [("550.163.01", true), ("615.71.09", false), ("mine", false)] {
            fake.write("/sys/module/nvidia/version", version);
            let driver = Driver::loaded(&fake.host());
            assert_eq!(Drivers::Known.take(driver.as_ref()).is_ok(), is_known, "{version}");
            assert_eq!(Drivers::Any.take(driver.as_ref()), Ok(()), "{version}");
        }
        let refused = UnknownDriver { version: "mine".to_string() };
        assert_eq!((refused.code(), refused.exit()), ("unknown_driver", Exit::NotReady));
        assert_eq!(Drivers::Known.take(None), Ok(()), "there may be none yet");
    }
}
