//! Private apt folders: one per suite of `SUITES`, in the cache, with their own sources, lists and status. Packages of other suites
//! are looked up, verified against the suite's signed index and unpacked, without touching the machine's own apt.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, ensure};

use crate::arch::Arch;
use crate::run::{output, print_progress, succeeds};
use crate::{files, paths};

/// Debian's suites that guest kernels and NVIDIA's user space come from: name, folder of the archive, components.
const SUITES: [[&str; 3]; 7] = [
    ["bullseye", "debian", "main contrib non-free"],
    ["bullseye-security", "debian-security", "main"],
    ["bookworm", "debian", "main contrib non-free non-free-firmware"],
    ["bookworm-backports", "debian", "main"],
    ["trixie", "debian", "main contrib non-free non-free-firmware"],
    ["sid", "debian", "main contrib non-free non-free-firmware"],
    ["experimental", "debian", "main contrib non-free non-free-firmware"],
];

/// The server of current suites, and that of archived ones.
const HOSTS: [&str; 2] = ["deb.debian.org", "archive.debian.org"];

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

pub struct Suite {
    name: String,
    components: &'static str,
    dir: PathBuf,
    kind: &'static str,
    arch: Arch,
}

/// The kinds of index in sources.list.
const BINARIES: &str = "deb";
const SOURCES: &str = "deb-src";

/// An error's context: no server could be reached. Found by [`is_unreachable`].
#[derive(Debug)]
struct Unreachable;

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no archive can be reached from here")
    }
}

/// Whether an error is that no archive could be reached.
pub fn is_unreachable(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Unreachable>().is_some()
}

/// apt's messages when it does not reach a host, in English. Source: apt's `connect.cc`.
const OUT_OF_REACH: [&str; 8] = [
    "Could not resolve",
    "Temporary failure resolving",
    "Something wicked happened resolving",
    "Could not connect",
    "Unable to connect",
    "Cannot initiate the connection",
    "Connection timed out",
    "Connection failed",
];

/// Whether unreachable hosts caused all of apt's failed downloads. A wrong checksum or signature, or a missing file, is another cause.
fn reports_unreachable(output: &str) -> bool {
    let mut failed = output.lines().filter(|line| line.contains("Failed to fetch ")).peekable();
    failed.peek().is_some() && failed.all(|line| OUT_OF_REACH.iter().any(|words| line.contains(words)))
}

/// Marks the error if its text reports unreachable hosts.
pub fn mark_if_unreachable(error: anyhow::Error, reports_unreachable: impl Fn(&str) -> bool) -> anyhow::Error {
    if reports_unreachable(&format!("{error:#}")) { error.context(Unreachable) } else { error }
}

/// Settings of a private folder. Unused indexes (translations, software-centre data) are left out. apt's sandbox user cannot reach a cache in
/// root's home. Valid-Until is ignored, as archived suites and slow mirrors exceed it. Signatures are checked, and nothing from here is
/// installed on the machine.
const PRIVATE: &str = r#"
Dir::Etc::sourcelist "sources.list";
Dir::Etc::sourceparts "sources.list.d";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::netrc "/etc/apt/auth.conf";
Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
Dir::State "var/lib/apt/";
Dir::State::lists "lists/";
Dir::State::status "/dev/null";
Dir::Cache "var/cache/apt/";
Dir::Cache::archives "archives/";
APT::Default-Release "";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::Check-Valid-Until "false";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled "false";
Acquire::IndexTargets::deb::CNF::DefaultEnabled "false";
"#;

/// An older index is fetched again.
const INDEX_LIFE: Duration = Duration::from_secs(12 * 3600);

/// Serialises apt: lanes of `x test`, and runs, use it in parallel. apt's own locks fail instead of waiting, and a suite's downloads share a
/// folder.
pub fn lock_apt() -> Result<fs_err::File> {
    files::lock(&paths::cache("apt")?.join("lock"), "it uses apt")
}

impl Suite {
    /// Opens a suite of [`SUITES`], fetching its index when absent or old.
    pub fn open(name: &str) -> Result<Self> {
        Self::open_for(name, Arch::Amd64)
    }

    /// The same for another architecture. Packages of this machine's are `package:amd64` there.
    pub fn open_for(name: &str, arch: Arch) -> Result<Self> {
        Self::open_as(name, BINARIES, paths::cache(&format!("apt/{}", arch.named(name)))?, arch)
    }

