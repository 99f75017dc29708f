//! The module that is built and installed already: by DKMS, signed with the machine owner's key where that is needed.

use super::packed::{self, PACKINGS};
use super::prebuilt::{self, Found};
use super::sources::{self, Built, PassedOver};
use mpu_host::host::Host;
use std::fs::File;
use std::path::Path;

/// Folders below `/lib/modules/<release>` where DKMS puts modules: Debian's and Ubuntu's, the rest of the world's, SUSE's
/// and Fedora's, and where a person does.
pub(super) const FOLDERS: [&str; 4] = ["updates/dkms", "updates", "extra", "extra/dkms"];

/// The installed `mpu.ko` of this version for a kernel, perhaps packed, with `mpu_next.ko` beside it if that is installed, too; and
/// those before it that cannot be used.
pub fn find(host: &Host, release: &str) -> Found {
    let mut found = Found::default();
    let folders = FOLDERS.iter().map(|folder| host.at("/lib/modules").join(release).join(folder));
    let places =
        folders.flat_map(|folder| PACKINGS.map(|(ending, tool)| (folder.join(format!("mpu.ko{ending}")), tool)));
    for (path, tool) in places.filter(|(path, _)| path.is_file()) {
        match usable(host, &path, tool, release) {
            Ok(built) => return Found { taken: Some(built), ..found },
            Err(why) => found.passed_over.push(PassedOver { path, why }),
        }
    }
    found
}

fn usable(host: &Host, path: &Path, tool: Option<&str>, release: &str) -> Result<Built, String> {
    let file = File::open(path).map_err(|error| packed::cannot_be_read(&error))?;
    let bytes = packed::contents(host, file, tool)?;
    let built = sources::look(&bytes, path, "mpu", release, std::env::consts::ARCH);
    let built = built.map_err(|error| prebuilt::about(&error))?;
    prebuilt::of_this_version(&bytes).map(|()| built)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::{FakeHost, RELEASE};
    use std::fs;

    fn put(fake: &FakeHost, path: &str, version: &str) {
        fake.write(path, "");
        fs::write(fake.host().at(path), sources::fake::module_of("mpu", RELEASE, version)).expect("a module");
    }

    const THIS: &str = env!("CARGO_PKG_VERSION");

    #[test]
    fn a_module_of_this_version_is_found_where_dkms_puts_it() {
        for folder in FOLDERS {
            let fake = FakeHost::in_order();
            assert_eq!(find(&fake.host(), RELEASE), Found::default());
            let path = format!("/lib/modules/{RELEASE}/{folder}/mpu.ko");
            put(&fake, &path, THIS);
            assert_eq!(find(&fake.host(), RELEASE).taken.expect("found").path, fake.host().at(&path));
            put(&fake, &path, "0.0.1");
            let why = format!("is of MPU 0.0.1, and this is mpu {THIS}");
            let path = fake.host().at(&path);
            assert_eq!(find(&fake.host(), RELEASE), Found { taken: None, passed_over: vec![PassedOver { path, why }] });
        }
    }

    #[test]
    fn packed_modules_are_found_without_a_trace() {
        let fake = FakeHost::in_order();
        fake.tool("zstd", "exec /bin/cat");
        let path = format!("/lib/modules/{RELEASE}/updates/dkms/mpu.ko.zst");
        put(&fake, &path, THIS);
        assert_eq!(find(&fake.host(), RELEASE).taken.expect("found").path, fake.host().at(path));
        assert!(!fake.host().at("/var/lib/mpu").exists());
        let why = || {
            let found = find(&fake.host(), RELEASE);
            assert_eq!(found.taken, None);
            found.passed_over.into_iter().map(|over| over.why).collect::<Vec<_>>()
        };
        fake.tool("zstd", "exit 1");
        assert_eq!(why(), ["is damaged: zstd cannot unpack it"]);
        fake.remove("/usr/bin/zstd");
        assert_eq!(why(), ["cannot be unpacked: there is no zstd on this host"]);
    }

    #[test]
    fn one_for_another_kernel_is_not_taken() {
        let fake = FakeHost::in_order();
        put(&fake, "/lib/modules/6.9.0/updates/dkms/mpu.ko", THIS);
        let found = find(&fake.host(), "6.9.0");
        assert_eq!(found.taken, None);
        assert_eq!(found.passed_over[0].why, format!("was built for kernel {RELEASE}"));
    }
}
