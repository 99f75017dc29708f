//! Checks finished packages: both families have the same files, except for listed differences; and an RPM installs, upgrades and removes
//! itself without remains.
//!
//! Debian packages are tested on a whole Debian (`tests/node`). RPMs are tested by rpm in a root of its own, with real scripts and a real
//! `mpu`; systemctl, dkms and semodule there only log their calls.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::deb;
use super::rpm::{self, Variant};
use super::tree::empty_folders;
use crate::arch::Arch;
use crate::files::{self, below, write};
use crate::run::{find_program, output};
use crate::sysroot::needed_here;

/// Files with another path in one family, or missing there: the path's prefix in the Debian package, in the RPM, and the reason.
const DIFFERENCES: &[(Option<&str>, Option<&str>, &str)] = &[
    (
        Some("usr/share/zsh/vendor-completions/"),
        Some("usr/share/zsh/site-functions/"),
        "where zsh of each family looks",
    ),
    (Some("usr/share/lintian/"), None, "Debian's checks"),
    (Some("usr/share/doc/NAME/copyright"), None, "Debian's way to tell a licence"),
    (Some("usr/share/doc/NAME/changelog.gz"), None, "an RPM has it in its header"),
    (None, Some("usr/share/licenses/"), "RPM's way to tell a licence"),
    (None, Some("usr/lib/systemd/system-preset/"), "dpkg enables a unit by its script"),
];

/// Runs every check on the packages in `out`, with their next releases in `newer`. Returns the faults that each found.
pub fn all(out: &Path, newer: &Path, version: &str, arches: &[Arch]) -> Vec<(String, Vec<String>)> {
    let mut results = Vec::new();
    let mut record = |name: String, faults: Result<Vec<String>>| {
        results.push((name, faults.unwrap_or_else(|error| vec![format!("{error:#}")])));
    };
    for (&arch, variant) in arches.iter().flat_map(|arch| rpm::VARIANTS.map(|variant| (arch, variant))) {
        let package = out.join(rpm::file_name(variant.name, version, 1, arch));
        let next = newer.join(rpm::file_name(variant.name, version, 2, arch));
        let name = format!("{} for {arch}", variant.name);
        record(format!("{name}: both families have the same files"), check_same_files(out, version, arch, variant));
        let program = out.join(arch.facts().debian).join(variant.program);
        if arch != Arch::Amd64 {
            record(format!("{name}: the RPM comes and goes"), check_install_and_remove(&package, variant));
            continue;
        }
        let in_root = |check: &dyn Fn(&Root) -> Result<Vec<String>>| check(&Root::make(variant, version, &program)?);
        record(format!("{name}: the RPM's life"), in_root(&|root| check_life_cycle(root, &package, &next)));
        if variant.program == "mpu" {
            let faults = in_root(&|root| check_without_shared_run(root, &package));
            record(format!("{name}: scripts without a /run in common"), faults);
            let faults = in_root(&|root| check_removal_leaves(root, &package));
            record(format!("{name}: what its removal must leave"), faults);
        }
    }
    if arches.contains(&Arch::Amd64) {
        let [dkms, nodkms, _] = rpm::VARIANTS;
        let files = [dkms, nodkms].map(|variant| out.join(rpm::file_name(variant.name, version, 1, Arch::Amd64)));
        let program = out.join(Arch::Amd64.facts().debian).join(dkms.program);
        let swapped = check_swap([(&files[0], dkms), (&files[1], nodkms)], version, &program);
        record("one variant takes another's place, and back".to_owned(), swapped);
    }
    results
}

/// Returns the undeclared differences between a Debian package and an RPM.
fn check_same_files(out: &Path, version: &str, arch: Arch, variant: Variant) -> Result<Vec<String>> {
    let deb = out.join(deb::file_name(variant.program, version, arch));
    let rpm = out.join(rpm::file_name(variant.name, version, 1, arch));
    let has_dkms = |path: &String| variant.with_dkms || !path.starts_with("usr/src/");
    let mut left = unpacked(&deb, "dpkg-deb --fsys-tarfile \"$1\" | tar -x -C \"$2\"")?;
    left.retain(|path, _| has_dkms(path));
    let right = unpacked(&rpm, "rpm2cpio \"$1\" | (cd \"$2\" && cpio --quiet -idm)")?;
    Ok(differences(variant.program, &left, &right))
}

