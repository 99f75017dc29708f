//! Images of made-up modules: what is in them, that the same modules give the same bytes, and each reason against one.

use super::*;
use mpu_host::host::fake::FakeHost;
use std::collections::BTreeMap;
use std::io::Read;

/// A depmod that says which modules it saw.
const DEPMOD: &str = r#"[ "$1" = -b ] || exit 2; cd "$2/lib/modules/$3" && ls *.ko | sed 's/$/:/' >modules.dep"#;

struct Rig {
    fake: FakeHost,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new(releases: &[&str]) -> Rig {
        let rig = Rig { fake: FakeHost::in_order(), dir: tempfile::tempdir().expect("a folder") };
        rig.fake.tool("depmod", DEPMOD);
        releases.iter().for_each(|release| rig.put("modules", release, env!("CARGO_PKG_VERSION")));
        rig
    }

    fn put(&self, folder: &str, release: &str, version: &str) {
        let folder = self.dir.path().join(folder).join(release);
        fs::create_dir_all(&folder).expect("folders");
        for name in ["mpu", "mpu_next"] {
            let mut bytes = sources::fake::module_named(name, release);
            bytes.extend_from_slice(format!("version={version}\0").as_bytes());
            fs::write(folder.join(format!("{name}.ko")), bytes).expect("a module");
        }
        fs::write(folder.join("build.log"), "what make said").expect("a log");
    }

    fn options(&self, out: &str) -> ImageOptions {
        ImageOptions { modules: self.dir.path().join("modules"), out: self.dir.path().join(out), busybox: None }
    }

    fn make(&self, options: &ImageOptions) -> Result<Image, ImageError> {
        make(&self.fake.host(), options)
    }
}

/// The files of a tar, and where its links lead.
fn files(bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(bytes).entries().expect("a tar") {
        let mut entry = entry.expect("an entry");
        let head = entry.header().clone();
        assert_eq!((head.uid().ok(), head.gid().ok(), head.mtime().ok()), (Some(0), Some(0), Some(0)));
        assert_eq!(head.mode().expect("a mode") & 0o022, if head.entry_type().is_symlink() { 0o022 } else { 0 });
        let path = entry.path().expect("a path").display().to_string();
        let mut bytes =
            head.link_name().expect("a name").map_or(Vec::new(), |to| to.display().to_string().into_bytes());
        entry.read_to_end(&mut bytes).expect("read");
        assert!(found.insert(path.clone(), bytes).is_none(), "{path} twice");
    }
    found
}

/// The one layer, found as a reader of the layout finds it; every digest on the way holds.
fn layer_of(image: &Image) -> (Value, BTreeMap<String, Vec<u8>>) {
    let layout = files(&fs::read(&image.path).expect("an image"));
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
    assert_eq!(json(&layout["oci-layout"])["imageLayoutVersion"], "1.0.0");
    let blob = |of: &Value| {
        let digest =
            of["digest"].as_str().expect("a digest").strip_prefix("sha256:").expect("of this kind").to_string();
        let bytes = layout[&format!("blobs/sha256/{digest}")].clone();
        let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((sum, of["size"].as_u64()), (digest, Some(bytes.len() as u64)));
        bytes
    };
    let index = json(&layout["index.json"]);
    assert_eq!(index["manifests"][0]["digest"], image.digest.as_str());
    let manifest = json(&blob(&index["manifests"][0]));
    let config = json(&blob(&manifest["config"]));
    assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"], "an uncompressed layer is its own");
    let layer = files(&blob(&manifest["layers"][0]));
    assert_eq!(layout.len(), 5, "and nothing else");
    (config, layer)
}

