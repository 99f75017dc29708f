//! Unpacks with a fake tool, and checks the store at each moment.

use super::*;
use mpu_host::explain::Explain;
use mpu_host::host::fake::{FakeHost, RELEASE};
use std::os::unix::fs::PermissionsExt;

const PACKED: &str = "/m/mpu.ko.zst";
const PACKED_TWIN: &str = "/m/mpu_next.ko.zst";

fn in_order() -> FakeHost {
    let fake = FakeHost::in_order();
    fake.tool("zstd", "exec /bin/cat");
    fake.write(PACKED, "one");
    fake.write(PACKED_TWIN, "two");
    fake
}

fn unpack(fake: &FakeHost) -> Result<PathBuf, ModuleError> {
    uncompressed_path(&fake.host(), RELEASE, &fake.host().at(PACKED), "installed")
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn module_and_twin_unpack_without_leftovers() {
    let fake = in_order();
    let folder = fake.host().at(STORE).join(RELEASE).join("installed");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join(".mpu.ko.killed"), "half").expect("written");
    let path = unpack(&fake).expect("unpacked");
    assert_eq!(path, folder.join("mpu.ko"));
    assert_eq!(
        (fs::read(&path).expect("one"), fs::read(folder.join(NEXT)).expect("two")),
        (b"one".into(), b"two".into())
    );
    assert_eq!(names(&folder), ["lock", "mpu.ko", NEXT]);
    assert_eq!(fs::metadata(folder.join("lock")).expect("a lock").permissions().mode() & 0o777, 0o600);
    fake.remove(PACKED_TWIN);
    unpack(&fake).expect("unpacked");
    assert_eq!(names(&folder), ["lock", "mpu.ko"], "a twin of another module is none");

    let plain_one = fake.host().at("/m/mpu.ko");
    assert_eq!(uncompressed_path(&fake.host(), RELEASE, &plain_one, "installed").expect("as it is"), plain_one);
}

#[test]
fn failed_unpack_keeps_previous_module() {
    let fake = in_order();
    let path = unpack(&fake).expect("unpacked");
    for (body, message) in [
        ("exit 1", "is damaged: zstd cannot unpack it"),
        ("echo half; exit 1", "is damaged: zstd cannot unpack it"),
        ("exec /usr/bin/head -c 68000000 /dev/zero", "unpacks to more than 64 MiB, as no module is"),
        ("exec /bin/cat /dev/zero", "unpacks to more than 64 MiB"),
    ] {
        fake.tool("zstd", body);
        let error = unpack(&fake).expect_err(message);
        assert!(error.to_string().contains(message) && error.fix().contains(PACKED_TWIN), "{error}: {}", error.fix());
        assert_eq!(error.code(), "module_packed");
        assert_eq!(fs::read(&path).expect("one"), b"one");
        assert_eq!(fs::read(path.with_file_name(NEXT)).expect("two"), b"two");
    }
    fake.remove("/usr/bin/zstd");
    assert!(
        unpack(&fake).expect_err("no tool").to_string().contains("cannot be unpacked: there is no zstd on this host")
    );
}

/// A reader of the store finds both files, complete, at any moment while others unpack.
#[test]
fn concurrent_unpacking_keeps_files_complete() {
    let fake = in_order();
    let text = "m".repeat(300_000);
    fake.write(PACKED, &text);
    fake.write(PACKED_TWIN, &text);
    let path = unpack(&fake).expect("unpacked");
    std::thread::scope(|scope| {
        let unpackers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| (0..8).for_each(|_| drop(unpack(&fake).expect("each"))))).collect();
        while unpackers.iter().any(|unpacker| !unpacker.is_finished()) {
            for file in [path.clone(), path.with_file_name(NEXT)] {
                assert_eq!(fs::read(&file).expect("there").len(), text.len(), "{}", file.display());
            }
        }
    });
}