fn differences(program: &str, deb: &BTreeMap<String, String>, rpm: &BTreeMap<String, String>) -> Vec<String> {
    let fits = |path: &str, prefix: &str| path.starts_with(&prefix.replace("NAME", program));
    let mut found = Vec::new();
    let mut expected = BTreeMap::new();
    for (path, deb_entry) in deb {
        match DIFFERENCES.iter().find(|(prefix, ..)| prefix.is_some_and(|prefix| fits(path, prefix))) {
            None => drop(expected.insert(path.clone(), deb_entry)),
            Some((Some(from), Some(to), _)) => drop(expected.insert(path.replacen(from, to, 1), deb_entry)),
            Some(_) => {}
        }
    }
    for (path, deb_entry) in &expected {
        match rpm.get(path) {
            None => found.push(format!("the RPM lacks {path}")),
            Some(rpm_entry) if rpm_entry != *deb_entry => {
                found.push(format!("{path} is {deb_entry} in one and {rpm_entry} in the other"));
            }
            Some(_) => {}
        }
    }
    for path in rpm.keys().filter(|path| !expected.contains_key(*path)) {
        let is_rpm_only = |prefix: &Option<&str>| prefix.is_some_and(|prefix| fits(path, prefix));
        if !DIFFERENCES.iter().any(|(deb, rpm, _)| deb.is_none() && is_rpm_only(rpm)) {
            found.push(format!("the Debian package lacks {path}"));
        }
    }
    found
}

/// The files of a package with mode and digest, its links with their targets, and its empty folders.
fn unpacked(package: &Path, how: &str) -> Result<BTreeMap<String, String>> {
    let folder = tempfile::tempdir()?;
    output(Command::new("sh").args(["-c", how, "sh"]).arg(package).arg(folder.path()))?;
    let mut found = state(folder.path())?;
    for empty in empty_folders(folder.path())? {
        let mode = std::fs::metadata(&empty)?.permissions().mode() & 0o7777;
        found.insert(format!("{}/", empty.strip_prefix(folder.path())?.display()), format!("a folder {mode:o}"));
    }
    ensure!(!found.is_empty(), "{} holds nothing", package.display());
    Ok(found)
}

fn state(root: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for path in below(root)? {
        let about = std::fs::symlink_metadata(&path)?;
        let entry = match std::fs::read_link(&path) {
            Ok(target) => format!("a link to {}", target.display()),
            Err(_) => {
                let digest = files::sha256(fs_err::read(&path)?);
                format!("{:o} {}", about.permissions().mode() & 0o7777, &digest[..12])
            }
        };
        found.insert(path.strip_prefix(root)?.display().to_string(), entry);
    }
    Ok(found)
}

/// A root with a shell, the C library, and programs that log their calls.
struct Root<'a> {
    folder: tempfile::TempDir,
    /// The package whose calls are expected.
    variant: Variant,
    version: &'a str,
}

/// Programs that the scripts call. In the root, scripts of these names log each call.
const RECORDED: [&str; 7] = ["systemctl", "dkms", "udevadm", "semodule", "selinuxenabled", "load_policy", "nvidia-smi"];
const KERNELS: [&str; 2] = ["6.1.0-1", "6.12.0-2"];
/// Folders that a distribution has before our packages; rpm itself needs the last one.
const FOLDERS: &str = "dev etc proc/1 proc/self/ns run/systemd/system tmp lib/modules/5.10.0-no-headers usr/lib/systemd/system
    usr/lib/systemd/system-preset usr/lib/udev/rules.d usr/share/doc usr/share/licenses usr/share/man/man1 usr/src var/tmp";
/// rpm's database, below the root.
const DATABASE: &str = "var/lib/rpm";

