//! Installs the programs and their configuration on the host.
//!
//! Foreign files in the folder `toolkit` are removed: an earlier installer left them. Each file is replaced atomically, so that a
//! container that starts meanwhile finds the old program or the new one.
//!
//! The programs find their configuration beside themselves (`crate::config::path`). Each is a link to one executable. Only the
//! runtimes are scripts that check for a driver first: a host without a driver must start containers, too.

use super::error::InstallError;
use super::flags::Options;
use crate::config::{ADJACENT_CONFIG, Config, edit, keys};
use crate::text_file;
use mpu_os::file::sync_folder;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const OWN: &str = "mpu-container";
const LINKS: [&str; 5] = [
    "nvidia-ctk",
    "nvidia-cdi-hook",
    "nvidia-container-cli",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
];
pub const RUNTIMES: [&str; 3] =
    ["nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"];

pub fn install(
    folder: &Path,
    options: &Options,
    low_level: &[String],
    note: &dyn Fn(String),
) -> Result<(), InstallError> {
    let at = |path: &Path| {
        let path = path.to_path_buf();
        move |source| InstallError::Place { path, source }
    };
    fs::create_dir_all(folder).map_err(at(folder))?;
    let this = crate::executable::path().map_err(at(Path::new("/proc/self/exe")))?;
    if this.parent() != Some(folder) {
        put(&folder.join(OWN), |beside| fs::copy(&this, beside).map(drop)).map_err(at(&folder.join(OWN)))?;
    }
    for name in LINKS {
        put(&folder.join(name), |beside| symlink(OWN, beside)).map_err(at(&folder.join(name)))?;
    }
    let without = low_level.first().map_or("runc", String::as_str);
    for name in RUNTIMES {
        let text = script(folder, name, without);
        put(&folder.join(name), |beside| fs::write(beside, &text)).map_err(at(&folder.join(name)))?;
    }
    let config = folder.join(ADJACENT_CONFIG);
    let text = config_text(folder, options, low_level, note)?;
    text_file::save(&config, &text).map_err(at(&config))?;
    for left in others(folder).map_err(at(folder))? {
        let gone = if left.is_dir() && !left.is_symlink() { fs::remove_dir_all(&left) } else { fs::remove_file(&left) };
        gone.map_err(at(&left))?;
        note(format!("{} was an earlier installer's: removed", left.display()));
    }
    note(format!("installed in {}, configuration {}", folder.display(), config.display()));
    Ok(())
}

/// The low-level runtimes in an earlier installer's configuration; none if there is none or it cannot be read.
pub fn previous_runtimes(folder: &Path) -> Vec<String> {
    let before =
        Config::at(&folder.join(ADJACENT_CONFIG)).map(|loaded| loaded.config.runtime.runtimes).unwrap_or_default();
    before.into_iter().filter(|program| !program.is_empty() && !Path::new(program).starts_with(folder)).collect()
}

/// Puts something that is made beside it into a place, with all users' right to run it.
fn put(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let beside = path.with_file_name(format!(".new.{}", std::process::id()));
    let _ = fs::remove_file(&beside);
    let done = make(&beside).and_then(|()| {
        if !beside.is_symlink() {
            fs::set_permissions(&beside, fs::Permissions::from_mode(0o755))?;
            // Engines start it: after a crash it must not be empty.
            fs::File::open(&beside)?.sync_all()?;
        }
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path)?;
        }
        fs::rename(&beside, path)?;
        path.parent().map_or(Ok(()), sync_folder)
    });
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done
}

fn others(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let config = Path::new(ADJACENT_CONFIG).iter().next().unwrap_or_default();
    let is_own = |name: &std::ffi::OsStr| {
        name == OWN || name == config || LINKS.iter().chain(&RUNTIMES).any(|program| name == *program)
    };
    let there = fs::read_dir(folder)?.flatten().filter(|entry| !is_own(&entry.file_name()));
    Ok(there.map(|entry| entry.path()).collect())
}

fn script(folder: &Path, name: &str, without: &str) -> String {
    format!(
        "#!/bin/sh\n\
         # Written by nvidia-ctk-installer. While the driver's module is not loaded there is no GPU to give, and containers\n\
         # start as they are: the driver's own container may be one of them.\n\
         grep -q '^nvidia ' /proc/modules 2>/dev/null || exec {} \"$@\"\n\
         exec {} {name} \"$@\"\n",
        quoted(without),
        quoted(&folder.join(OWN).display().to_string()),
    )
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn config_text(
    folder: &Path,
    options: &Options,
    low_level: &[String],
    note: &dyn Fn(String),
) -> Result<String, InstallError> {
    let program = |name: &str| folder.join(name).display().to_string();
    let root = options.text("driver-root");
    let ldconfig = Path::new("/").join(root).join("sbin/ldconfig");
    let mut sets = vec![
        ("nvidia-container-cli.root".to_string(), root.to_string()),
        ("nvidia-container-cli.path".into(), program("nvidia-container-cli")),
        ("nvidia-container-cli.ldconfig".into(), format!("@{}", ldconfig.display())),
        ("nvidia-ctk.path".into(), program("nvidia-ctk")),
        ("nvidia-container-runtime-hook.path".into(), program("nvidia-container-runtime-hook")),
        ("nvidia-container-runtime.runtimes".into(), low_level.join(SEPARATOR)),
    ];
    for name in [
        "accept-nvidia-visible-devices-envvar-when-unprivileged",
        "accept-nvidia-visible-devices-as-volume-mounts",
        "nvidia-container-runtime-hook.skip-mode-detection",
    ] {
        sets.push((name.into(), options.on(name).to_string()));
    }
    for name in [
        "nvidia-container-runtime.debug",
        "nvidia-container-runtime.log-level",
        "nvidia-container-runtime.mode",
        "nvidia-container-runtime.modes.cdi.default-kind",
        "nvidia-container-cli.debug",
    ] {
        sets.push((name.into(), options.text(name).to_string()));
    }
    let prefixes = "nvidia-container-runtime.modes.cdi.annotation-prefixes";
    sets.push((prefixes.into(), options.list(prefixes).join(SEPARATOR)));
    for feature in options.list("opt-in-features") {
        match keys::find(&format!("features.{feature}")) {
            Some(_) => sets.push((format!("features.{feature}"), "true".into())),
            None => note(format!("there is no feature '{feature}': passed over")),
        }
    }
    sets.retain(|(_, value)| !value.is_empty());
    let sets: Vec<String> = sets.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    let text = keys::default_text(&Config::of_host(Path::new("/")));
    let text = edit::set_each(&text, &sets, SEPARATOR)?;
    let more: Vec<String> = Some(options.text("set").to_string()).filter(|set| !set.is_empty()).into_iter().collect();
    Ok(edit::set(&text, &more, ":")?)
}

/// Between the elements of a list: no path and no name has it.
const SEPARATOR: &str = "\u{1f}";