#[test]
fn each_kernels_modules_are_where_kmm_looks_for_them() {
    let rig = Rig::new(&["6.1.0-50-amd64", "5.14.0-503.el9.x86_64"]);
    fs::create_dir_all(rig.dir.path().join("modules/notes")).expect("a folder that is no kernel's");
    let image = rig.make(&rig.options("image.tar")).expect("an image");
    let (config, layer) = layer_of(&image);
    assert_eq!((config["architecture"].as_str(), config["os"].as_str()), (Some(image.arch), Some("linux")));
    let mut wanted: Vec<String> = ["opt/", "opt/lib/", "opt/lib/modules/"].map(str::to_string).to_vec();
    for release in ["5.14.0-503.el9.x86_64", "6.1.0-50-amd64"] {
        wanted.extend(
            ["", "modules.dep", "mpu.ko", "mpu_next.ko"].map(|name| format!("opt/lib/modules/{release}/{name}")),
        );
    }
    assert_eq!(layer.keys().cloned().collect::<Vec<_>>(), wanted);
    assert_eq!(layer["opt/lib/modules/6.1.0-50-amd64/modules.dep"], b"mpu.ko:\nmpu_next.ko:\n");
    assert!(!image.kmm && image.modules.iter().all(|one| !one.signed));
}

#[test]
fn the_same_modules_give_the_same_bytes() {
    let one = Rig::new(&["6.1.0", "6.2.0"]);
    let other = Rig::new(&["6.2.0", "6.1.0"]);
    let bytes = |rig: &Rig| fs::read(rig.make(&rig.options("image.tar")).expect("an image").path).expect("readable");
    let image = bytes(&one);
    assert_eq!(image, bytes(&other));
    other.put("modules", "6.3.0", env!("CARGO_PKG_VERSION"));
    fs::remove_file(other.dir.path().join("image.tar")).expect("removed");
    assert_ne!(image, bytes(&other));
}

#[test]
fn kmm_gets_what_it_runs() {
    let rig = Rig::new(&["6.1.0"]);
    let path = rig.dir.path().join("busybox");
    let with = || ImageOptions { busybox: Some(path.clone()), ..rig.options("image.tar") };
    let code = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("a file");
        rig.make(&with()).map(|image| image.kmm).map_err(|error| error.to_string())
    };
    assert!(code(b"#!/bin/sh\n").unwrap_err().contains("is not a program"));
    let other = if std::env::consts::ARCH == "aarch64" { "x86_64" } else { "aarch64" };
    assert!(code(&elf::fake::header(other)).unwrap_err().contains("is not for"));
    // One program header, which names a loader.
    let mut dynamic = elf::fake::header(std::env::consts::ARCH);
    (dynamic[32], dynamic[54], dynamic[56]) = (64, 56, 1);
    dynamic.resize(120, 0);
    dynamic[64] = 3;
    assert!(code(&dynamic).unwrap_err().contains("is not statically linked"));
    assert_eq!(code(&elf::fake::header(std::env::consts::ARCH)), Ok(true));
    let (_, layer) =
        layer_of(&rig.make(&ImageOptions { out: rig.dir.path().join("second.tar"), ..with() }).expect("an image"));
    for name in PROGRAMS {
        assert_eq!(layer[&format!("bin/{name}")], b"busybox");
    }
}

#[test]
fn what_is_wrong_with_the_modules_is_said_and_no_image_is_left() {
    type Harm = fn(&Rig);
    let cases: [(&str, &str, Harm); 8] = [
        ("cannot read", "modules_unreadable", |r| fs::remove_dir_all(r.dir.path().join("modules")).expect("removed")),
        ("has no module", "no_modules", |r| fs::remove_dir_all(r.dir.path().join("modules/6.1.0")).expect("removed")),
        ("is of MPU 0.0.9", "module_of_another_version", |r| r.put("modules", "6.1.0", "0.0.9")),
        ("was built for kernel 6.1.0", "other_kernel", |r| {
            fs::rename(r.dir.path().join("modules/6.1.0"), r.dir.path().join("modules/6.2.0")).expect("moved");
        }),
        ("mpu_next.ko is not there", "no_next_module", |r| {
            fs::remove_file(r.dir.path().join("modules/6.1.0/mpu_next.ko")).expect("removed");
        }),
        ("is no kernel module", "not_our_module", |r| {
            fs::write(r.dir.path().join("modules/6.1.0/mpu.ko"), "text").expect("written");
        }),
        ("there is no depmod", "no_depmod", |r| r.fake.remove("/usr/bin/depmod")),
        ("depmod failed for 6.1.0: it is broken", "depmod_failed", |r| {
            r.fake.tool("depmod", "echo it is broken >&2; exit 1")
        }),
    ];
    for (said, code, harm) in cases {
        let rig = Rig::new(&["6.1.0"]);
        harm(&rig);
        let options = rig.options("image.tar");
        let error = rig.make(&options).expect_err(said);
        assert!(error.to_string().contains(said) && !error.fix().is_empty(), "{error}");
        assert_eq!((error.code(), options.out.exists()), (code, false));
    }
    let rig = Rig::new(&["6.1.0"]);
    fs::write(rig.dir.path().join("image.tar"), "somebody's").expect("written");
    assert_eq!(rig.make(&rig.options("image.tar")).expect_err("there").code(), "output_exists");
    assert_eq!(rig.make(&rig.options("nowhere/image.tar")).expect_err("no folder").code(), "output_unwritable");
}

