//! Links, folders and modes on fake hosts.

use super::*;
use mpu_host::host::fake::FakeHost;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};

/// `/a/b/file`, and `/opt` beside it, all root's alone.
fn in_order() -> FakeHost {
    let fake = FakeHost::in_order();
    fake.write("/a/b/file", "first");
    fake.write("/opt/x", "");
    for part in ["/a", "/a/b", "/opt"] {
        chmod(&fake, part, 0o755);
    }
    chmod(&fake, "/a/b/file", 0o644);
    fake
}

fn chmod(fake: &FakeHost, path: &str, mode: u32) {
    fs::set_permissions(fake.host().at(path), fs::Permissions::from_mode(mode)).expect("a mode");
}

fn link(fake: &FakeHost, target: impl AsRef<Path>, path: &str) {
    symlink(target, fake.host().at(path)).expect("a link");
}

/// The result for a file in a folder.
fn verdict(fake: &FakeHost, folder: &str, path: &str) -> Result<PathBuf, String> {
    resolve(&fake.host(), &fake.host().at(folder), &fake.host().at(path))
}

fn root(fake: &FakeHost) -> PathBuf {
    fs::canonicalize(fake.host().at("/")).expect("a root")
}

#[test]
fn links_are_followed_to_path_without_any() {
    let fake = in_order();
    link(&fake, "../a/b", "/opt/lib");
    link(&fake, fake.host().at("/opt/lib"), "/opt/absolute");
    link(&fake, "../../../../../../../../../a/b", "/opt/high");
    let expect = root(&fake).join("a/b/file");
    for folder in ["/a", "/a/b", "/opt/lib", "/opt/absolute", "/opt/high", "/opt/../a"] {
        let file = if folder.ends_with('a') { format!("{folder}/b/file") } else { format!("{folder}/file") };
        assert_eq!(verdict(&fake, folder, &file), Ok(expect.clone()), "{folder}");
    }
    // The link goes elsewhere, and the path does not.
    fake.write("/a/other/file", "second");
    fs::remove_file(fake.host().at("/opt/lib")).expect("removed");
    link(&fake, "../a/other", "/opt/lib");
    let mut text = String::new();
    open(&expect).expect("opened").read_to_string(&mut text).expect("read");
    assert_eq!(text, "first");
}

#[test]
fn every_folder_on_path_is_checked() {
    for (folder, holder) in [("/opt/lib", "/opt"), ("/opt/lib", "/a"), ("/opt/lib", "/a/b"), ("/opt/via", "/mid")] {
        let fake = in_order();
        fake.write("/mid/x", "");
        chmod(&fake, "/mid", 0o755);
        link(&fake, "../a/b", "/opt/lib");
        link(&fake, "../mid/lib", "/opt/via");
        link(&fake, "../a/b", "/mid/lib");
        let file = format!("{folder}/file");
        assert!(verdict(&fake, folder, &file).is_ok(), "{:?}", verdict(&fake, folder, &file));
        for mode in [0o777, 0o775, 0o1777] {
            chmod(&fake, holder, mode);
            let why = verdict(&fake, folder, &file).expect_err(holder);
            assert!(why.contains(&format!("{holder} (mode {mode:o})")), "{why}");
        }
    }
}

#[test]
fn unwalkable_path_is_refused() {
    let fake = in_order();
    link(&fake, "loop", "/opt/loop");
    assert!(verdict(&fake, "/opt", "/opt/loop").expect_err("a loop").contains("too many links"));
    // The kernel resolves such a link by the reading process.
    let magic = format!("/proc/self/root{}", root(&fake).join("a/b").display());
    assert!(Path::new(&magic).is_dir());
    link(&fake, magic, "/opt/magic");
    assert!(verdict(&fake, "/opt/magic", "/opt/magic/file").expect_err("magic").contains("leads out"));
    assert!(verdict(&fake, "/opt", "/opt").expect_err("a folder").contains("not a plain file"));
    link(&fake, "../a/b/file", "/opt/out");
    assert!(verdict(&fake, "/opt", "/opt/out").expect_err("out").contains("leads out of the folder, to "));
}

#[test]
fn link_created_after_walk_is_not_opened() {
    let fake = in_order();
    let path = verdict(&fake, "/a", "/a/b/file").expect("in order");
    fs::rename(fake.host().at("/a/b"), fake.host().at("/a/kept")).expect("moved");
    link(&fake, "kept", "/a/b");
    assert_eq!(open(&path).expect_err("a link on the way").raw_os_error(), Some(libc::ELOOP));
    fs::remove_file(fake.host().at("/a/b")).expect("removed");
    fs::rename(fake.host().at("/a/kept"), fake.host().at("/a/b")).expect("moved");
    assert!(open(&path).is_ok());
    fs::rename(&path, path.with_file_name("kept")).expect("moved");
    link(&fake, "kept", "/a/b/file");
    assert!(open(&path).is_err());
    assert!(open(path.parent().expect("a folder")).is_err(), "a folder");
}
