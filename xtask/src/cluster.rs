//! A Kubernetes cluster: the control plane on this machine, in namespaces of its own, and a node in a guest, with containerd, the kubelet,
//! the simulated driver and the chart. tests/cluster has its scripts and stories.
//!
//! Kubernetes 1.20.2 is the newest whose programs, beside kubectl, Debian has; they are built from its source package, once.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::apt::Suite;
use crate::arch::Arch;
use crate::cpio::Archive;
use crate::guest::verdict::{Report, Tally};
use crate::guest::{self, image};
use crate::node::{self, CLIENT, Debian, ERA, NEXT};
use crate::outcome::Outcome;
use crate::programs::Build;
use crate::run::{build_to_log, command, output, run};
use crate::{chart, files, kernels, nvidia, paths, promtool, setup};

const VERSION: &str = "1.20.2";
/// Raised when the programs are made otherwise, so that older caches are made anew.
const RECIPE: &str = "2";
/// The API server's and the node's addresses: of the network that QEMU emulates, and on the loopback of the namespaces.
const SERVER: &str = "10.96.0.1";
const NODE_ADDRESS: &str = "10.96.0.20";

/// The node. Its containerd is Debian 13's 1.7: the last that this kubelet speaks to, and the first that reads CDI files.
const NODE: Debian = Debian {
    name: "-cluster",
    suite: "bookworm",
    kernel: "6.1",
    packages: "systemd,systemd-sysv,udev,kmod,procps,psmisc,iproute2",
    more: &["containerd", "runc", "containernetworking-plugins"],
    headers: false,
};

const CONTAINERD: [&str; 3] = ["containerd", "containerd-shim-runc-v2", "ctr"];

/// The kernel's modules that the node needs, each after those that it uses.
const MODULES: [&str; 6] = ["overlay", "llc", "stp", "bridge", "veth", "e1000"];

/// The chart with a file of values each.
const MANIFESTS: [&str; 4] = ["defaults.yaml", "full.yaml", "second.yaml", "cost.yaml"];

#[derive(clap::Args)]
pub struct Args {
    /// Open a shell with kubectl instead; the cluster ends with it
    #[arg(long)]
    shell: bool,
}

pub fn cluster(args: &Args) -> Result<Outcome> {
    fetch()?;
    let report = boot(&build()?, args.shell, true)?;
    if args.shell {
        return Ok(Outcome::Passed);
    }
    Ok(Tally::print_one(&report))
}

/// Downloads and makes everything that needs a network.
pub fn fetch() -> Result<()> {
    guest::prepare(Arch::Amd64)?;
    setup::require(setup::NODE)?;
    setup::require(setup::IMAGES)?;
    nvidia::ready(CLIENT, Arch::Amd64)?;
    programs()?;
    images()?;
    promtool::server()?;
    chart::tools()?;
    node::debian(&NODE).map(drop)
}

/// Starts the cluster, runs the stories, and stops it.
pub fn boot(image: &Path, shell: bool, loud: bool) -> Result<Report> {
    let (folder, scripts) = (paths::target("cluster")?, scripts());
    files::recreate(&folder.join("etcd"))?;
    let kernel = kernels::ready(NODE.kernel)?;
    // If this program ends, the kernel kills the first process of the namespaces, and with it all others there.
    let mut machine = command("setpriv", ["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork"]);
    machine.env("PROMETHEUS", promtool::server()?).env("STORAGE", storage()?).env("VERSION", env!("CARGO_PKG_VERSION"));
    machine.env("NEXT", NEXT);
    machine.args(["--kill-child", "--mount-proc", "sh"]).arg(scripts.join("cluster.sh")).arg(programs()?).arg(&folder);
    machine.arg(if shell { "-" } else { "stories" });
    let guest = node::machine(&kernel, &kernel.vmlinux(), image, "rdinit=/node/node.sh net.ifnames=0", false);
    machine.arg(guest.get_program()).args(guest.get_args());
    let ports = format!("hostfwd=tcp:{NODE_ADDRESS}:10250-{NODE_ADDRESS}:10250");
    machine.args(["-netdev", &format!("user,id=net,net=10.96.0.0/24,host={SERVER},{ports}")]);
    machine.args(["-device", "e1000,netdev=net"]);
    node::watch(machine, NODE.kernel, "cluster", &stories()?, image, loud)
}

