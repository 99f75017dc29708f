//! The guest kernels of `kernels.toml`, under the cache's `kernels/<name>/`: `vmlinux` (uncompressed: QEMU starts it directly, twice as fast
//! as the compressed image), `release`, `build` (its headers). They are Debian's, one that `source` builds, or a person's own (`tree`).

mod source;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::apt::Suite;
use crate::arch::Arch;
use crate::run::print_progress;
use crate::{files, paths};
pub use tree::register_tree;

/// Raised when the unpacked form changes, so that older caches are made anew.
const RECIPE: &str = "recipe 1";

/// The default memory of a guest, in MiB.
const MEMORY: u32 = 1024;

#[derive(Deserialize)]
struct Table {
    kernel: Vec<Row>,
}

#[derive(Clone, Deserialize)]
struct Row {
    name: String,
    #[serde(default)]
    arch: Arch,
    suite: String,
    #[serde(default)]
    release: String,
    #[serde(default)]
    follow: Vec<String>,
    packages: Vec<String>,
    #[serde(default)]
    chroot: Vec<String>,
    /// A configuration fragment: the kernel is built here from the source package.
    config: Option<String>,
    #[serde(default)]
    full: bool,
    /// Other flavours of the same kernel, of which only the headers are used.
    #[serde(default)]
    flavours: Vec<Flavour>,
    /// The row's flavour: the module is built for it, and no guest boots it.
    #[serde(skip)]
    flavour: Option<Flavour>,
    slower: Option<u32>,
    memory: Option<u32>,
    #[serde(default)]
    arguments: String,
}

/// A flavour: the part before `-amd64` in its releases, and whether the quick run builds for it.
#[derive(Clone, Deserialize)]
struct Flavour {
    name: String,
    /// The suffix of its package of common headers.
    #[serde(default)]
    common: String,
    #[serde(default)]
    quick: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Build {
    Here,
    /// In a chroot of the unpacked folder, with the suite's compiler.
    Chroot,
}

pub struct Kernel {
    /// Its short name, such as `6.1`.
    pub name: String,
    pub arch: Arch,
    /// As `uname -r` prints it in a guest.
    pub release: String,
    pub dir: PathBuf,
    pub build: Build,
    pub compiler: String,
    /// The packages and recipe that it was made of: part of the cache key of everything built for it.
    pub stamp: String,
    /// The factor on a guest's time limit, compared with Debian's kernels.
    pub slower: u32,
    pub memory: u32,
    /// Additional kernel arguments.
    pub arguments: String,
}

impl Kernel {
    pub fn vmlinux(&self) -> PathBuf {
        self.dir.join("vmlinux")
    }

    /// The compressed image, as firmware boots it.
    pub fn compressed(&self) -> Result<PathBuf> {
        image(&self.root(), &self.release)
    }

    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }
}

/// The short names of Debian's kernels for an architecture, oldest first. Excludes kernels that are built here or that only the full run
/// boots: these are made when selected by name.
pub fn debian(arch: Arch) -> Result<Vec<String>> {
    let boots = |row: &Row| row.config.is_none() && row.flavour.is_none() && !row.full && row.arch == arch;
    Ok(table()?.into_iter().filter(boots).map(|row| row.name).collect())
}

/// The short names of kernels that the module is built for and that no guest boots.
pub fn flavours(full: bool) -> Result<Vec<String>> {
    let is_built = |row: &Row| row.flavour.as_ref().is_some_and(|flavour| full || flavour.quick);
    Ok(table()?.into_iter().filter(is_built).map(|row| row.name).collect())
}

/// A kernel's architecture, without fetching it.
pub fn arch_of(name: &str) -> Result<Arch> {
    if tree::is_name(name) {
        return Ok(Arch::Amd64);
    }
    Ok(row_of(&table()?, name)?.arch)
}