impl<'a> Root<'a> {
    fn make(variant: Variant, version: &'a str, program: &Path) -> Result<Self> {
        let root = Self { folder: tempfile::tempdir()?, variant, version };
        let busybox = find_program("busybox").context("no busybox: install busybox-static")?;
        write(&root.at("usr/bin/busybox"), &std::fs::read(busybox)?, 0o755)?;
        for (link, target) in [("bin", "usr/bin"), ("sbin", "usr/bin"), ("usr/sbin", "bin")] {
            symlink(target, root.at(link))?;
        }
        for applet in ["sh", "rm", "rmdir", "cat", "ls", "readlink", "true"] {
            symlink("busybox", root.at("usr/bin").join(applet))?;
        }
        for name in RECORDED {
            write(&root.at("usr/bin").join(name), format!("#!/bin/sh\necho {name} \"$@\" >> /calls\n"), 0o755)?;
        }
        for library in needed_here(program) {
            write(&root.at(library.trim_start_matches('/')), &std::fs::read(library)?, 0o755)?;
        }
        for folder in FOLDERS.split_whitespace().chain([DATABASE]) {
            std::fs::create_dir_all(root.at(folder))?;
        }
        for kernel in KERNELS {
            std::fs::create_dir_all(root.at("lib/modules").join(kernel).join("build/include"))?;
        }
        write(&root.at("proc/self/status"), "CapEff:\t000001ffffffffff\n", 0o444)?;
        // The scripts take this for the root of a running machine, not of an image build.
        symlink("/", root.at("proc/1/root"))?;
        symlink("pid:[4026531836]", root.at("proc/self/ns/pid"))?;
        // Scripts write to /dev/null. A test without root cannot make the device.
        write(&root.at("dev/null"), "", 0o666)?;
        Ok(root)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Runs rpm with some options on a file or a package.
    fn rpm(&self, options: &str, what: impl AsRef<Path>) -> Result<()> {
        let mut rpm = Command::new("rpm");
        rpm.arg("--root").arg(self.folder.path()).args(["--dbpath", &format!("/{DATABASE}")]);
        rpm.args(options.split(' ')).arg(what.as_ref());
        let done = rpm.stdin(Stdio::null()).output().context("cannot start rpm")?;
        let output = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        ensure!(done.status.success(), "rpm {options} {} failed: {output}", what.as_ref().display());
        Ok(())
    }

    /// The calls since the last ones.
    fn take_calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.at("calls")).unwrap_or_default();
        let _ = std::fs::remove_file(self.at("calls"));
        text.lines().map(str::to_owned).collect()
    }

    /// The expected calls of some parts of [`CALLS`].
    fn calls_of(&self, parts: &str) -> Vec<String> {
        let Variant { program, with_dkms, .. } = self.variant;
        let of = |part: &str| {
            let applies = |of: &str| of == format!("{program} {part}") || with_dkms && of == format!("dkms {part}");
            let rows = CALLS.trim().lines().filter_map(|row| row.split_once(": "));
            let calls = rows.filter(|(of, _)| applies(of)).map(|(_, call)| call.replace("VERSION", self.version));
            calls.collect::<Vec<_>>()
        };
        parts.split(' ').flat_map(of).collect()
    }

    /// Compares the calls since the last check with those of some parts.
    fn expect(&self, step: &str, parts: &str) -> Option<String> {
        self.expect_calls(step, &self.calls_of(parts))
    }

    fn expect_calls(&self, step: &str, expected: &[String]) -> Option<String> {
        let calls = self.take_calls();
        (calls != expected).then(|| format!("{step} calls {calls:#?}, not {expected:#?}"))
    }

    /// Reports the names that the step removed.
    fn lacks(&self, step: &str, names: &[&str]) -> Vec<String> {
        let gone = names.iter().filter(|name| !self.at(name).exists());
        gone.map(|name| format!("{step} takes {name} along")).collect()
    }

    /// Every path in the root except rpm's database.
    fn names(&self) -> Result<BTreeSet<PathBuf>> {
        let all = files::walk(self.folder.path())?.into_iter().map(walkdir::DirEntry::into_path);
        let own_files = all.filter(|path| !path.starts_with(self.at(DATABASE)));
        own_files.map(|path| Ok(path.strip_prefix(self.folder.path())?.to_owned())).collect()
    }
}

