//! Programs for guests, with their libraries: this machine's own, or Debian's for another architecture, unpacked into the cache.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::apt::Suite;
use crate::arch::Arch;
use crate::cpio::Archive;
use crate::run::{find_program, output, print_progress};
use crate::{files, paths};

/// Its C library is newer than that of any machine that runs `./x`, so programs built here run there.
const SUITE: &str = "trixie";

const PACKAGES: [&str; 4] = ["busybox-static", "crun", "libc-bin", "runc"];

/// Raised when the packages change, so that older ones are unpacked anew.
const RECIPE: &str = "sysroot 1";

/// The path of a program for an architecture.
pub fn program(arch: Arch, name: &str) -> Result<PathBuf> {
    if arch == Arch::Amd64 {
        return find_program(name).with_context(|| format!("no {name}"));
    }
    let root = ready(arch)?;
    let mut places = ["usr/bin", "usr/sbin"].iter().map(|folder| root.join(folder).join(name));
    places.find(|place| place.is_file()).with_context(|| format!("no {name} in {}", root.display()))
}

/// Adds a program and its libraries.
pub fn add(archive: &mut Archive, arch: Arch, name: &str, program: &Path) -> Result<()> {
    archive.file(name, 0o755, program)?;
    libraries(archive, arch, program)
}

/// Adds a program's libraries and loader, at the paths where it looks for them.
pub fn libraries(archive: &mut Archive, arch: Arch, program: &Path) -> Result<()> {
    if arch != Arch::Amd64 {
        return of_root(archive, arch, program);
    }
    // On this machine /lib is a link to /usr/lib. In the guest both are folders.
    needed_here(program).iter().try_for_each(|file| add_once(archive, file.trim_start_matches('/'), Path::new(file)))
}

/// The libraries and the loader of a program of this machine.
pub fn needed_here(program: &Path) -> Vec<String> {
    // ldd fails for a static program, which needs none.
    let listed = output(Command::new("ldd").arg(program)).unwrap_or_default();
    listed.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

/// Reads names with readelf: ldd cannot run another architecture's programs.
fn of_root(archive: &mut Archive, arch: Arch, program: &Path) -> Result<()> {
    let root = ready(arch)?;
    let folder = format!("lib/{}", arch.facts().multiarch);
    let mut seen = BTreeSet::new();
    let mut left = vec![program.to_owned()];
    while let Some(file) = left.pop() {
        let headers =
            output(Command::new(arch.tool("readelf")).args(["--dynamic", "--program-headers", "--wide"]).arg(&file))?;
        for name in headers.lines().filter_map(needed).filter(|name| seen.insert((*name).to_owned())) {
            let library = root.join("usr").join(&folder).join(name);
            ensure!(library.is_file(), "{} wants {name}, which {} has not", file.display(), root.display());
            if name.starts_with("ld-") {
                // Programs name the loader by its path.
                add_once(archive, &format!("lib/{name}"), &library)?;
            }
            add_once(archive, &format!("{folder}/{name}"), &library)?;
            left.push(library);
        }
    }
    Ok(())
}

/// The library or loader in a line of readelf's output.
fn needed(line: &str) -> Option<&str> {
    if line.contains("(NEEDED)") {
        return line.split_once('[')?.1.strip_suffix(']');
    }
    line.split_once("program interpreter: ")?.1.trim_end_matches(']').rsplit('/').next()
}

fn add_once(archive: &mut Archive, name: &str, file: &Path) -> Result<()> {
    if archive.has(name) {
        return Ok(());
    }
    archive.file(name, 0o755, file)
}

/// The folder with Debian's programs of another architecture, fetched now unless the cache has it.
fn ready(arch: Arch) -> Result<PathBuf> {
    let is_whole = |dir: &Path| files::read(&dir.join("recipe")).is_ok_and(|recipe| recipe == RECIPE);
    files::get_or_make(paths::cache("sysroot")?.join(arch.to_string()), is_whole, |partial| {
        print_progress(format!("fetching {arch} programs for guests from {SUITE}"));
        let suite = Suite::open_for(SUITE, arch)?;
        suite.unpack(&suite.with_dependencies(&PACKAGES.map(str::to_owned))?, partial)?;
        Ok(fs_err::write(partial.join("recipe"), RECIPE)?)
    })
}