/// The kernel by that name, fetched now unless the cache has it.
pub fn ready(name: &str) -> Result<Kernel> {
    if tree::is_name(name) {
        return tree::ready(name);
    }
    let rows = table()?;
    let row = row_of(&rows, name)?;
    let dir = paths::cache("kernels")?.join(name);
    if let Some(kernel) = cached(row, &dir)? {
        return Ok(kernel);
    }
    fetch(row, &dir).with_context(|| format!("cannot make kernel {name} ready"))?;
    cached(row, &dir)?.with_context(|| format!("kernel {name} was made but is not complete in {}", dir.display()))
}

fn row_of<'a>(rows: &'a [Row], name: &str) -> Result<&'a Row> {
    let known = || rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(", ");
    let row = rows.iter().find(|row| row.name == name);
    row.with_context(|| format!("no kernel {name} in kernels.toml; it has {}", known()))
}

fn table() -> Result<Vec<Row>> {
    let mut rows = toml::from_str::<Table>(include_str!("../kernels.toml")).context("kernels.toml")?.kernel;
    for row in rows.clone() {
        rows.extend(row.flavours.iter().map(|flavour| row.of_flavour(flavour)));
    }
    Ok(rows)
}

impl Row {
    /// The row of another flavour's headers. Unlike images, they have one name in all suites.
    fn of_flavour(&self, flavour: &Flavour) -> Row {
        let (name, arch, common) = (&flavour.name, self.arch, &flavour.common);
        let packages = self.packages[1..].iter().map(|package| package.replace("-common", &format!("-common{common}")));
        let follow = self.follow.iter().filter(|start| start.ends_with('.') || start.ends_with("0-"));
        let headers = |start: &String| start.replace("image", "headers").replace("binary", "headers");
        Row {
            name: format!("{}-{name}", self.name),
            release: self.release.replace(&format!("-{arch}"), &format!("-{name}-{arch}")),
            follow: follow.map(headers).collect(),
            packages: packages.collect(),
            flavour: Some(flavour.clone()),
            ..self.clone()
        }
    }
}

fn cached(row: &Row, dir: &Path) -> Result<Option<Kernel>> {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    let (Some(stamp), Some(release)) = (read("stamp"), read("release")) else { return Ok(None) };
    let marks = [Some(RECIPE.to_owned()), mark(row)?];
    let is_this = marks.iter().flatten().all(|mark| stamp.lines().any(|line| line == mark));
    let boots = row.flavour.is_some() || dir.join("vmlinux").is_file();
    let complete = boots && dir.join("build/Makefile").is_file();
    Ok((is_this && complete).then(|| Kernel {
        name: row.name.clone(),
        arch: row.arch,
        release: release.trim().to_owned(),
        dir: dir.to_owned(),
        build: if row.chroot.is_empty() { Build::Here } else { Build::Chroot },
        compiler: row.arch.tool("gcc-12"),
        stamp,
        slower: row.slower.unwrap_or(1),
        memory: row.memory.unwrap_or(MEMORY),
        arguments: row.arguments.clone(),
    }))
}

/// The stamp's line for a kernel that is built here.
fn mark(row: &Row) -> Result<Option<String>> {
    row.config.as_ref().map(|config| Ok(source::mark(&source::fragment(config)?))).transpose()
}

fn fetch(row: &Row, dir: &Path) -> Result<()> {
    let is_whole = |dir: &Path| matches!(cached(row, dir), Ok(Some(_)));
    files::get_or_make(dir.to_owned(), is_whole, |partial| {
        let (release, made_of) = match &row.config {
            Some(config) => build_from_source(row, config, partial)?,
            None => unpack_debian(row, dir, partial)?,
        };
        fs_err::write(partial.join("release"), format!("{release}\n"))?;
        Ok(fs_err::write(partial.join("stamp"), format!("{RECIPE}\n{}\n", made_of.join("\n")))?)
    })
    .map(drop)
}

