//! Settings for engines: which engine, which module files, which way to redirect, and which releases of the driver.

use crate::driver::{Driver, NEWEST_KNOWN, OLDEST_KNOWN};
use crate::exit::Exit;
use crate::explain::{Explain, Facts};
use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The requested engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineSetting {
    /// The one that suits this host best
    #[default]
    Auto,
    /// The kernel module
    Module,
    /// The supervisor in user space
    Notify,
}

/// The accepted module files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Modules {
    /// A prebuilt one, else one that DKMS installed, else one that is built here.
    #[default]
    Any,
    /// Prebuilt ones only.
    Prebuilt,
}

/// How the module redirects the driver's functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Redirect {
    /// The first way that the kernel has and permits.
    #[default]
    Auto,
    /// Direct calls only.
    Direct,
    /// An ftrace handler only.
    Ipmodify,
}

impl Redirect {
    /// The word for it in the module's parameter `redirect`, and in its `state`.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// The accepted releases of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drivers {
    /// Every one.
    #[default]
    Any,
    /// Releases that this MPU was checked against.
    Known,
}

impl Drivers {
    /// Checks the loaded driver, if there is one.
    ///
    /// # Errors
    /// Names a release that is not accepted.
    pub fn take(self, driver: Option<&Driver>) -> Result<(), UnknownDriver> {
        match driver {
            Some(driver) if self == Drivers::Known && driver.known().is_none() => {
                Err(UnknownDriver { version: driver.version.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// The driver's release was not checked with this MPU, and the configuration accepts no such release.
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
    fn facts(&self) -> Facts {
        let fix = "update MPU; or remove `drivers = \"known\"` from /etc/mpu/config.toml: MPU then translates what it recognises, \
                   and `mpu probe` says whether it is right";
        ("unknown_driver", Exit::NotReady, fix.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    #[test]
    fn unknown_release_is_refused_if_configured() {
        let fake = FakeHost::in_order();
        for (version, is_known) in [("550.163.01", true), ("700.10", false), ("mine", false)] {
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
