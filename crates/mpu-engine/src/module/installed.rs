//! The module that is built and installed already: by DKMS, together with the kernel, signed with the machine owner's key
//! where that is needed.
//!
//! Owns where such modules lie. One of another version than this executable's is not for us.

use super::packed::{self, PACKINGS};
use super::sources::{self, Built};
use mpu_host::host::Host;
use std::fs::File;

/// Folders below `/lib/modules/<release>` where DKMS puts modules: Debian's and Ubuntu's, the rest of the world's, SUSE's
/// and Fedora's, and where a person does.
const FOLDERS: [&str; 4] = ["updates/dkms", "updates", "extra", "extra/dkms"];

/// The installed `mpu.ko` of this version for a kernel, perhaps packed, with `mpu_next.ko` beside it if that is installed, too.
pub fn find(host: &Host, release: &str) -> Option<Built> {
    let folders = FOLDERS.iter().map(|folder| host.at("/lib/modules").join(release).join(folder));
    let places =
        folders.flat_map(|folder| PACKINGS.map(|(ending, tool)| (folder.join(format!("mpu.ko{ending}")), tool)));
    places.filter(|(path, _)| path.is_file()).find_map(|(path, tool)| {
        let bytes = packed::contents(host, File::open(&path).ok()?, tool).ok()?;
        let built = sources::look(&bytes, &path, "mpu", release, std::env::consts::ARCH).ok()?;
        sources::is_of_this_version(&bytes).then_some(built)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::{FakeHost, RELEASE};
    use std::fs;

    fn put(fake: &FakeHost, path: &str, version: &str) {
        let mut bytes = sources::fake::module(RELEASE);
        bytes.extend_from_slice(format!("version={version}\0").as_bytes());
        fake.write(path, "");
        fs::write(fake.host().at(path), bytes).expect("a module");
    }

    const THIS: &str = env!("CARGO_PKG_VERSION");

    #[test]
    fn a_module_of_this_version_is_found_where_dkms_puts_it() {
        for folder in FOLDERS {
            let fake = FakeHost::in_order();
            assert_eq!(find(&fake.host(), RELEASE), None);
            let path = format!("/lib/modules/{RELEASE}/{folder}/mpu.ko");
            put(&fake, &path, THIS);
            assert_eq!(find(&fake.host(), RELEASE).expect("found").path, fake.host().at(&path));
            put(&fake, &path, "0.0.1");
            assert_eq!(find(&fake.host(), RELEASE), None, "another version's");
        }
    }

    #[test]
    fn packed_modules_are_found_without_a_trace() {
        let fake = FakeHost::in_order();
        fake.tool("zstd", "exec /bin/cat");
        let path = format!("/lib/modules/{RELEASE}/updates/dkms/mpu.ko.zst");
        put(&fake, &path, THIS);
        assert_eq!(find(&fake.host(), RELEASE).expect("found").path, fake.host().at(path));
        assert!(!fake.host().at("/var/lib/mpu").exists());
        fake.tool("zstd", "exit 1");
        assert_eq!(find(&fake.host(), RELEASE), None, "damaged");
    }

    #[test]
    fn one_for_another_kernel_is_not_taken() {
        let fake = FakeHost::in_order();
        put(&fake, "/lib/modules/6.9.0/updates/dkms/mpu.ko", THIS);
        assert_eq!(find(&fake.host(), "6.9.0"), None, "it says that it is for another release");
    }
}
