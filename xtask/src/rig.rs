//! Makes the trees of `rig.toml` for tests of mpu-container, in the cache's `rig/`: hosts with engines and a driver, roots of containers.
//! Packages are unpacked and laid out as an installer would, and each tree's own ldconfig makes its `ld.so.cache`. Needs root: the trees'
//! files belong to root.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::apt::Suite;
use crate::files::{self, with_suffix};
use crate::run::output;
use crate::run::{is_root, print_progress};
use crate::{paths, setup};

/// The environment variable by which `cargo test` finds the trees.
pub const VARIABLE: &str = "MPU_RIG";

/// Folders that no test reads.
const PRUNED: [&str; 7] = ["doc", "info", "lintian", "locale", "man", "bug", "zoneinfo"];

/// The driver's folders in Debian's packages, and those of NVIDIA's installer.
const MOVED: [(&str, &str); 2] =
    [("usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/x86_64-linux-gnu"), ("usr/lib/nvidia/current", "usr/bin")];

#[derive(Deserialize)]
struct Table {
    host: Root,
    newest: Root,
    driver: Vec<Driver>,
    tools: Vec<Root>,
    root: Vec<Root>,
}

#[derive(Deserialize, Serialize)]
struct Driver {
    version: String,
    suite: String,
    packages: Vec<String>,
}

#[derive(Deserialize, Serialize)]
struct Root {
    name: String,
    suite: String,
    #[serde(default)]
    dependencies: bool,
    packages: Vec<String>,
    #[serde(default)]
    links: BTreeMap<String, String>,
    only: Option<String>,
}

pub const ROOT_ONLY: &str = "trees of files that belong to root are made as root only";

/// The folder with all trees, made now unless the cache has them.
pub fn ready() -> Result<PathBuf> {
    if !is_root() {
        bail!(ROOT_ONLY);
    }
    setup::require(setup::KERNELS)?;
    let table: Table = toml::from_str(include_str!("../rig.toml")).context("rig.toml")?;
    let rig = paths::cache("rig")?;
    let first = &table.driver[..table.driver.len().min(1)];
    for (row, drivers) in [(&table.host, &table.driver[..]), (&table.newest, first)] {
        let host = make_tree(&rig.join(&row.name), row, |tree| make_root(tree, row))?;
        for driver in drivers {
            let place = rig.join(format!("{}-{}", row.name, driver.version));
            make_tree(&place, &(row, driver), |tree| make_driver(tree, &host, driver))?;
        }
    }
    // Each set of tools, with the first driver.
    let driver = table.driver.first().context("rig.toml has no driver")?;
    for tools in &table.tools {
        let base = make_tree(&rig.join(format!("tools-{}", tools.name)), tools, |tree| make_root(tree, tools))?;
        make_tree(&rig.join(format!("host-{}", tools.name)), &(tools, driver), |tree| {
            make_driver(tree, &base, driver)
        })?;
    }
    for root in &table.root {
        make_tree(&rig.join(format!("root-{}", root.name)), root, |tree| make_root(tree, root))?;
    }
    Ok(rig)
}

/// The complete tree at `place`, made anew if its row has changed.
fn make_tree(place: &Path, row: &impl Serialize, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let row = origin(row)?;
    let mark = with_suffix(place, "made-from");
    let is_whole = |place: &Path| place.is_dir() && files::read(&mark).is_ok_and(|text| text == row);
    files::get_or_make(place.to_owned(), is_whole, |partial| {
        // The mark must not stay beside an older tree.
        files::remove(place)?;
        print_progress(format!("making {}", place.display()));
        make(partial).with_context(|| format!("cannot make {}", place.display()))?;
        Ok(fs::write(&mark, &row)?)
    })
}

/// The contents of a tree's mark: its row, and this module's version, to be raised when trees are made differently.
fn origin(row: &impl Serialize) -> Result<String> {
    Ok(format!("{}\nway 2\n", serde_json::to_string(row)?))
}

