//! Prebuilt modules on fake hosts: the selected one, and each reason to pass one over.

use super::fake::put;
use super::*;
use mpu_host::host::fake::{FakeHost, RELEASE};
use std::os::unix::fs::{PermissionsExt, symlink};

const THIS: &str = env!("CARGO_PKG_VERSION");

fn all(_: &Built) -> Result<(), String> {
    Ok(())
}

fn in_order() -> (FakeHost, PathBuf) {
    let fake = FakeHost::in_order();
    put(&fake, FOLDERS[0], RELEASE, RELEASE, THIS);
    let path = fake.host().at(FOLDERS[0]).join(RELEASE).join("mpu.ko");
    (fake, path)
}

#[test]
fn host_folder_precedes_image_folder() {
    let fake = FakeHost::in_order();
    assert_eq!(find(&fake.host(), RELEASE, all), SearchResult::default());
    for folder in FOLDERS.iter().rev() {
        put(&fake, folder, RELEASE, RELEASE, THIS);
        let found = find(&fake.host(), RELEASE, all);
        let path = fake.host().at(folder).join(RELEASE).join("mpu.ko");
        assert_eq!((found.usable.map(|built| built.path), found.passed_over), (Some(path), Vec::new()));
    }
    assert_eq!(find(&fake.host(), "../6.1.0", all), SearchResult::default(), "a release is one name");
}