/// Installs, reinstalls, upgrades, downgrades and removes an RPM of this machine's architecture. `newer` is its next release.
fn check_life_cycle(root: &Root, package: &Path, newer: &Path) -> Result<Vec<String>> {
    let variant = root.variant;
    let before = root.names()?;
    let mut faults = Vec::new();
    // The root has none of the dependencies.
    root.rpm("-i --nodeps", package)?;
    faults.extend(root.expect("an installation", "first policy start"));
    root.rpm("-V --nodeps", variant.name)?;
    root.rpm("-U --nodeps --replacepkgs", package)?;
    faults.extend(root.expect("the same again", REPLACED));
    let config = root.at("etc/mpu/config.toml");
    let original = std::fs::read(&config).ok();
    if original.is_some() {
        std::fs::write(&config, EDITED)?;
    }
    root.rpm("-U --nodeps", newer)?;
    faults.extend(root.expect("an upgrade", REPLACED));
    root.rpm("-U --nodeps --oldpackage", package)?;
    faults.extend(root.expect("a downgrade", REPLACED));
    if let Some(original) = original {
        if std::fs::read_to_string(&config).unwrap_or_default() != EDITED {
            faults.push("an upgrade changes an edited configuration".to_owned());
        }
        std::fs::write(&config, original)?;
        write(&root.at(BUILT), "built by mpu up", 0o644)?;
    }
    let docker = root.at(DOCKER);
    if variant.program == "mpu-container" {
        write(&docker, DEFAULT_RUNTIME, 0o644)?;
    }
    root.rpm("-e --nodeps", variant.name)?;
    if let Ok(left) = std::fs::read_to_string(&docker) {
        if !left.contains("\"default-runtime\": \"runc\"") || !left.contains("kept") {
            faults.push(format!("a removal leaves Docker with {left}"));
        }
        std::fs::remove_dir_all(docker.parent().context("no parent")?)?;
    }
    faults.extend(root.expect("a removal", "engines_left stop forgotten module_goes policy_goes reload"));
    let after = root.names()?;
    faults.extend(after.difference(&before).map(|path| format!("a removal leaves {}", path.display())));
    faults.extend(before.difference(&after).map(|path| format!("a removal takes {} along", path.display())));
    Ok(faults)
}

/// Installs an RPM where scripts of one transaction share no `/run`, as under rpm-ostree: no script can write the note there.
fn check_without_shared_run(root: &Root, package: &Path) -> Result<Vec<String>> {
    std::fs::create_dir(root.at("run/mpu-variant"))?;
    root.rpm("-i --nodeps", package)?;
    Ok(root.expect("an installation that cannot keep a note", "first policy start").into_iter().collect())
}

/// Removes an RPM where the removal must leave something: a busy engine, the machine's engine from a chroot, an engine of a pod.
fn check_removal_leaves(root: &Root, package: &Path) -> Result<Vec<String>> {
    let name = root.variant.name;
    let mut faults = Vec::new();
    let installed = || root.rpm("-i --nodeps", package).map(|()| drop(root.take_calls()));
    let busy = "#!/bin/sh\necho mpu \"$@\" >> /calls\nexit 1\n";
    let busy_down = vec!["mpu down --wait 30".to_owned()];
    installed()?;
    write(&root.at("usr/bin/mpu"), busy, 0o755)?;
    if root.rpm("-e --nodeps", name).is_ok() {
        faults.push("a package goes, though its engine stays".to_owned());
        installed()?;
    }
    faults.extend(root.expect_calls("a removal under a held engine", &[root.calls_of("stop"), busy_down].concat()));
    // The same in an image build, after a transaction that was killed there.
    write(&root.at("usr/bin/mpu"), busy, 0o755)?;
    write(&root.at("run/mpu-variant"), "1 new\n", 0o644)?;
    write(&root.at("run/mpu/up.json"), "{}", 0o644)?;
    std::fs::rename(root.at("proc/1"), root.at("proc/2"))?;
    root.rpm("-e --nodeps", name)?;
    let mut expected = root.calls_of("stop forgotten module_goes policy_goes reload");
    expected.retain(|call| call != "load_policy");
    faults.extend(root.expect_calls("a removal in a chroot", &expected));
    faults.extend(root.lacks("a removal in a chroot", &["run/mpu/up.json"]));
    std::fs::rename(root.at("proc/2"), root.at("proc/1"))?;
    let record = "run/mpu/up.json";
    for (held, keeps_record) in [("run/mpu/agents/pod.turn", true), ("run/mpu/nri/7.json", false)] {
        installed()?;
        let _ = std::fs::remove_dir_all(root.at("run/mpu"));
        for name in [held, record] {
            write(&root.at(name), "{}", 0o644)?;
        }
        root.rpm("-e --nodeps", name)?;
        let step = format!("a removal with {held}");
        faults.extend(root.lacks(&step, &[held]));
        match keeps_record {
            true => faults.extend(root.lacks(&step, &[record])),
            false if root.at(record).exists() => faults.push(format!("{step} leaves {record}")),
            false => {}
        }
    }
    Ok(faults)
}