/// The values of a plain YAML file by their path; items of a list count from 0.
fn values(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut place: Vec<(usize, String)> = Vec::new();
    let mut items = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')) {
        let mut indent = line.len() - line.trim_start().len();
        let mut rest = line.trim_start();
        while let Some(item) = rest.strip_prefix("- ") {
            place.retain(|(depth, _)| *depth < indent);
            let above = place.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(".");
            let number = items.entry(above).and_modify(|number| *number += 1).or_insert(0);
            place.push((indent, number.to_string()));
            (indent, rest) = (indent + 2, item);
        }
        place.retain(|(depth, _)| *depth < indent);
        let (name, value) = rest.split_once(':').expect("a key");
        place.push((indent, name.to_string()));
        let path = place.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(".");
        if !value.trim().is_empty() {
            found.insert(path, value.trim().trim_matches(['\'', '"']).to_string());
        }
    }
    found
}

/// What KMM's resource definition (api/v1beta1/module_types.go) has where the manifest says something.
const KMM: [(&str, &[&str]); 6] = [
    ("", &["apiVersion", "kind", "metadata", "spec"]),
    ("spec", &["moduleLoader", "devicePlugin", "dra", "selector", "imageRepoSecret", "tolerations"]),
    ("spec.moduleLoader", &["container", "serviceAccountName"]),
    (
        "spec.moduleLoader.container",
        &[
            "build",
            "sign",
            "version",
            "containerImage",
            "imagePullPolicy",
            "kernelMappings",
            "modprobe",
            "registryTLS",
            "inTreeModulesToRemove",
        ],
    ),
    (
        "spec.moduleLoader.container.modprobe",
        &["moduleName", "parameters", "dirName", "args", "rawArgs", "firmwarePath", "modulesLoadingOrder"],
    ),
    (
        "spec.moduleLoader.container.kernelMappings.0",
        &["build", "sign", "containerImage", "literal", "registryTLS", "regexp", "inTreeModulesToRemove"],
    ),
];

#[test]
fn the_sample_for_kmm_fits_its_definition_and_the_image() {
    let found = values(include_str!("../../../../../packaging/kubernetes/kmm/module.yaml"));
    for path in found.keys() {
        let parts: Vec<&str> = path.split('.').collect();
        for (above, names) in KMM {
            let depth = above.split('.').filter(|part| !part.is_empty()).count();
            if parts[..depth.min(parts.len())].join(".") == above && parts.len() > depth {
                assert!(names.contains(&parts[depth]), "{path}: KMM has no such field");
            }
        }
    }
    let at = |path: &str| found.get(path).unwrap_or_else(|| panic!("{path} is missing: {found:?}")).as_str();
    assert_eq!((at("apiVersion"), at("kind")), ("kmm.sigs.x-k8s.io/v1beta1", "Module"));
    let container = "spec.moduleLoader.container";
    // The worker calls `modprobe -d <dirName> <moduleName>`, which looks for <dirName>/lib/modules/<running release>.
    assert_eq!(at(&format!("{container}.modprobe.dirName")), format!("/{PREFIX}"));
    assert_eq!(at(&format!("{container}.modprobe.moduleName")), "mpu");
    assert_eq!(at(&format!("{container}.kernelMappings.0.regexp")), "^.+$", "one image has all kernels");
    assert!(
        at(&format!("{container}.kernelMappings.0.containerImage")).ends_with(concat!(":", env!("CARGO_PKG_VERSION")))
    );
    assert!(found.keys().any(|path| path.starts_with("spec.selector.")), "required");
}