/// The folder with the four programs of Kubernetes, etcd, kubectl, the registry and containerd's.
fn programs() -> Result<PathBuf> {
    let place = paths::cache("cluster")?.join(format!("{VERSION}-{RECIPE}"));
    files::get_or_make(place, Path::is_dir, |partial| {
        let work = partial.join("work");
        let (tools, newer) = (Suite::open("bookworm")?, Suite::open("trixie")?);
        let packages = ["golang-1.19-go", "golang-1.19-src", "etcd-server", "docker-registry"].map(str::to_owned);
        tools.unpack(&packages, &work)?;
        newer.unpack(&["kubectl", "containerd"].map(str::to_owned), &work.join("newer"))?;
        for name in ["etcd", "docker-registry"] {
            files::copy(&work.join("usr/bin").join(name), &partial.join(name))?;
        }
        for name in CONTAINERD.into_iter().chain(["kubectl"]) {
            files::copy(&work.join("newer/usr/bin").join(name), &partial.join(name))?;
        }
        let path = work.join("path");
        let source = format!("1.20.5+really{VERSION}");
        let tree = path.join("src/k8s.io/kubernetes");
        Suite::open_sources("bookworm")?.unpack_source("kubernetes", &source, &tree)?;
        let mut build = command("nice", ["-n", "10", "sh"]);
        build.arg(paths::repo().join("tests/cluster/build.sh")).arg(work.join("usr/lib/go-1.19")).arg(path);
        let log = paths::target("log")?.join("kubernetes-build.log");
        let built = build_to_log(build.arg(VERSION).arg(partial), &log, "Kubernetes (8 minutes of a processor)")?;
        ensure!(built, "Kubernetes cannot be built: {}", log.display());
        files::remove(&work)
    })
}

fn scripts() -> PathBuf {
    paths::repo().join("tests/cluster")
}

/// The scripts with stories.
pub fn stories() -> Result<Vec<PathBuf>> {
    let scripts = files::entries(&scripts())?.into_iter();
    Ok(scripts.filter(|path| path.extension().is_some_and(|ending| ending == "sh")).collect())
}

/// The node's image: the Debian and this run's files.
pub fn build() -> Result<PathBuf> {
    let (folder, scripts) = (&paths::target("cluster")?, &scripts());
    let kernel = kernels::ready(NODE.kernel)?;
    let client = nvidia::ready(CLIENT, Arch::Amd64)?;
    let mut archive = Archive::default();
    for (name, from) in [
        ("node/node.sh", "node.sh"),
        ("etc/systemd/system/node.service", "node.service"),
        ("etc/kubernetes/kubelet.yaml", "kubelet.yaml"),
        ("etc/containerd/config.toml", "containerd.toml"),
        ("etc/cni/net.d/bridge.conflist", "bridge.conflist"),
    ] {
        archive.file(name, if from == "node.sh" { 0o755 } else { 0o644 }, &scripts.join(from))?;
    }
    archive.text("etc/systemd/system/multi-user.target.d/node.conf", 0o644, b"[Unit]\nWants=node.service\n");
    for name in CONTAINERD.into_iter().chain(["kubelet"]) {
        archive.file(&format!("usr/bin/{name}"), 0o755, &programs()?.join(name))?;
    }
    archive.file("node/mpu", 0o755, &Build::TESTS.program(Arch::Amd64, "mpu")?)?;
    let modules = modules(&kernel.release)?;
    for (place, name) in MODULES.iter().enumerate() {
        let file = modules.join(format!("{name}.ko"));
        archive.file(&format!("node/modules/{place}-{name}.ko"), 0o644, &file)?;
    }
    let ours = image::mpu_module(&kernel, None)?;
    for name in ["mpu.ko", "mpu_next.ko"] {
        archive.file(&format!("node/{name}"), 0o644, &ours.with_file_name(name))?;
    }
    archive.file("node/nvidia.ko", 0o644, &image::sim_module(&kernel, ERA)?)?;
    for file in nvidia::PROGRAMS {
        archive.file(&format!("node/nvidia/{file}"), 0o755, &client.join(file))?;
    }
    pki(folder, scripts)?;
    for name in ["ca.crt", "kubelet.crt", "kubelet.key", "kubelet.kubeconfig"] {
        archive.file(&format!("etc/kubernetes/{name}"), 0o600, &folder.join("pki").join(name))?;
    }
    for name in MANIFESTS {
        run(&mut chart::render_for(VERSION, &scripts.join(name), &folder.join(name))?)?;
    }
    node::join(&[node::debian(&NODE)?], archive, folder.join("image"))
}

