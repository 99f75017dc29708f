//! Files of a fake driver, by capability.

use super::*;
use crate::driver::fake::{self, Host, LIBRARIES, RELEASE as VERSION};
use std::os::unix::fs::symlink;

/// A host with a driver in the folders of a 64-bit Debian, a 32-bit library, and one library of another release.
fn host() -> Host {
    let host = Host::with_driver(VERSION);
    let stems =
        ["libcuda", "libnvidia-ml", "libnvidia-glcore", "libGLX_nvidia", "libnvidia-allocator", "libnvidia-new"];
    host.libraries_of_driver(&stems);
    for (path, soname, wide) in [
        (format!("{LIBRARIES}/libcuda.so.535.1"), "libcuda.so.1", true),
        (format!("{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}"), "libvdpau_nvidia.so.1", true),
        (format!("{LIBRARIES}/libnvidia-egl-gbm.so.1.1.2"), "libnvidia-egl-gbm.so.1", true),
        (format!("usr/lib/i386-linux-gnu/libcuda.so.{VERSION}"), "libcuda.so.1", false),
    ] {
        host.library(&path, soname, wide);
    }
    host.write(&format!("{LIBRARIES}/libnvidia-cfg.so.{VERSION}"), "not a library");
    host.link("libnvidia-egl-gbm.so.1.1.2", &format!("{LIBRARIES}/libnvidia-egl-gbm.so.1"));
    host.write("usr/bin/nvidia-smi", "");
    host.write(&format!("lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"), "");
    host.write(&format!("lib/firmware/nvidia/{VERSION}/other.bin"), "");
    host.write("run/nvidia-persistenced/socket", "");
    host.write("tmp/nvidia-mps/control", "");
    host.write("usr/share/vulkan/icd.d/nvidia_icd.json", "{}");
    host.write("usr/share/glvnd/egl_vendor.d/10_nvidia.json", "{}");
    host.write("usr/lib/xorg/modules/drivers/nvidia_drv.so", "");
    host
}

fn files(host: &Host, capabilities: &str) -> Result<Files, DriverError> {
    let driver = Driver::find(&host.root()).expect("a driver");
    driver.files(Capabilities::parse(capabilities).expect("capabilities"))
}

/// All paths in the container, each of which must be a file on the host.
fn check(host: &Host, capabilities: &str, expected: &[&str]) {
    let found = files(host, capabilities).expect("files");
    let libraries = found.libraries.iter().map(|library| &library.file);
    let others = [&found.programs, &found.firmware, &found.sockets, &found.data].into_iter().flatten();
    let all: Vec<&File> = libraries.chain(others).collect();
    assert!(
        all.iter().all(|file| file.host.starts_with(host.path().canonicalize().expect("a root")) && file.host.exists())
    );
    let short =
        |path: &Path| path.display().to_string().replace(VERSION, "V").replace("/usr/lib/x86_64-linux-gnu", "64");
    let mut paths: Vec<String> = all.iter().map(|file| short(&file.container)).collect();
    paths.extend(found.links.iter().map(|link| format!("{} -> {}", short(&link.path), short(&link.target))));
    assert_eq!(paths, expected, "{capabilities}");
}

#[test]
fn program_is_preferred_to_wrapper_script() {
    let host = host();
    host.write("usr/bin/nvidia-smi", "#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi\n");
    let smi = |host: &Host| {
        let driver = Driver::find(&host.root()).expect("a driver");
        let found = driver.files(Capabilities::ALL).expect("files").programs;
        found.into_iter().map(|file| file.container).find(|path| path.ends_with("nvidia-smi"))
    };
    assert_eq!(smi(&host).as_deref(), Some(Path::new("/usr/bin/nvidia-smi")), "a script is better than nothing");
    host.write("usr/local/nvidia/bin/nvidia-smi", "\x7fELF");
    assert_eq!(smi(&host).as_deref(), Some(Path::new("/usr/local/nvidia/bin/nvidia-smi")));
}