/// Replaces one variant by the other in a single transaction, as `dnf swap` does, and back.
fn check_swap(packages: [(&Path, Variant); 2], version: &str, program: &Path) -> Result<Vec<String>> {
    let [(first, mut gone), _] = packages;
    let mut root = Root::make(gone, version, program)?;
    let mut faults = Vec::new();
    root.rpm("-i --nodeps", first)?;
    std::fs::write(root.at("etc/mpu/config.toml"), EDITED)?;
    write(&root.at(BUILT), "built by mpu up", 0o644)?;
    root.take_calls();
    for (package, comes) in [packages[1], packages[0]] {
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-c", SWAP]).arg(root.folder.path()).args([&format!("/{DATABASE}"), gone.name]).arg(package);
        output(&mut python).with_context(|| format!("cannot swap {} for {}", gone.name, comes.name))?;
        let step = format!("{} for {}", comes.name, gone.name);
        root.variant = comes;
        faults.extend(root.expect(&step, REPLACED));
        faults.extend(root.lacks(&step, &["usr/bin/mpu", "usr/lib/systemd/system/mpu.service", BUILT]));
        if std::fs::read_to_string(root.at("etc/mpu/config.toml")).unwrap_or_default() != EDITED {
            faults.push(format!("{step} changes an edited configuration"));
        }
        if root.rpm("-q", gone.name).is_ok() || root.rpm("-q", comes.name).is_err() {
            faults.push(format!("{step}: not in the database"));
        }
        if root.at("run/mpu-variant").exists() {
            faults.push(format!("{step} leaves its note"));
        }
        gone = comes;
    }
    Ok(faults)
}

const DOCKER: &str = "etc/docker/daemon.json";
/// Without its default runtime Docker starts no container.
const DEFAULT_RUNTIME: &str = r#"{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}, "log-driver": "kept"}"#;
/// A configuration that must stay.
const EDITED: &str = "# the administrator's\n";
/// What `mpu up` keeps.
const BUILT: &str = "var/lib/mpu/6.1/mpu.ko";
/// The rpm command cannot swap packages. Its library can; dnf and zypper use it. Arguments: root, database, removed package, new file.
const SWAP: &str = r#"
import os, rpm, sys
root, database, gone, file = sys.argv[1:]
rpm.addMacro("_dbpath", database)
transaction = rpm.TransactionSet(root)
transaction.setVSFlags(-1)
header = transaction.hdrFromFdno(os.open(file, os.O_RDONLY))
transaction.addInstall(header, file, "u")
transaction.addErase(gone)
transaction.order()
failed = []
def callback(reason, amount, total, key, data):
    if reason == rpm.RPMCALLBACK_INST_OPEN_FILE:
        return os.open(file, os.O_RDONLY)
    if reason in (rpm.RPMCALLBACK_SCRIPT_ERROR, rpm.RPMCALLBACK_UNPACK_ERROR):
        failed.append(reason)
