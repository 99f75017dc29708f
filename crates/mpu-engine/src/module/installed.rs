//! The module that is built and installed already: by DKMS, together with the kernel, signed with the machine owner's key
//! where that is needed.
//!
//! Owns where such modules lie. One of another version than this executable's is not for us.

use super::packed::{self, PACKINGS};
use super::sources::{self, Built};
use mpu_host::host::Host;

/// Folders below `/lib/modules/<release>` where DKMS puts modules: Debian's and Ubuntu's, the rest of the world's, SUSE's
/// and Fedora's, and where a person does.
const FOLDERS: [&str; 4] = ["updates/dkms", "updates", "extra", "extra/dkms"];

/// The installed `mpu.ko` of this version for a kernel, with `mpu_next.ko` beside it if that is installed, too. A packed one
/// is unpacked below `/var/lib/mpu/<release>`.
pub fn find(host: &Host, release: &str) -> Option<Built> {
    let folders = FOLDERS.iter().map(|folder| host.at("/lib/modules").join(release).join(folder));
    let places =
        folders.flat_map(|folder| PACKINGS.map(|(ending, tool)| (folder.join(format!("mpu.ko{ending}")), tool)));
    places.filter(|(path, _)| path.is_file()).find_map(|(path, tool)| {
        let plain = packed::plain(host, release, path, tool, "installed").ok()?;
        let built = sources::inspect(&plain, release).ok()?;
        sources::is_this_version(&plain).then_some(built)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::build::NEXT;
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
    fn packed_modules_are_unpacked_with_their_twin() {
        let fake = FakeHost::in_order();
        fake.tool("zstd", "exec /bin/cat");
        put(&fake, &format!("/lib/modules/{RELEASE}/updates/dkms/mpu.ko.zst"), THIS);
        put(&fake, &format!("/lib/modules/{RELEASE}/updates/dkms/mpu_next.ko.zst"), THIS);
        let found = find(&fake.host(), RELEASE).expect("found").path;
        assert!(found.starts_with(fake.host().at("/var/lib/mpu")) && found.with_file_name(NEXT).is_file());
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