    /// The same for its source packages, which have a separate index.
    pub fn open_sources(name: &str) -> Result<Self> {
        Self::open_as(name, SOURCES, paths::cache(&format!("apt/{name}-source"))?, Arch::Amd64)
    }

    fn open_as(name: &str, kind: &'static str, dir: PathBuf, arch: Arch) -> Result<Self> {
        let [_, path, components] = row(name)?;
        let suite = Suite { name: name.to_owned(), components, dir, kind, arch };
        let _guard = lock_apt()?;
        if suite.is_fresh() {
            return Ok(suite);
        }
        print_progress(format!("reading the package index of {}", arch.named(name)));
        let (mut tried, mut unreachable) = (Vec::new(), true);
        for base in archive_urls(path) {
            suite.configure(&base)?;
            match output(suite.apt("apt-get").args(["-q", "-o", "APT::Update::Error-Mode=any", "update"])) {
                Ok(_) => {
                    suite.mark_fresh()?;
                    return Ok(suite);
                }
                Err(error) => {
                    unreachable &= reports_unreachable(&format!("{error:#}"));
                    tried.push(format!("{base}: {error:#}"));
                }
            }
        }
        let error = anyhow!("no archive offers {name}:\n{}", tried.join("\n"));
        Err(if unreachable { error.context(Unreachable) } else { error })
    }

    /// The newest package whose name begins with `prefix` and ends with `suffix`, and its version.
    pub fn newest(&self, prefix: &str, suffix: &str) -> Result<Option<(String, String)>> {
        let names = output(self.apt("apt-cache").args(["pkgnames", prefix]))?;
        let mut best: Option<(String, String)> = None;
        for name in names.lines().filter(|name| name.ends_with(suffix)) {
            let Some(version) = self.version(name)? else { continue };
            let is_after =
                |than: &str| succeeds(Command::new("dpkg").args(["--compare-versions", &version, "gt", than]));
            if best.as_ref().map_or(Ok(true), |(_, than)| is_after(than))? {
                best = Some((name.to_owned(), version));
            }
        }
        Ok(best)
    }

    pub fn version(&self, package: &str) -> Result<Option<String>> {
        let policy = output(self.apt("apt-cache").args(["policy", package]))?;
        let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
        Ok(candidate.filter(|version| *version != "(none)").map(str::to_owned))
    }

    /// The names of the packages and of all their dependencies.
    pub fn with_dependencies(&self, packages: &[String]) -> Result<Vec<String>> {
        let plan = output(self.apt("apt-get").args(["-s", "--no-install-recommends", "install"]).args(packages))?;
        let names = plan.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
        Ok(names.map(str::to_owned).collect())
    }

    /// Downloads the packages and unpacks them into one folder, without installing them. Returns `name=version` of each.
    pub fn unpack(&self, packages: &[String], into: &Path) -> Result<Vec<String>> {
        let _guard = lock_apt()?;
        let folder = self.dir.join("download");
        files::recreate(&folder)?;
        fs_err::create_dir_all(into)?;
        // Without an architecture, apt takes any that has the package, without a warning.
        let of_arch = packages.iter().map(|name| match name.contains(':') {
            true => name.clone(),
            false => format!("{name}:{}", self.arch),
        });
        let mut download = self.apt("apt-get");
        self.fetch(download.args(["-q", "download"]).args(of_arch).current_dir(&folder))?;
        let mut found = files::entries(&folder)?;
        // base-files first: it has the links /bin and /lib.
        found.sort_by_key(|path| (!file_name(path).starts_with("base-files_"), path.clone()));
        let mut versions = Vec::new();
        for package in &found {
            output(Command::new("dpkg").arg("-x").arg(package).arg(into))?;
            let name = ["-W", "--showformat=${Package}=${Version}"];
            versions.push(output(Command::new("dpkg-deb").args(name).arg(package))?);
        }
        files::remove(&folder)?;
        Ok(versions)
    }

    /// Keeps these files of the packages alone, each by the end of its path. Documentation can have the name of a program.
    pub fn unpack_files(&self, packages: &[&str], names: &[impl AsRef<str>], into: &Path) -> Result<()> {
        let unpacked = into.join("unpacked");
        self.unpack(&packages.iter().map(ToString::to_string).collect::<Vec<_>>(), &unpacked)?;
        let mut all = files::below(&unpacked)?;
        all.retain(|path| !path.is_symlink() && !path.starts_with(unpacked.join("usr/share")));
        for name in names {
            let name: &str = name.as_ref();
            let found = all.iter().find(|path| path.ends_with(name));
            let found = found.with_context(|| format!("{packages:?} hold no {name}: has the archive moved on?"))?;
            fs_err::rename(found, into.join(file_name(found)))?;
        }
        files::remove(&unpacked)
    }

