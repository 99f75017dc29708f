//! What images and pods that work with NVIDIA's toolkit rely on, through the executable: what the modes give, what they
//! refuse, and what they leave alone.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::made_up::{paths, Host};

const STRICT: &str = "mpu.strict-requests = true\n";

fn mounted(spec: &Value, name: &str) -> bool {
    let mounts = spec["mounts"].as_array().unwrap();
    mounts.iter().any(|mount| mount["destination"].as_str().unwrap().contains(name))
}

/// The words of the hooks at a point of the container's life, each in a line, whether or not several are one process.
fn hooks(spec: &Value, point: &str) -> Vec<String> {
    let mut all = Vec::new();
    for hook in spec["hooks"][point].as_array().into_iter().flatten() {
        let words: Vec<&str> = hook["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let several = words[1] == "in-turn";
        let each = words[1 + usize::from(several)..].split(|word| several && *word == "--");
        all.extend(each.map(|words| words.join(" ")));
    }
    all
}

/// Makes a node in the driver's root: a link to one that every host has.
fn node(host: &Host, name: &str) {
    let path = host.at("driver/dev").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink("/dev/null", path).unwrap();
}

/// Creates, and is not refused.
#[track_caller]
fn created(host: &Host, env: &[&str]) -> Value {
    host.ask(env);
    let output = host.create();
    assert!(output.status.success(), "{env:?}: {}", String::from_utf8_lossy(&output.stderr));
    host.spec()
}

#[test]
fn every_container_gets_the_whole_driver_unless_requests_are_taken_strictly() {
    let host = Host::new();
    for words in ["utility", "video", "flying", "utility,flying", ""] {
        let capabilities = format!("NVIDIA_DRIVER_CAPABILITIES={words}");
        let spec = created(&host, &["NVIDIA_VISIBLE_DEVICES=0", &capabilities]);
        assert!(mounted(&spec, "libcuda.so.580") && mounted(&spec, "libnvidia-ml.so.580"), "{words}: {spec}");
        assert!(paths(&spec).contains(&"/dev/nvidia-uvm"), "{words}");
    }
    // A condition that does not hold, and a right that is not there, are said in the log and no more.
    let more = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=99.0", "NVIDIA_MIG_CONFIG_DEVICES=all"];
    created(&host, &more);
    let log = fs::read_to_string(host.at("debug.log")).unwrap();
    for said in ["unsatisfied condition: cuda>=99.0", "MIG_CONFIG_DEVICES", "flying"] {
        assert!(log.contains(said), "{said}: {log}");
    }

    host.configure("true", "auto", STRICT);
    let spec = created(&host, &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility"]);
    assert!(!mounted(&spec, "libcuda") && mounted(&spec, "libnvidia-ml") && !paths(&spec).contains(&"/dev/nvidia-uvm"));
    for (asks, says) in [
        ("NVIDIA_DRIVER_CAPABILITIES=flying", "unsupported capabilities"),
        ("NVIDIA_REQUIRE_CUDA=cuda>=99.0", "unsatisfied condition: cuda>=99.0"),
        ("NVIDIA_MIG_CONFIG_DEVICES=all", "in non privileged container"),
    ] {
        host.ask(&["NVIDIA_VISIBLE_DEVICES=0", asks]);
        host.refused(&[says]);
    }
    // What the administrator does not support is not handed out, whoever asks.
    host.configure("true", "auto", "supported-driver-capabilities = \"utility\"\n");
    let spec = created(&host, &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"]);
    assert!(!mounted(&spec, "libcuda") && mounted(&spec, "libnvidia-ml"));
}

#[test]
fn legacy_looks_at_what_it_is_asked_for() {
    let host = Host::new();
    host.configure("true", "legacy", "");
    for (asks, says) in [
        ("NVIDIA_DRIVER_CAPABILITIES=flying", "unsupported capabilities"),
        ("NVIDIA_MIG_CONFIG_DEVICES=all", "in non privileged container"),
    ] {
        host.ask(&["NVIDIA_VISIBLE_DEVICES=0", asks]);
        host.refused(&[says]);
    }
}

#[test]
fn an_imex_channel_is_a_number_that_a_device_can_have() {
    let host = Host::new();
    host.write(
        "driver/proc/devices",
        "Character devices:\n195 nvidia\n240 nvidia-caps-imex-channels\n\nBlock devices:\n",
    );
    for mode in ["auto", "legacy"] {
        host.configure("true", mode, "");
        for bad in ["x", "-1", "0/../..", "1048576", "4294967295", "+1", "0,x"] {
            host.ask(&["NVIDIA_VISIBLE_DEVICES=0", &format!("NVIDIA_IMEX_CHANNELS={bad}")]);
            host.refused(&["NVIDIA_IMEX_CHANNELS", "no IMEX channel", "0 to 1048575"]);
        }
    }
    host.configure("true", "auto", "");
    let spec = created(&host, &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=0,channel7,1048575,07"]);
    let channels: Vec<_> = paths(&spec).into_iter().filter(|path| path.contains("imex")).collect();
    let expected = [0, 1_048_575, 7].map(|number| format!("/dev/nvidia-caps-imex-channels/channel{number}"));
    assert_eq!(channels, expected);
}

#[test]
fn legacy_gives_other_devices_and_names_display_nodes_by_their_place() {
    let host = Host::new();
    host.configure("true", "legacy", "");
    node(&host, "nvidiactl");
    host.write("driver/etc/cufile.json", "{}");
    host.write("driver/sys/bus/pci/devices/0000:1b:00.0/drm/card1/dev", "226:1\n");
    ["gdrdrv", "nvidia-fs0", "nvidia-nvswitch0", "infiniband/uverbs0"].iter().for_each(|name| node(&host, name));
    fs::create_dir_all(host.at("driver/dev/dri/by-path")).unwrap();
    symlink("../card1", host.at("driver/dev/dri/by-path/pci-0000:1b:00.0-card")).unwrap();
    let enabled =
        ["NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH"].map(|name| format!("{name}=enabled"));
    let mut env = vec!["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics"];
    env.extend(enabled.iter().map(String::as_str));
    let spec = created(&host, &env);
    for path in ["/dev/gdrdrv", "/dev/nvidia-fs0", "/dev/nvidia-nvswitch0", "/dev/infiniband/uverbs0", "/dev/dri/card1"]
    {
        assert!(paths(&spec).contains(&path), "{path}: {:?}", paths(&spec));
    }
    assert!(mounted(&spec, "/etc/cufile.json"));
    let links = hooks(&spec, "createContainer");
    assert_eq!(links, ["create-symlinks --link ../card1::/dev/dri/by-path/pci-0000:1b:00.0-card"]);
}

#[test]
fn cuda_compat_mode_hook_is_a_hook() {
    let host = Host::new();
    let more = "[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = \"hook\"\n";
    let with = |runtime: &str, features: &str| {
        host.configure("true", runtime, "");
        let text = fs::read_to_string(host.at("config.toml")).unwrap();
        host.write("config.toml", &format!("{text}\n{more}{features}"));
        hooks(&created(&host, &["NVIDIA_VISIBLE_DEVICES=0"]), "createContainer")
    };
    // The loader's list is brought up to date behind it, or what it wrote would have no effect.
    let found = with("legacy", "");
    assert_eq!(
        found,
        ["enable-cuda-compat --host-driver-version=580.159.04", "update-ldcache --ldconfig-path /sbin/ldconfig"]
    );
    assert_eq!(with("legacy", "[features]\ndisable-cuda-compat-lib-hook = true\n"), [""; 0]);
    host.configure("true", "legacy", "");
    assert_eq!(hooks(&created(&host, &["NVIDIA_VISIBLE_DEVICES=0"]), "createContainer"), [""; 0]);
}

#[test]
fn flags_of_the_generator_are_heard() {
    let host = Host::new();
    let flags = |flags: &str| {
        host.configure("true", "auto", "");
        let text = fs::read_to_string(host.at("config.toml")).unwrap();
        host.write("config.toml", &format!("{text}modes.jit-cdi.nvcdi-feature-flags = [{flags}]\n"));
        host.write("driver/run/nvidia-persistenced/socket", "");
        created(&host, &["NVIDIA_VISIBLE_DEVICES=0"])
    };
    assert!(mounted(&flags(""), "nvidia-persistenced/socket"));
    assert!(!mounted(
        &flags("\"disable-ipc-discoverer\", \"enable-coherent-annotations\""),
        "nvidia-persistenced/socket"
    ));
    let log = fs::read_to_string(host.at("debug.log")).unwrap();
    assert!(log.contains("enable-coherent-annotations") && !log.contains("disable-ipc-discoverer"), "{log}");
}

#[test]
fn words_of_a_stranger_do_not_steer_a_terminal() {
    let host = Host::new();
    host.ask(&["NVIDIA_VISIBLE_DEVICES=a\u{1b}[31m\nnvidia-container-runtime: all is well\u{9b}x"]);
    let output = host.create();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said:?}");
    assert!(said.trim_end().chars().all(|letter| !letter.is_control()), "{said:?}");
    assert!(said.contains("a\\u{1b}[31m\\nnvidia-container-runtime: all is well\\u{9b}x: unknown device"), "{said:?}");
}

#[test]
fn a_container_without_a_gpu_is_handed_on_whatever_its_file_is_like() {
    let host = Host::new();
    let odd = |annotation: &[u8], env: &str| {
        let mut text = b"{\"process\": {\"env\": [\"PATH=/bin\"".to_vec();
        text.extend_from_slice(env.as_bytes());
        text.extend_from_slice(b"]}, \"x\": ");
        text.extend_from_slice(annotation);
        text.extend_from_slice(b"}\n");
        fs::write(host.at("bundle/config.json"), &text).unwrap();
        text
    };
    let deep = [vec![b'['; 5000], vec![b']'; 5000]].concat();
    let cases: [&[u8]; 5] =
        [&deep, b"\"\xff\xfe\"", br#""\ud800""#, br#""\udc00\ud800x\ud83d\ude00""#, br#"[1, "\ud800\n"]"#];
    for (number, text) in cases.into_iter().enumerate() {
        let before = odd(text, "");
        let output = host.create();
        assert!(output.status.success() && output.stderr.is_empty(), "{number}: {output:?}");
        assert_eq!(host.text(), before, "{number}");
        // What cannot be written again as it was is not written at all.
        odd(text, ", \"NVIDIA_VISIBLE_DEVICES=0\"");
        host.refused(&["config.json", "cannot be written again"]);
    }
    // A file that no runtime can read is none of those.
    odd(br#"{"\q": }"#, "");
    host.refused(&["config.json is not JSON"]);
}