/// Unpacks Debian's image and headers. Returns the release and the packages.
fn unpack_debian(row: &Row, dir: &Path, partial: &Path) -> Result<(String, Vec<String>)> {
    let suite = Suite::open_for(&row.suite, row.arch)?;
    let release = choose_release(row, &suite)?;
    let (abi, _) = split_flavour(row, &release)?;
    let packages: Vec<String> =
        row.packages.iter().map(|name| name.replace("{release}", &release).replace("{abi}", abi)).collect();
    print_progress(format!("kernel {}: fetching {release} from {}", row.name, row.suite));
    let root = partial.join("root");
    let mut made_of = suite.unpack(&packages, &root)?;
    match row.arch {
        _ if row.flavour.is_some() => {}
        Arch::Amd64 => extract_vmlinux(&image(&root, &release)?, &partial.join("vmlinux"))?,
        Arch::Arm64 => copy_uncompressed(&image(&root, &release)?, &partial.join("vmlinux"))?,
    }
    for modules in ["lib/modules", "usr/lib/modules"] {
        // 300 MB of drivers that no guest has a device for.
        let _ = std::fs::remove_dir_all(root.join(modules).join(&release).join("kernel"));
    }
    let headers = format!("usr/src/linux-headers-{release}");
    match row.chroot.is_empty() {
        true => rewrite_common_path(&root.join(&headers).join("Makefile"), &dir.join("root"))?,
        false => made_of.extend(install_compiler(row, &suite, &root)?),
    }
    std::os::unix::fs::symlink(format!("root/{headers}"), partial.join("build"))?;
    Ok((release, made_of))
}

/// Builds Debian's source. Returns the release, the packages and the configuration.
fn build_from_source(row: &Row, config: &str, partial: &Path) -> Result<(String, Vec<String>)> {
    let suite = Suite::open(&row.suite)?;
    print_progress(format!("kernel {}: fetching {} from {}", row.name, row.packages.join(" "), row.suite));
    let root = partial.join("root");
    let mut made_of = suite.unpack(&row.packages, &root)?;
    print_progress(format!("kernel {}: building it, once; that takes about a quarter of an hour", row.name));
    let release = source::build(&root, config, &partial.join("build"), &partial.join("vmlinux"))?;
    made_of.extend(mark(row)?);
    Ok((release, made_of))
}

/// The pinned release, or the newest later one if the archive no longer has it.
fn choose_release(row: &Row, suite: &Suite) -> Result<String> {
    let package_of = |release: &str| row.packages[0].replace("{release}", release);
    if suite.version(&package_of(&row.release))?.is_some() {
        return Ok(row.release.clone());
    }
    let (before, after) = row.packages[0].split_once("{release}").context("the first package carries no {release}")?;
    let (_, flavour) = split_flavour(row, &row.release)?;
    for prefix in &row.follow {
        if let Some((name, _)) = suite.newest(prefix, &format!("{flavour}{after}"))? {
            let release = name.trim_start_matches(before).trim_end_matches(after).to_owned();
            print_progress(format!("kernel {}: {} has left {}; taking {release}", row.name, row.release, row.suite));
            return Ok(release);
        }
    }
    bail!("{} offers neither {} nor anything that follows it", row.suite, row.release)
}

/// Splits a release into the part that all flavours share, and `-amd64`, `-cloud-amd64` or `-arm64-16k`.
fn split_flavour<'a>(row: &Row, release: &'a str) -> Result<(&'a str, &'a str)> {
    let name = row.flavour.as_ref().map_or_else(String::new, |flavour| format!("-{}", flavour.name));
    let at =
        release.find(&format!("{name}-{}", row.arch)).with_context(|| format!("{release} is not of {}", row.arch))?;
    Ok(release.split_at(at))
}

fn image(root: &Path, release: &str) -> Result<PathBuf> {
    let places = [
        format!("boot/vmlinuz-{release}"),
        format!("usr/lib/modules/{release}/vmlinuz"),
        format!("lib/modules/{release}/vmlinuz"),
    ];
    places.iter().map(|place| root.join(place)).find(|path| path.is_file()).context("the packages hold no vmlinuz")
}

