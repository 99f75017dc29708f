//! Published escapes, replayed with real runc: attacks of an image on a program that injects into it.
//!
//! Each image tries to reach the host: by links where files are mounted or written, by swapping them meanwhile, by its environment. The
//! container gets an error or a result within its own root; the host's tree stays as it was, and a file that only the host has is found
//! nowhere in the container.
//!
//! Source: CVE-2024-0132 and CVE-2025-23359 (links and races at mount targets), CVE-2025-23266 (environment of hooks).

use std::process::Command;

use serde_json::json;

use crate::container::{Container, RunResult};
use crate::host::{Driver, Host, R550};
use crate::wrapper::{MODES, WRAPPER, configure};

/// Searches for the host's file by name and length, outside the kernel's own trees. The name alone is not enough: through an image's link, a
/// mount point of the container's own can get it.
const SEARCH: &str =
    "/usr/bin/busybox find / -path /proc -prune -o -path /sys -prune -o -name only-the-host -size 7c -print";

fn search() -> Vec<&'static str> {
    SEARCH.split(' ').collect()
}

/// Attacks as scripts in an image's root.
const TRAPS: [(&str, &str); 12] = [
    ("library folder leads up", "rm -rf usr/lib64; ln -s ../../../../../../../../../../root/out usr/lib64"),
    ("library folder is absolute", "mv usr/lib/x86_64-linux-gnu root/out; ln -s /root/out usr/lib/x86_64-linux-gnu"),
    ("programs lead out", "ln -sf /root/only-the-host usr/bin/nvidia-smi"),
    ("programs lead up", "ln -sf ../../../../../../../../root/only-the-host usr/bin/nvidia-smi"),
    ("programs lead through procfs", "ln -sf /proc/1/root/root/only-the-host usr/bin/nvidia-smi"),
    ("library leads out", "ln -sf /root/only-the-host usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01"),
    ("linker's folder leads out", "rm -rf etc/ld.so.conf.d; ln -s ../../../../../../../../root/out etc/ld.so.conf.d"),
    ("linker's cache leads out", "ln -sf ../../../../../../../../root/only-the-host etc/ld.so.cache"),
    ("linker's temporary leads out", "ln -sf ../../../../../../../../root/only-the-host etc/ld.so.cache~"),
    (
        "linker's includes lead out",
        "mkdir -p etc; echo 'include /proc/1/root/root/*' > etc/ld.so.conf; echo /proc/1/root/root/out >> etc/ld.so.conf",
    ),
    (
        "compat libraries are folders of the host",
        "mkdir -p usr/local/cuda/compat; for n in libcuda.so.999.10 libnvidia-ptxjitcompiler.so.999.10; do \
      ln -s ../../../../../../../../../../root usr/local/cuda/compat/$n; ln -s / usr/local/cuda/compat/$n.1; done",
    ),
    (
        "compat folder is the host's",
        "mkdir -p usr/local/cuda; ln -s ../../../../../../../../../../root usr/local/cuda/compat",
    ),
];

fn host() -> Option<Host> {
    let host = Host::start(Driver::Release(R550, 1))?;
    host.ok("mkdir /root/out; echo secret > /root/only-the-host; echo out > /root/out/file");
    Some(host)
}

/// Runs a container and checks that the host is unchanged and unreachable from it.
fn run_contained(host: &Host, container: &Container, what: &str) -> RunResult {
    let mounts = || host.ok("wc -l < /proc/self/mountinfo");
    let (before, mounted) = (host.changes(), mounts());
    let result = container.run(WRAPPER);
    assert_eq!(mounts(), mounted, "{what}: mounts reached the host");
    assert_eq!(host.changes(), before, "{what}: the host changed: {}{}", result.out, result.err);
    assert_eq!(
        host.ok("cat /root/only-the-host; ls /root /root/out"),
        "secret\n/root:\nonly-the-host\nout\n\n/root/out:\nfile\n",
        "{what}"
    );
    assert!(!result.out.contains("only-the-host"), "{what}: the container reaches the host: {}", result.out);
    assert!(result.ok || !result.err.trim().is_empty(), "{what}: it failed without a reason");
    result
}