fn make_driver(tree: &Path, host: &Path, driver: &Driver) -> Result<()> {
    // Hard links share files with the host's tree. A program that replaces a file, as ldconfig does, makes a new one.
    output(Command::new("cp").arg("-al").arg(host.join(".")).arg(tree))?;
    let unpacked = with_suffix(tree, "unpacked");
    files::remove(&unpacked)?;
    Suite::open(&driver.suite)?.unpack(&driver.packages, &unpacked)?;
    prune(&unpacked)?;
    for (from, to) in MOVED {
        merge(&unpacked.join(from), &unpacked.join(to))?;
        fs::remove_dir_all(unpacked.join(from))?;
    }
    // Follow the host's links: packages of older suites still write to /lib.
    for folder in ["etc", "lib", "usr"] {
        let from = unpacked.join(folder);
        if from.is_dir() {
            merge(&from, &fs::canonicalize(tree.join(folder))?)?;
        }
    }
    fs::remove_dir_all(&unpacked)?;
    if !tree.join(format!("usr/lib/x86_64-linux-gnu/libcuda.so.{}", driver.version)).is_file() {
        bail!("the packages hold no libcuda.so.{}: has the archive moved on? Adjust rig.toml", driver.version);
    }
    ldconfig(tree, tree)
}

fn make_root(tree: &Path, root: &Root) -> Result<()> {
    let suite = Suite::open(&root.suite)?;
    let packages = if root.dependencies { suite.with_dependencies(&root.packages)? } else { root.packages.clone() };
    suite.unpack(&packages, tree)?;
    if let Some(only) = &root.only {
        let moved = with_suffix(tree, "kept");
        files::remove(&moved)?;
        fs::rename(tree.join(only), &moved)?;
        files::recreate(tree)?;
        fs::rename(&moved, tree.join(Path::new(only).file_name().context("a name")?))?;
        return Ok(());
    }
    prune(tree)?;
    write_users(tree)?;
    make_folders(tree)?;
    for (link, target) in &root.links {
        let link = tree.join(link);
        fs::create_dir_all(link.parent().context("a link lies in a folder")?)?;
        // Replaces another link, or a folder of the packages, such as /var/run.
        if fs::remove_file(&link).is_err() && link.is_dir() {
            fs::remove_dir_all(&link)?;
        }
        symlink(target, &link)?;
    }
    // An image has the cache that its own ldconfig made.
    let has_ldconfig = ["sbin/ldconfig", "usr/sbin/ldconfig"].iter().any(|path| tree.join(path).is_file());
    if has_ldconfig { ldconfig(tree, tree) } else { Ok(()) }
}

fn ldconfig(tool: &Path, tree: &Path) -> Result<()> {
    let program = ["usr/sbin/ldconfig", "sbin/ldconfig"].map(|path| tool.join(path));
    let program = program.iter().find(|path| path.is_file()).context("no ldconfig in the tree")?;
    let _ = fs::remove_file(tree.join("etc/ld.so.cache"));
    output(Command::new(program).arg("-X").arg("-r").arg(tree)).map(drop)
}

/// Moves what is in one folder into another, folder by folder.
fn merge(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs_err::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            merge(&entry.path(), &place)?;
        } else {
            let _ = fs::remove_file(&place);
            fs::rename(entry.path(), &place)?;
        }
    }
    Ok(())
}

fn prune(tree: &Path) -> Result<()> {
    PRUNED.iter().try_for_each(|name| files::remove(&tree.join("usr/share").join(name)))
}

/// Writes root and one user, with subordinate ids.
fn write_users(tree: &Path) -> Result<()> {
    fs::create_dir_all(tree.join("etc"))?;
    let passwd = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n";
    fs::write(tree.join("etc/passwd"), passwd)?;
    fs::write(tree.join("etc/group"), "root:x:0:\nuser:x:1000:\n")?;
    for file in ["etc/subuid", "etc/subgid"] {
        fs::write(tree.join(file), "user:100000:65536\n")?;
    }
    Ok(())
}

/// Makes the mount points, and the users' home folders.
fn make_folders(tree: &Path) -> Result<()> {
    for folder in ["dev", "etc", "proc", "root", "run", "sys", "tmp", "var/lib", "var/tmp", "home/user"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    std::os::unix::fs::chown(tree.join("home/user"), Some(1000), Some(1000)).context("cannot give a folder to a user")
}