/// Each change to the file, and the reason to pass it over.
#[test]
fn unusable_module_is_passed_over_with_reason() {
    let mode = |bits| move |_: &FakeHost, path: &Path| chmod(path, bits);
    type Damage = Box<dyn Fn(&FakeHost, &Path)>;
    let cases: Vec<(&str, Damage)> = vec![
        ("is of MPU 0.0.9, and this is mpu", Box::new(|f, _| put(f, FOLDERS[0], RELEASE, RELEASE, "0.0.9"))),
        ("was built for kernel 6.9.0", Box::new(|f, _| put(f, FOLDERS[0], RELEASE, "6.9.0", THIS))),
        ("is no kernel module of MPU", Box::new(|_, path| fs::write(path, "text").expect("written"))),
        ("is no kernel module of MPU", Box::new(|_, path| fs::write(path, "").expect("written"))),
        ("others can write to it (mode 666)", Box::new(mode(0o666))),
        ("others can write to it (mode 664)", Box::new(mode(0o664))),
        ("others can write to", Box::new(|_, path| chmod(path.parent().expect("a folder"), 0o777))),
        (
            "is a link that leads out of the folder",
            Box::new(|f, path| {
                fs::rename(path, f.host().at("/elsewhere.ko")).expect("moved");
                symlink(f.host().at("/elsewhere.ko"), path).expect("a link");
            }),
        ),
        (
            "is a link that leads out of the folder",
            Box::new(|f, path| {
                let folder = path.parent().expect("a folder");
                fs::rename(folder, f.host().at("/elsewhere")).expect("moved");
                symlink(f.host().at("/elsewhere"), folder).expect("a link");
            }),
        ),
        (
            "cannot be looked at",
            Box::new(|_, path| {
                fs::remove_file(path).expect("removed");
                symlink("nowhere", path).expect("a link");
            }),
        ),
        (
            "is not a plain file",
            Box::new(|_, path| {
                fs::remove_file(path).expect("removed");
                let made = std::process::Command::new("mkfifo").arg(path).status();
                assert!(made.expect("mkfifo, of coreutils").success());
            }),
        ),
        (
            "has a mpu_next.ko beside it that is not root's alone",
            Box::new(|_, path| chmod(&path.with_file_name(NEXT), 0o646)),
        ),
        (
            "has a mpu_next.ko beside it that is no kernel module",
            Box::new(|_, path| {
                fs::copy(path, path.with_file_name(NEXT)).expect("copied");
            }),
        ),
    ];
    for (reason, damage) in cases {
        let (fake, path) = in_order();
        put(&fake, FOLDERS[1], RELEASE, RELEASE, THIS);
        damage(&fake, &path);
        let found = find(&fake.host(), RELEASE, all);
        let usable = found.usable.expect("the other folder's").path;
        assert!(usable.starts_with(fake.host().at(FOLDERS[1])), "{reason}: {usable:?}");
        let [over] = found.passed_over.as_slice() else { panic!("{reason}: {:?}", found.passed_over) };
        assert!(over.path == path && over.why.contains(reason), "{reason}: {over}");
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

#[test]
fn links_within_folder_are_followed() {
    let (fake, path) = in_order();
    let folder = path.parent().expect("a folder");
    fs::rename(folder, folder.with_file_name("kept")).expect("moved");
    symlink("kept", folder).expect("a link");
    assert!(find(&fake.host(), RELEASE, all).usable.is_some());
}

#[test]
fn packed_module_needs_its_tool() {
    let (fake, path) = in_order();
    for name in ["mpu.ko", NEXT] {
        let plain = path.with_file_name(name);
        fs::rename(&plain, path.with_file_name(format!("{name}.xz"))).expect("moved");
    }
    let over = find(&fake.host(), RELEASE, all).passed_over;
    assert!(over[0].why.contains("there is no xz on this host"), "{over:?}");
    fake.tool("xz", "exit 1");
    let over = find(&fake.host(), RELEASE, all).passed_over;
    assert!(over[0].why.contains("is damaged"), "{over:?}");
    fake.tool("xz", "exec /bin/cat");
    let usable = find(&fake.host(), RELEASE, all).usable.expect("unpacked").path;
    assert_eq!(usable, path.with_file_name("mpu.ko.xz"));
    fake.tool("xz", "exec /usr/bin/head -c 68000000 /dev/zero");
    let over = find(&fake.host(), RELEASE, all).passed_over;
    assert!(over[0].why.contains("unpacks to more than 64 MiB"), "{over:?}");
    assert!(!fake.host().at("/var/lib/mpu").exists(), "looking leaves no trace");

    let other = path.with_file_name("other.gz");
    fs::rename(path.with_file_name("mpu.ko.xz"), &other).expect("moved");
    symlink("other.gz", path.with_file_name("mpu.ko.xz")).expect("a link");
    let over = find(&fake.host(), RELEASE, all).passed_over;
    assert!(over[0].why.contains("ends otherwise"), "{over:?}");
}

#[test]
fn oversized_module_is_passed_over() {
    let (fake, path) = in_order();
    File::options().write(true).open(&path).and_then(|file| file.set_len(1 << 40)).expect("a large file");
    let over = find(&fake.host(), RELEASE, all).passed_over;
    assert!(over[0].why.contains("is larger than 64 MiB"), "{over:?}");
}

/// A user who may change a link to the folder decides which module is loaded.
#[test]
fn module_folder_link_must_be_root_only() {
    let (fake, path) = in_order();
    let at = |path: &str| fake.host().at(path);
    fs::rename(at("/usr/lib/mpu/modules"), at("/usr/lib/kept")).expect("moved");
    symlink("../kept", at("/usr/lib/mpu/modules")).expect("a link");
    let usable = || find(&fake.host(), RELEASE, all);
    let real = at("/usr/lib/kept").join(RELEASE).join("mpu.ko");
    assert_eq!(usable().usable.expect("root's").path, real, "the path that was checked, and no other");
    chmod(&at("/usr/lib/mpu"), 0o777);
    let over = usable().passed_over;
    assert!(over[0].path == path && over[0].why.contains("others can write to"), "{over:?}");
    assert!(over[0].why.contains("/usr/lib/mpu (mode 777)"), "{over:?}");
    chmod(&at("/usr/lib/mpu"), 0o755);
    assert!(usable().usable.is_some());
    // Only root can give files away.
    if std::os::unix::fs::lchown(at("/usr/lib/mpu/modules"), Some(4711), None).is_ok() {
        assert!(usable().passed_over[0].why.contains("belongs to user 4711"), "{:?}", usable());
    }
}

#[test]
fn caller_predicate_can_pass_over_module() {
    let (fake, path) = in_order();
    let found = find(&fake.host(), RELEASE, |built| match built.signed {
        true => Ok(()),
        false => Err("carries no signature".to_string()),
    });
    assert_eq!(found.passed_over, [PassedOver { path, why: "carries no signature".to_string() }]);
}

fn put_installed(fake: &FakeHost, path: &str, version: &str) {
    fake.write(path, "");
    fs::write(fake.host().at(path), sources::fake::module_of("mpu", RELEASE, version)).expect("a module");
}

#[test]
fn dkms_module_of_this_version_is_found() {
    for folder in INSTALLED {
        let fake = FakeHost::in_order();
        assert_eq!(find_installed(&fake.host(), RELEASE), SearchResult::default());
        let path = format!("/lib/modules/{RELEASE}/{folder}/mpu.ko");
        put_installed(&fake, &path, THIS);
        assert_eq!(find_installed(&fake.host(), RELEASE).usable.expect("found").path, fake.host().at(&path));
        put_installed(&fake, &path, "0.0.1");
        let why = format!("is of MPU 0.0.1, and this is mpu {THIS}");
        let path = fake.host().at(&path);
        assert_eq!(
            find_installed(&fake.host(), RELEASE),
            SearchResult { usable: None, passed_over: vec![PassedOver { path, why }] }
        );
    }
}

#[test]
fn packed_installed_modules_are_found_without_trace() {
    let fake = FakeHost::in_order();
    fake.tool("zstd", "exec /bin/cat");
    let path = format!("/lib/modules/{RELEASE}/updates/dkms/mpu.ko.zst");
    put_installed(&fake, &path, THIS);
    assert_eq!(find_installed(&fake.host(), RELEASE).usable.expect("found").path, fake.host().at(path));
    assert!(!fake.host().at("/var/lib/mpu").exists());
    let why = || {
        let found = find_installed(&fake.host(), RELEASE);
        assert_eq!(found.usable, None);
        found.passed_over.into_iter().map(|over| over.why).collect::<Vec<_>>()
    };
    fake.tool("zstd", "exit 1");
    assert_eq!(why(), ["is damaged: zstd cannot unpack it"]);
    fake.remove("/usr/bin/zstd");
    assert_eq!(why(), ["cannot be unpacked: there is no zstd on this host"]);
}

#[test]
fn installed_for_another_kernel_is_not_taken() {
    let fake = FakeHost::in_order();
    put_installed(&fake, "/lib/modules/6.9.0/updates/dkms/mpu.ko", THIS);
    let found = find_installed(&fake.host(), "6.9.0");
    assert_eq!(found.usable, None);
    assert_eq!(found.passed_over[0].why, format!("was built for kernel {RELEASE}"));
}