    /// Downloads the upstream sources of a package in an upstream version, and unpacks them into one folder, without Debian's patches.
    pub fn unpack_source(&self, package: &str, upstream: &str, into: &Path) -> Result<()> {
        let _guard = lock_apt()?;
        let shown = output(self.apt("apt-cache").args(["showsrc", "--only-source", package]))?;
        let versions = shown.lines().filter_map(|line| line.strip_prefix("Version: "));
        let prefix = format!("{upstream}-");
        let version = versions.clone().find(|version| version.starts_with(&prefix)).with_context(|| {
            format!("{} has {package} {:?}, and no {upstream}", self.name, versions.collect::<Vec<_>>())
        })?;
        let folder = self.dir.join("download");
        files::recreate(&folder)?;
        let mut download = self.apt("apt-get");
        download.args(["-q", "source", "--download-only", "--tar-only", "--only-source"]);
        self.fetch(download.arg(format!("{package}={version}")).current_dir(&folder))?;
        let archive = format!("{package}_{upstream}.orig.tar");
        let is_it = |path: &PathBuf| file_name(path).starts_with(&archive) && !file_name(path).ends_with(".asc");
        let found = files::entries(&folder)?.into_iter().find(is_it);
        let found = found.with_context(|| format!("the source package {package} {version} holds no {archive}.*"))?;
        fs_err::create_dir_all(into)?;
        output(Command::new("tar").arg("-xf").arg(found).arg("-C").arg(into).arg("--strip-components=1"))?;
        files::remove(&folder)
    }

    fn fetch(&self, download: &mut Command) -> Result<()> {
        let done = output(download).map_err(|error| mark_if_unreachable(error, reports_unreachable));
        done.map(drop).with_context(|| format!("cannot download from {}", self.name))
    }

    /// Whether the index is young, and was fetched with these settings.
    fn is_fresh(&self) -> bool {
        let fresh = self.dir.join("fresh");
        let since = fs_err::metadata(&fresh).and_then(|fresh| fresh.modified());
        since.is_ok_and(|since| SystemTime::now().duration_since(since).is_ok_and(|age| age < INDEX_LIFE))
            && files::read(&fresh).is_ok_and(|settings| settings == self.settings())
    }

    fn mark_fresh(&self) -> Result<()> {
        files::write(&self.dir.join("fresh"), self.settings(), 0o644)
    }

    fn settings(&self) -> String {
        format!("{}\n{}", self.components, self.apt_conf())
    }

    fn configure(&self, base: &str) -> Result<()> {
        ensure!(Path::new(KEYRING).exists(), "{KEYRING} is missing: install debian-archive-keyring");
        for below in ["var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "etc/apt/sources.list.d"] {
            fs_err::create_dir_all(self.dir.join(below))?;
        }
        let line = line(self.kind, base, &self.name, self.components);
        files::write(&self.dir.join("etc/apt/sources.list"), line + "\n", 0o644)?;
        files::write(&self.dir.join("apt.conf"), self.apt_conf(), 0o644)
    }

    fn apt_conf(&self) -> String {
        let mut arches = vec![self.arch, Arch::Amd64];
        arches.dedup();
        let arches: String = arches.iter().map(|arch| format!("\"{arch}\"; ")).collect();
        format!(
            "Dir \"{}\";\nAPT::Architecture \"{}\";\nAPT::Architectures {{ {arches}}};\n{PRIVATE}",
            self.dir.display(),
            self.arch
        )
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // -c instead of APT_CONFIG: apt reads it after the machine's settings, so that it overrides them.
        command.arg("-c").arg(self.dir.join("apt.conf")).env("LC_ALL", "C");
        command
    }
}

/// Options that add one source to the machine's apt for one call: a copy of the machine's list with `line`, and a separate folder for
/// indexes. The machine's files do not change.
pub fn options_with_source(machines: &Path, dir: &Path, line: &str) -> Result<Vec<String>> {
    let (list, indexes) = (dir.join("sources.list"), dir.join("lists"));
    fs_err::create_dir_all(&indexes)?;
    let own = files::read(machines).unwrap_or_default();
    files::write(&list, format!("{own}\n{line}\n"), 0o644)?;
    let settings = [
        format!("Dir::Etc::SourceList={}", list.display()),
        format!("Dir::State::Lists={}", indexes.display()),
        // apt's sandbox user cannot read a folder in root's home.
        "APT::Sandbox::User=root".to_owned(),
    ];
    Ok(settings.into_iter().flat_map(|setting| ["-o".to_owned(), setting]).collect())
}