#[test]
fn each_capability_selects_its_files() {
    let host = host();
    const FIRMWARE: &str = "/lib/firmware/nvidia/V/gsp_ga10x.bin";
    check(&host, "", &[]);
    check(
        &host,
        "utility",
        &["64/libnvidia-ml.so.V", "/usr/bin/nvidia-smi", FIRMWARE, "/run/nvidia-persistenced/socket"],
    );
    let compute = [
        "64/libcuda.so.V",
        "64/libnvidia-allocator.so.V",
        FIRMWARE,
        "/tmp/nvidia-mps",
        "64/libcuda.so -> libcuda.so.1",
    ];
    check(&host, "compute", &compute);
    let with_32 = [
        "64/libcuda.so.V",
        "64/libnvidia-allocator.so.V",
        "/usr/lib/i386-linux-gnu/libcuda.so.V",
        FIRMWARE,
        "/tmp/nvidia-mps",
        "64/libcuda.so -> libcuda.so.1",
        "/usr/lib/i386-linux-gnu/libcuda.so -> libcuda.so.1",
    ];
    check(&host, "compute,compat32", &with_32);
    check(&host, "video", &["64/vdpau/libvdpau_nvidia.so.V", FIRMWARE]);
    let graphics = [
        "64/libGLX_nvidia.so.V",
        "64/libnvidia-allocator.so.V",
        "64/libnvidia-egl-gbm.so.1.1.2",
        "64/libnvidia-glcore.so.V",
        FIRMWARE,
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/etc/vulkan/icd.d/nvidia_icd.json",
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
        "64/libGLX_indirect.so.0 -> libGLX_nvidia.so.V",
        "64/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1",
    ];
    check(&host, "graphics", &graphics);
}

#[test]
fn new_library_comes_with_all_capabilities_only() {
    let has_new = |capabilities| {
        let found = files(&host(), capabilities).expect("files");
        found.libraries.iter().any(|library| library.soname == "libnvidia-new.so.1")
    };
    assert!(has_new("all"));
    assert!(has_new("compute,display,graphics,ngx,utility,video"));
    assert!(!has_new("compute,display,graphics,utility,video"));
}

#[test]
fn linker_cache_finds_unusual_folders() {
    let host = Host::with_driver(VERSION);
    for stem in ["libcuda", "libnvidia-ml"] {
        host.library(&format!("opt/driver/{stem}.so.{VERSION}"), &format!("{stem}.so.1"), true);
    }
    assert!(matches!(files(&host, "compute"), Err(DriverError::NoLibraries { .. })));

    // An absolute link, as in Debian's alternatives, is relative to the driver's root.
    host.link(format!("/opt/driver/libcuda.so.{VERSION}"), "opt/libcuda.so.1");
    let cache =
        ldcache::build_cache(&[("libcuda.so.1", "/opt/libcuda.so.1", 0x0303), ("libc.so.6", "/x", 0x0303)], None);
    host.write("etc/ld.so.cache", cache);
    check(&host, "utility", &["/opt/driver/libnvidia-ml.so.V"]);

    let driver = Driver::find(&host.root()).expect("a driver");
    assert!(driver.files_by_cache(Capabilities::ALL, Some(Path::new("/elsewhere"))).is_err());
    host.write("etc/ld.so.cache", "ruined");
    assert!(files(&host, "utility").is_err());
}

#[test]
fn link_never_leads_out_of_root() {
    let host = host();
    let outside = tempfile::tempdir().expect("a folder");
    let name = format!("libnvidia-cfg.so.{VERSION}");
    std::fs::write(outside.path().join(&name), fake::library("libnvidia-cfg.so.1", true)).expect("a library");
    let link = host.path().join("usr/lib/x86_64-linux-gnu").join(&name);
    std::fs::remove_file(&link).expect("the old file");
    symlink(outside.path().join(&name), &link).expect("a link");
    let found = files(&host, "utility").expect("files");
    assert_eq!(found.libraries.len(), 1, "{:?}", found.libraries);
}

#[test]
fn missing_libraries_are_explained() {
    let host = Host::with_driver(VERSION);
    let error = files(&host, "utility").expect_err("no libraries").to_string();
    assert!(error.contains("there is no library of driver release 580.159.04 below /"), "{error}");
}

/// The cache that ldconfig writes for a root with Debian's alternatives.
#[test]
fn real_ldconfig_cache_leads_to_driver_folder() {
    let host = Host::with_driver(VERSION);
    for stem in ["libcuda", "libnvidia-ml", "libnvidia-cfg"] {
        let name = format!("{stem}.so.{VERSION}");
        host.library(&format!("opt/driver/current/{name}"), &format!("{stem}.so.1"), true);
        host.link(name, &format!("opt/driver/current/{stem}.so.1"));
    }
    host.write("etc/ld.so.conf", "/opt/driver\n");
    host.link("/opt/driver/current/libcuda.so.1", "etc/alternatives/libcuda.so.1");
    host.link("/etc/alternatives/libcuda.so.1", "opt/driver/libcuda.so.1");
    let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|path| Path::new(path).exists());
    let Some(ldconfig) = ldconfig else { return println!("skipped: no ldconfig") };
    let made = std::process::Command::new(ldconfig).arg("-r").arg(host.path()).output().expect("ldconfig");
    if !made.status.success() {
        return println!("skipped: ldconfig -r needs root: {}", String::from_utf8_lossy(&made.stderr).trim());
    }
    check(&host, "utility", &["/opt/driver/current/libnvidia-cfg.so.V", "/opt/driver/current/libnvidia-ml.so.V"]);
}
