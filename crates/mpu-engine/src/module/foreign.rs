//! Finds other projects' modules with one of our names, and the files that load them. Changes nothing.
//!
//! Source: the Makefile, install.sh, run.sh and src/mpu_drv.c of matpool/mpu, lengrongfu/mpu and biubushy/mpu.

use super::checks::Unfit;
use super::compression;
use super::prebuilt::{INSTALLED, module_file_names};
use super::sources;
use super::state::{Instance, Presence};
use mpu_host::host::Host;
use mpu_os::file::{Links, open_regular};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The version of all three projects' modules.
const OLDER: &str = "0.1-pre";

/// Files of systemd-modules-load(8) that those projects write. MPU writes none: its unit loads the module.
const LOADERS: [&str; 3] = ["/etc/modules-load.d/mpu.conf", "/etc/modules-load.d/matpool-mpu.conf", MODULES];

/// biubushy's run.sh adds a line to it. Other lines stay.
const MODULES: &str = "/etc/modules";

const KERNELS: &str = "/lib/modules";

/// A file in the sources of each of our releases, and in no other project's.
const OUR_SOURCE: &str = "mpu_core.o_shipped";

/// What was found on a host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Foreign {
    /// Our names under which another project's module is loaded.
    pub loaded: Vec<&'static str>,
    /// The version of the first.
    pub version: Option<String>,
    /// Files that load such a module at the next boot, and such modules for any kernel of the host.
    pub files: Vec<PathBuf>,
    /// DKMS's entries that are not ours, as `mpu/VERSION`.
    pub dkms: Vec<String>,
}

pub fn find(host: &Host) -> Foreign {
    let of_version = |version: &String| !host.at(format!("/usr/src/mpu-{version}/{OUR_SOURCE}")).exists();
    let versions = host.names("/var/lib/dkms/mpu").into_iter();
    let dkms = versions
        .filter(|name| host.at(format!("/usr/src/mpu-{name}")).is_dir())
        .filter(of_version)
        .map(|version| format!("mpu/{version}"))
        .collect();
    let loaders = LOADERS.iter().filter(|path| {
        host.text(path).is_some_and(|text| text.lines().any(|line| line.trim() == Instance::Mpu.name()))
    });
    let files = loaders.map(PathBuf::from).chain(modules(host)).collect();
    Foreign { files, dkms, ..loaded(host) }
}

pub fn loaded(host: &Host) -> Foreign {
    let is_foreign = |instance: &Instance| instance.presence(host) == Presence::Foreign;
    let loaded: Vec<&str> = Instance::ALL.into_iter().filter(is_foreign).map(Instance::name).collect();
    let version = loaded.first().and_then(|name| host.text(format!("/sys/module/{name}/version")));
    Foreign { loaded, version, ..Foreign::default() }
}

pub fn check_names_are_free(host: &Host) -> Result<(), Unfit> {
    if loaded(host).is_none() {
        return Ok(());
    }
    let found = find(host);
    Err(Unfit::ForeignModule { found: found.in_words(), fix: found.fix() })
}

/// Other projects' modules of that name for any kernel of the host: the next boot may start another kernel. DKMS's own, and
/// unreadable ones, are not listed.
fn modules(host: &Host) -> Vec<PathBuf> {
    let folders_of = |release: String| {
        let folders = INSTALLED.iter().filter(|folder| !folder.ends_with("dkms"));
        folders.map(move |folder| Path::new(KERNELS).join(&release).join(folder))
    };
    let files = host.names(KERNELS).into_iter().flat_map(folders_of).flat_map(|folder| module_file_names(&folder));
    let is_foreign = |path: &PathBuf| {
        let file = open_regular(&host.at(path), Links::Followed).ok();
        let bytes =
            file.and_then(|file| compression::read_module(host, file, compression::compression_of(path).1).ok());
        bytes.is_some_and(|bytes| sources::is_foreign(&bytes))
    };
    files.filter(is_foreign).collect()
}

impl Foreign {
    /// Whether nothing was found.
    pub fn is_none(&self) -> bool {
        *self == Foreign::default()
    }

    /// The findings, as half a sentence.
    pub fn in_words(&self) -> String {
        let files: Vec<String> = self
            .files
            .iter()
            .map(|path| path.display().to_string())
            .chain(self.dkms.iter().map(|it| format!("DKMS {it}")))
            .collect();
        let files = files.join(", ");
        let project = match self.version.as_deref() {
            Some(OLDER) => "an older MPU (matpool, lengrongfu or biubushy)".to_string(),
            _ => "another project's module".to_string(),
        };
        match (self.loaded.join(" and "), files.as_str()) {
            (loaded, "") => format!("{project} is loaded as {loaded}"),
            (loaded, files) if loaded.is_empty() => {
                format!(
                    "files of another project load its module named mpu at the next boot, or are that module: {files}"
                )
            }
            (loaded, files) => format!("{project} is loaded as {loaded}, and files of it are left: {files}"),
        }
    }

    /// The commands that remove it. Those modules do not count their callers: unloading under a caller can crash the kernel.
    pub fn fix(&self) -> String {
        let (lines, files): (Vec<&PathBuf>, Vec<&PathBuf>) =
            self.files.iter().partition(|path| path.as_path() == Path::new(MODULES));
        let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
        let remove_files = (!files.is_empty()).then(|| format!("sudo rm {} && sudo depmod", files.join(" ")));
        let remove_line =
            (!lines.is_empty()).then(|| format!("sudo sed -i '/^[[:space:]]*mpu[[:space:]]*$/d' {MODULES}"));
        let remove_dkms = self.dkms.iter().map(|entry| format!("sudo dkms remove {entry} --all"));
        let unload = self.loaded.iter().map(|name| format!("sudo rmmod {name}"));
        let up = (!self.loaded.is_empty()).then(|| "sudo mpu up".to_string());
        let commands: Vec<String> =
            remove_dkms.chain(remove_files).chain(remove_line).chain(unload).chain(up).collect();
        let comment = match self.loaded.is_empty() {
            true => "   # docs/moving.md",
            false => {
                "   # docs/moving.md; on Kubernetes remove its DaemonSet first; a reboot is safer than rmmod while GPUs are in use"
            }
        };
        commands.join(" && ") + comment
    }
}

#[cfg(any(test, feature = "fake"))]
pub mod fake {
    //! Fake modules of another project.

    use mpu_host::host::fake::FakeHost;

    /// Loads the older MPU under a name. It has no parameters.
    pub fn load(fake: &FakeHost, name: &str) {
        fake.write(&format!("/sys/module/{name}/initstate"), "live\n");
        fake.write(&format!("/sys/module/{name}/version"), "0.1-pre\n");
    }
}

#[cfg(test)]
mod tests;