pub fn source_line(name: &str) -> Result<String> {
    let [_, path, components] = row(name)?;
    Ok(line(BINARIES, &archive_urls(path)[0], name, components))
}

pub fn mirrors(name: &str) -> Result<Vec<String>> {
    Ok(archive_urls(row(name)?[1]))
}

fn row(name: &str) -> Result<[&'static str; 3]> {
    SUITES.into_iter().find(|row| row[0] == name).with_context(|| format!("xtask/src/apt.rs has no suite {name}"))
}

fn line(kind: &str, base: &str, suite: &str, components: &str) -> String {
    format!("{kind} [signed-by={KEYRING}] {base} {suite} {components}")
}

/// The URLs to try for an archive: this machine's mirror, then the public servers.
fn archive_urls(path: &str) -> Vec<String> {
    let mut bases: Vec<String> =
        machine_mirror(path).into_iter().chain(HOSTS.map(|host| format!("http://{host}/{path}"))).collect();
    bases.dedup();
    bases
}

/// The first address in the machine's own apt sources whose path is `path`.
fn machine_mirror(path: &str) -> Option<String> {
    let indexes = output(Command::new("apt-get").args(["--print-uris", "update"])).unwrap_or_default();
    let mut addresses = indexes.lines().filter_map(|line| Some(line.strip_prefix('\'')?.split_once("/dists/")?.0));
    addresses.find(|address| address.ends_with(&format!("/{path}"))).map(str::to_owned)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additional_source_leaves_machines_list_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let (machines, own) = (folder.path().join("own.list"), folder.path().join("ours"));
        std::fs::write(&machines, "deb http://own x main").unwrap();
        for _ in 0..2 {
            let options = options_with_source(&machines, &own, "deb http://more y main").unwrap().join(" ");
            assert!(options.starts_with(&format!("-o Dir::Etc::SourceList={}/", own.display())), "{options}");
            assert!(options.contains(&format!("-o Dir::State::Lists={}/lists", own.display())), "{options}");
        }
        assert_eq!(files::read(&machines).unwrap(), "deb http://own x main");
        assert_eq!(files::entries(folder.path()).unwrap(), [own.clone(), machines].map(|path| path));
        let both = "deb http://own x main\ndeb http://more y main\n";
        assert_eq!(files::read(&own.join("sources.list")).unwrap(), both);
    }

    #[test]
    fn index_of_other_settings_is_not_fresh() {
        let folder = tempfile::tempdir().unwrap();
        let of = |components, arch| {
            let (name, dir) = ("sid".to_owned(), folder.path().to_owned());
            Suite { name, components, dir, kind: BINARIES, arch }
        };
        assert!(!of("main", Arch::Amd64).is_fresh());
        of("main", Arch::Amd64).mark_fresh().unwrap();
        assert!(of("main", Arch::Amd64).is_fresh());
        assert!(!of("main contrib", Arch::Amd64).is_fresh() && !of("main", Arch::Arm64).is_fresh());
    }

    /// As apt 2.6 prints it.
    const NO_CONNECTION: &str =
        "E: Failed to fetch http://deb.debian.org/debian/dists/bookworm/InRelease  Could not resolve 'deb.debian.org'
E: Some index files failed to download. They have been ignored, or old ones used instead.";
    const WRONG: &str = "E: Failed to fetch http://deb.debian.org/x.tar.xz  Hash Sum mismatch
E: Failed to fetch some archives.";

    #[test]
    fn only_connection_failures_are_unreachable() {
        assert!(reports_unreachable(NO_CONNECTION));
        for output in [
            WRONG,
            &format!("{NO_CONNECTION}\n{WRONG}"),
            "E: Unable to locate package nvidia",
            "",
            "NO_PUBKEY 0E98404D386FA1D9",
        ] {
            assert!(!reports_unreachable(output), "{output}");
        }
        let marked = |output| {
            mark_if_unreachable(anyhow!("failed: apt-get\n{output}"), reports_unreachable).context("cannot download")
        };
        assert!(is_unreachable(&marked(NO_CONNECTION)) && !is_unreachable(&marked(WRONG)));
    }
}