failed.extend(transaction.run(callback, "") or [])
sys.exit(str(failed) if failed else 0)
"#;

/// The parts of [`CALLS`] when a package is replaced by another.
const REPLACED: &str = "module_goes reload policy start";

/// The scripts' calls of other programs: the package (or `dkms`: the variant with DKMS), the step, and the call.
const CALLS: &str = "
mpu-container first: systemctl --no-reload preset mpu-cdi-refresh.service
mpu-container start: systemctl --system daemon-reload
mpu-container start: systemctl --quiet is-enabled mpu-cdi-refresh.service
mpu-container start: systemctl restart mpu-cdi-refresh.service
mpu-container reload: systemctl --system daemon-reload
mpu-container engines_left: systemctl --quiet is-active docker.service
mpu-container engines_left: systemctl reload docker.service
mpu-container stop: systemctl stop mpu-cdi-refresh.service
mpu-container forgotten: systemctl --no-reload disable mpu-cdi-refresh.service
mpu first: systemctl --no-reload preset mpu.service
mpu policy: semodule -n -X 200 -i /usr/share/selinux/packages/mpu.cil
mpu policy: selinuxenabled
mpu policy: load_policy
mpu policy_goes: semodule -n -X 200 -r mpu
mpu policy_goes: selinuxenabled
mpu policy_goes: load_policy
dkms start: dkms add -m mpu -v VERSION
dkms start: dkms install -m mpu -v VERSION -k 6.1.0-1 --force
dkms start: dkms install -m mpu -v VERSION -k 6.12.0-2 --force
mpu start: systemctl --system daemon-reload
mpu start: udevadm control --reload
mpu start: systemctl --quiet try-restart mpu-nri.service mpu-metrics.service
mpu start: systemctl --quiet is-enabled mpu.service
mpu start: systemctl start mpu.service
mpu reload: systemctl --system daemon-reload
mpu stop: systemctl stop mpu-metrics.service mpu-nri.service mpu.service
mpu forgotten: systemctl --no-reload disable mpu.service mpu-metrics.service mpu-nri.service
mpu module_goes: dkms remove -m mpu -v VERSION --all";

/// Installs and removes an RPM of another architecture, without its scripts: they cannot run here.
fn check_install_and_remove(package: &Path, variant: Variant) -> Result<Vec<String>> {
    let root = Root::make(variant, "", Path::new("/bin/sh"))?;
    let before = root.names()?;
    root.rpm("-i --nodeps --noscripts --ignorearch", package)?;
    let installed = root.names()?;
    ensure!(installed.len() > before.len() + 5, "{} holds next to nothing", package.display());
    root.rpm("-e --nodeps --noscripts", variant.name)?;
    Ok(root.names()?.difference(&before).map(|path| format!("a removal leaves {}", path.display())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undeclared_package_difference_is_found() {
        let map = |rows: &[(&str, &str)]| {
            rows.iter().map(|(path, what)| (path.to_string(), what.to_string())).collect::<BTreeMap<_, _>>()
        };
        let deb = map(&[
            ("usr/bin/mpu", "755 a"),
            ("usr/share/doc/mpu/copyright", "644 c"),
            ("usr/share/zsh/vendor-completions/_mpu", "644 z"),
        ]);
        let rpm = map(&[
            ("usr/bin/mpu", "755 a"),
            ("usr/share/licenses/mpu/LICENSE", "644 l"),
            ("usr/share/zsh/site-functions/_mpu", "644 z"),
        ]);
        assert_eq!(differences("mpu", &deb, &rpm), Vec::<String>::new());
        let mut other = rpm.clone();
        other.insert("usr/bin/mpu".into(), "755 b".into());
        other.insert("usr/bin/more".into(), "755 m".into());
        other.remove("usr/share/zsh/site-functions/_mpu");
        assert_eq!(
            differences("mpu", &deb, &other),
            [
                "usr/bin/mpu is 755 a in one and 755 b in the other",
                "the RPM lacks usr/share/zsh/site-functions/_mpu",
                "the Debian package lacks usr/bin/more"
            ]
        );
    }
}