/// buildah's storage.
fn storage() -> Result<PathBuf> {
    Ok(paths::cache("cluster")?.join("images"))
}

/// Builds the images from folders as `./x dist` makes them. Only the first time needs a network.
fn images() -> Result<()> {
    let (folder, scripts, kernel) = (paths::target("cluster/images")?, scripts(), kernels::ready(NODE.kernel)?);
    let (next, simulated) = (folder.join("next"), image::sim_programs(Arch::Amd64)?);
    let newer = Build { another_version: Some(NEXT), ..Build::TESTS }.program(Arch::Amd64, "mpu")?;
    files::recreate(&next)?;
    for name in ["mpu", "mpu-container"] {
        files::copy(&Build::TESTS.program(Arch::Amd64, name)?, &folder.join("amd64").join(name))?;
    }
    files::copy(&newer, &next.join("amd64/mpu"))?;
    for name in ["gpu-hold", "nvctl"] {
        files::copy(&simulated.join(name), &folder.join(name))?;
    }
    for name in ["poller.sh", "plugin.py"] {
        files::copy(&scripts.join(name), &folder.join(name))?;
    }
    let mut build = Command::new(newer);
    build.args(["build", "--for", &kernel.release, "--headers"]).arg(kernel.root()).arg("--out");
    output(build.arg(next.join("modules")))?;
    let mut make = command("sh", [scripts.join("images.sh"), storage()?, folder]);
    output(make.args([env!("CARGO_PKG_VERSION"), NEXT])).map(drop)
}

/// The folder with the kernel modules that the node needs, from the kernel's package.
fn modules(release: &str) -> Result<PathBuf> {
    files::get_or_make(paths::cache("cluster")?.join(format!("modules-{release}")), Path::is_dir, |partial| {
        let names = MODULES.map(|name| format!("{name}.ko"));
        Suite::open(NODE.suite)?.unpack_files(&[&format!("linux-image-{release}")], &names, partial)
    })
}

/// Makes the certificates, which are valid for ten years, unless they are there and were made from the same settings.
fn pki(folder: &Path, scripts: &Path) -> Result<()> {
    let (script, place) = (scripts.join("pki.sh"), folder.join("pki"));
    let (text, path, made) = (files::read(&script)?, place.display().to_string(), place.join("settings"));
    // The kubeconfigs have the folder's path.
    let settings = files::digest([&*text, &*path, SERVER, NODE_ADDRESS]);
    if files::read(&made).is_ok_and(|made| made == settings) {
        return Ok(());
    }
    files::remove(&place)?;
    output(command("sh", [script, place]).args([SERVER, NODE_ADDRESS]))?;
    files::write(&made, settings, 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_follow_script() {
        let folder = tempfile::tempdir().unwrap();
        let made_by = |script: &str| {
            files::write(&folder.path().join("pki.sh"), script, 0o644).unwrap();
            pki(folder.path(), folder.path()).unwrap();
            files::read(&folder.path().join("pki/process")).unwrap()
        };
        let [script, other] = ["", "# other\n"].map(|more| format!("mkdir \"$1\"\necho $$ >\"$1/process\"\n{more}"));
        let first = made_by(&script);
        assert_eq!(made_by(&script), first);
        assert_ne!(made_by(&other), first);
    }
}