/// Extracts the uncompressed kernel from a bzImage. Source: Documentation/arch/x86/boot.rst, `payload_offset` and `payload_length`, boot
/// protocol 2.08.
fn extract_vmlinux(bzimage: &Path, vmlinux: &Path) -> Result<()> {
    let image = fs_err::read(bzimage)?;
    ensure!(image.get(0x202..0x206) == Some(b"HdrS"), "{} has no boot header", bzimage.display());
    let number = |at: usize| -> Result<usize> {
        let bytes: [u8; 4] = image.get(at..at + 4).context("short image")?.try_into()?;
        Ok(u32::from_le_bytes(bytes) as usize)
    };
    let sectors = if image[0x1f1] == 0 { 4 } else { usize::from(image[0x1f1]) };
    let start = (sectors + 1) * 512 + number(0x248)?;
    let length = number(0x24c)?;
    // The kernel's build appends the uncompressed size, four bytes that are not part of the stream.
    let stream = image.get(start..start + length - 4).context("the payload ends outside the image")?;
    let size = number(start + length - 4)?;
    let unpacker = match stream {
        [0xfd, b'7', b'z', ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0x1f, 0x8b, ..] => "gzip",
        _ => bail!("{} is compressed in an unknown way", bzimage.display()),
    };
    let packed = vmlinux.with_extension("packed");
    std::fs::write(&packed, stream)?;
    let status = Command::new(unpacker)
        .args(["-d", "-c", "-q"])
        .stdin(std::fs::File::open(&packed)?)
        .stdout(std::fs::File::create(vmlinux)?)
        .stderr(Stdio::inherit())
        .status()
        .with_context(|| format!("cannot start {unpacker}"))?;
    std::fs::remove_file(&packed)?;
    let got = std::fs::metadata(vmlinux)?.len() as usize;
    ensure!(
        status.success() && got == size,
        "{unpacker} made {got} bytes of {}, which should be {size}",
        bzimage.display()
    );
    Ok(())
}

/// Copies an arm64 image, which Debian does not compress. Source: Documentation/arch/arm64/booting.rst, the header's magic.
fn copy_uncompressed(from: &Path, vmlinux: &Path) -> Result<()> {
    let image = fs_err::read(from)?;
    ensure!(image.get(0x38..0x3c) == Some(b"ARM\x64"), "{} is no uncompressed arm64 kernel", from.display());
    Ok(std::fs::write(vmlinux, image)?)
}

/// Changes the absolute path of the common headers in a Makefile to the cache's.
fn rewrite_common_path(makefile: &Path, root: &Path) -> Result<()> {
    let text = fs_err::read_to_string(makefile)?;
    Ok(std::fs::write(makefile, text.replace("/usr/src/", &format!("{}/usr/src/", root.display())))?)
}

/// Unpacks a compiler and the programs of kbuild into the folder, for builds by chroot.
fn install_compiler(row: &Row, suite: &Suite, root: &Path) -> Result<Vec<String>> {
    print_progress(format!("kernel {}: fetching its compiler", row.name));
    let made_of = suite.unpack(&suite.with_dependencies(&row.chroot)?, root)?;
    if !root.join("usr/bin/awk").exists() {
        std::os::unix::fs::symlink("mawk", root.join("usr/bin/awk"))?;
    }
    // objtool reads its stack's bounds at start, for a crash message. This line replaces a mounted /proc.
    std::fs::create_dir_all(root.join("proc/self"))?;
    std::fs::write(root.join("proc/self/maps"), "7ffc00000000-7fffffffffff rw-p 00000000 00:00 0 [stack]\n")?;
    std::fs::create_dir_all(root.join("build"))?;
    Ok(made_of)
}

#[cfg(test)]
mod tests {
    use super::{Arch, table};

    /// `Arch::named` makes such names.
    #[test]
    fn arm64_kernel_names_end_in_arm64() {
        for row in table().unwrap() {
            assert_eq!(row.name.ends_with("-arm64"), row.arch == Arch::Arm64, "{}", row.name);
        }
    }
}
