//! Installs the programs and their configuration on the host.
//!
//! Foreign files in the directory `toolkit` are removed: an earlier installer left them. Each file is replaced atomically, so that a
//! container that starts meanwhile finds the old program or the new one.
//!
//! The programs read the configuration in their own directory (`crate::config::path`). They are links to one executable. Only the
//! runtimes are scripts that check for a driver first: a host without a driver must start containers, too.

use super::error::InstallError;
use super::flags::Options;
use super::note::note;
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

pub fn install(folder: &Path, options: &Options, runtimes: &[String]) -> Result<(), InstallError> {
    let at = |path: &Path| {
        let path = path.to_path_buf();
        move |source| InstallError::File { path, source }
    };
    fs::create_dir_all(folder).map_err(at(folder))?;
    let this = crate::executable::path().map_err(at(Path::new("/proc/self/exe")))?;
    if this.parent() != Some(folder) {
        install_file(&folder.join(OWN), |temporary| fs::copy(&this, temporary).map(drop))
            .map_err(at(&folder.join(OWN)))?;
    }
    for name in LINKS {
        install_file(&folder.join(name), |temporary| symlink(OWN, temporary)).map_err(at(&folder.join(name)))?;
    }
    let fallback = runtimes.first().map_or("runc", String::as_str);
    for name in RUNTIMES {
        let text = script(folder, name, fallback);
        install_file(&folder.join(name), |temporary| fs::write(temporary, &text)).map_err(at(&folder.join(name)))?;
    }
    let config = folder.join(ADJACENT_CONFIG);
    let text = config_text(folder, options, runtimes)?;
    text_file::save(&config, &text).map_err(at(&config))?;
    for foreign in foreign_files(folder).map_err(at(folder))? {
        let removed = if foreign.is_dir() && !foreign.is_symlink() {
            fs::remove_dir_all(&foreign)
        } else {
            fs::remove_file(&foreign)
        };
        removed.map_err(at(&foreign))?;
        note(format!("{} was an earlier installer's: removed", foreign.display()));
    }
    note(format!("installed in {}, configuration {}", folder.display(), config.display()));
    Ok(())
}

/// The low-level runtimes in an earlier installer's configuration; empty if it is missing or cannot be read.
pub fn previous_runtimes(folder: &Path) -> Vec<String> {
    let before =
        Config::at(&folder.join(ADJACENT_CONFIG)).map(|loaded| loaded.config.runtime.runtimes).unwrap_or_default();
    before.into_iter().filter(|program| !program.is_empty() && !Path::new(program).starts_with(folder)).collect()
}

/// Replaces a file atomically. `write` creates a temporary file in the same directory; all users may execute the result.
fn install_file(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let temporary = path.with_file_name(format!(".new.{}", std::process::id()));
    let _ = fs::remove_file(&temporary);
    let done = write(&temporary).and_then(|()| {
        if !temporary.is_symlink() {
            fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))?;
            // Synced before the rename: engines start it, so it must not be empty after a crash.
            fs::File::open(&temporary)?.sync_all()?;
        }
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path)?;
        }
        fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), sync_folder)
    });
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    done
}

fn foreign_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let config = Path::new(ADJACENT_CONFIG).iter().next().unwrap_or_default();
    let is_own = |name: &std::ffi::OsStr| {
        name == OWN || name == config || LINKS.iter().chain(&RUNTIMES).any(|program| name == *program)
    };
    let entries = fs::read_dir(folder)?.flatten().filter(|entry| !is_own(&entry.file_name()));
    Ok(entries.map(|entry| entry.path()).collect())
}

fn script(folder: &Path, name: &str, fallback: &str) -> String {
    format!(
        "#!/bin/sh\n\
         # Written by nvidia-ctk-installer. While the driver's module is not loaded there is no GPU to give, and containers\n\
         # start as they are: the driver's own container may be one of them.\n\
         grep -q '^nvidia ' /proc/modules 2>/dev/null || exec {} \"$@\"\n\
         exec {} {name} \"$@\"\n",
        shell_quoted(fallback),
        shell_quoted(&folder.join(OWN).display().to_string()),
    )
}

fn shell_quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn config_text(folder: &Path, options: &Options, runtimes: &[String]) -> Result<String, InstallError> {
    let program = |name: &str| folder.join(name).display().to_string();
    let root = options.text("driver-root");
    let ldconfig = Path::new("/").join(root).join("sbin/ldconfig");
    let mut sets = vec![
        ("nvidia-container-cli.root".to_string(), root.to_string()),
        ("nvidia-container-cli.path".into(), program("nvidia-container-cli")),
        ("nvidia-container-cli.ldconfig".into(), format!("@{}", ldconfig.display())),
        ("nvidia-ctk.path".into(), program("nvidia-ctk")),
        ("nvidia-container-runtime-hook.path".into(), program("nvidia-container-runtime-hook")),
        ("nvidia-container-runtime.runtimes".into(), runtimes.join(SEPARATOR)),
    ];
    for name in [
        "accept-nvidia-visible-devices-envvar-when-unprivileged",
        "accept-nvidia-visible-devices-as-volume-mounts",
        "nvidia-container-runtime-hook.skip-mode-detection",
    ] {
        sets.push((name.into(), options.is_on(name).to_string()));
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

/// Separates the elements of a list. It occurs in no path and no name.
const SEPARATOR: &str = "\u{1f}";