#[test]
fn links_of_image_stay_within_it() {
    let Some(host) = host() else { return };
    let mut refused = Vec::new();
    for (trap, script) in TRAPS {
        for mode in MODES {
            let compat = if mode == "legacy" { vec!["ldconfig", "mount"] } else { vec!["ldconfig"] };
            for compat in compat {
                configure(&host, mode, "runc");
                let file = "/etc/nvidia-container-runtime/config.toml";
                host.ok(&format!(
                    "echo '[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = \"{compat}\"' >> {file}"
                ));
                let container = Container::new(&host, "glibc", &search())
                    .env(&["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]);
                host.ok(&format!("cd {}/rootfs && {{ {script}; }}", container.folder()));
                let what = format!("{trap}, {mode}, {compat}");
                let result = run_contained(&host, &container, &what);
                if !result.ok {
                    refused.push(what);
                }
            }
        }
    }
    println!("refused rather than contained: {refused:#?}");
}

#[test]
fn swapped_folder_stays_contained() {
    let Some(host) = host() else { return };
    for mode in MODES {
        configure(&host, mode, "runc");
        let mut started = 0;
        for _ in 0..6 {
            let container = Container::new(&host, "glibc", &search()).env(&["NVIDIA_VISIBLE_DEVICES=all"]);
            let root = format!("{}/rootfs", container.folder());
            // While the container is created, two loops swap the folders of the libraries and of the linker's configuration with links.
            // The folders are copied first: an overlay exchanges no folder that it shares with the image.
            host.ok(&format!(
                "touch /tmp/swapping; cd {root}; mkdir -p usr/lib64
                 ln -s ../../../../../../../../../root/out usr/swap; ln -s ../../../../../../../root/out etc/swap
                 for pair in 'usr/lib/x86_64-linux-gnu usr/swap' 'etc/ld.so.conf.d etc/swap'; do
                     set -- $pair; cp -a $1 $1.copy; rm -r $1; mv $1.copy $1
                     ( while [ -e /tmp/swapping ]; do mv --exchange -T $1 $2 && echo >> /tmp/swaps; done ) > /dev/null 2>&1 &
                 done"
            ));
            let result = run_contained(&host, &container, &format!("swaps, {mode}"));
            host.ok("rm /tmp/swapping");
            started += u32::from(result.ok);
        }
        let swaps: u32 = host.ok("wc -l < /tmp/swaps; rm /tmp/swaps").trim().parse().expect("a number");
        assert!(swaps > 100, "{mode}: {swaps} swaps are no race");
        println!("{mode}: {started} of 6 containers started under {swaps} swaps");
    }
}

/// A library that makes a file on the host when it is loaded.
const LOADED: &str = "#include <fcntl.h>\n\
    __attribute__((constructor)) static void loaded(void) { open(\"/tmp/loaded\", O_CREAT | O_WRONLY, 0600); }\n";

#[test]
fn hooks_ignore_image_environment() {
    let Some(host) = host() else { return };
    let work = tempfile::tempdir().expect("a folder");
    let library = work.path().join("trap.so");
    std::fs::write(work.path().join("trap.c"), LOADED).expect("a source");
    let cc = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(work.path().join("trap.c")).status();
    if !cc.is_ok_and(|status| status.success()) {
        return println!("skipped: no C compiler, so no library to preload");
    }
    let make = || {
        let variables =
            ["LD_PRELOAD=/proc/self/cwd/trap.so", "LD_LIBRARY_PATH=/proc/self/cwd", "NVIDIA_VISIBLE_DEVICES=all"];
        let container = Container::new(&host, "glibc", &["/usr/bin/busybox", "true"]).env(&variables);
        std::fs::copy(&library, host.path(&format!("{}/rootfs/trap.so", container.folder()))).expect("the library");
        container
    };
    // The attack works: a hook that keeps its environment loads the image's library on the host.
    let mut control = make();
    control.config["hooks"]["createContainer"] = json!([{ "path": "/usr/bin/true" }]);
    control.run("runc");
    assert!(
        host.path("/tmp/loaded").exists(),
        "the trap is not live: runc gives hooks no environment of the image any more?"
    );
    host.ok("rm -f /tmp/loaded");
    for mode in MODES {
        configure(&host, mode, "runc");
        let container = make();
        let result = run_contained(&host, &container, mode);
        assert!(result.ok, "{mode}: {}", result.err);
        assert!(!host.path("/tmp/loaded").exists(), "{mode}: the image's library was loaded into a hook");
    }
}
