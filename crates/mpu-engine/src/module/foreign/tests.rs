//! Modules of several projects on fake hosts, and their remaining files.

use super::*;
use crate::module::state::{self, ARMED};
use mpu_host::host::fake::{FakeHost, RELEASE};
use rustix::fs::{FileType, Mode};
use std::fs;

/// The owner of a fake `/sys/module/mpu`, and of `mpu_next`.
fn check(files: &[(&str, &str)], expected: Presence) {
    for instance in Instance::ALL {
        let fake = FakeHost::in_order();
        for (file, text) in files {
            fake.write(&format!("/sys/module/{}/{file}", instance.name()), text);
        }
        let host = fake.host();
        assert_eq!(instance.presence(&host), expected, "{} with {files:?}", instance.name());
        assert_eq!(state::is_loaded(&host), expected == Presence::Mpu);
        let names: Vec<&str> = (expected == Presence::Foreign).then(|| instance.name()).into_iter().collect();
        assert_eq!(loaded(&host).loaded, names);
    }
}

#[test]
fn presence_follows_state_file() {
    let live = ("initstate", "live\n");
    check(&[], Presence::Absent);
    check(&[live, ("parameters/state", ARMED)], Presence::Mpu);
    check(&[live, ("parameters/state", "version=0.0.1\nstate=armed\n")], Presence::Mpu);
    check(&[live, ("parameters/state", "version=9\nabi=77\nstate=resting\nmood=good\n")], Presence::Mpu);
    // The three projects' module has no parameters.
    check(&[live, ("version", OLDER), ("srcversion", "0123")], Presence::Foreign);
    check(&[live, ("parameters/debug", "0\n")], Presence::Foreign);
    check(&[live, ("parameters/state", "on\n")], Presence::Foreign);
    check(&[live, ("parameters/state", "state=on\n")], Presence::Foreign);
    check(&[live, ("parameters/state", "")], Presence::Foreign);
}

#[test]
fn module_in_transit_is_absent() {
    check(&[("holders/x", "")], Presence::Absent);
    check(&[("initstate", "coming\n")], Presence::Absent);
    check(&[("initstate", "going\n")], Presence::Absent);
}

#[test]
fn older_mpu_is_named_with_its_leftovers() {
    let fake = FakeHost::in_order();
    assert!(find(&fake.host()).is_none());
    let extra = format!("/lib/modules/{RELEASE}/extra/mpu.ko");
    fake.write(&extra, "\0author=Magnus\0name=mpu\0");
    fake.write("/etc/modules-load.d/mpu.conf", "mpu\n");
    fake.write("/usr/src/mpu-0.1/dkms.conf", "");
    fake.write("/var/lib/dkms/mpu/0.1/build", "");
    let found = find(&fake.host());
    assert!(found.in_words().contains(&extra) && found.in_words().contains("DKMS mpu/0.1"), "{}", found.in_words());
    let remove =
        format!("sudo dkms remove mpu/0.1 --all && sudo rm /etc/modules-load.d/mpu.conf {extra} && sudo depmod");
    assert_eq!(found.fix(), format!("{remove}   # docs/moving.md"));
    fake::load(&fake, "mpu");
    let all = find(&fake.host());
    assert!(all.in_words().starts_with("an older MPU (matpool, lengrongfu or biubushy) is loaded as mpu, and"));
    assert!(all.fix().starts_with(&format!("{remove} && sudo rmmod mpu && sudo mpu up   # ")), "{}", all.fix());
    fake.write("/sys/module/mpu/version", "7\n");
    assert!(find(&fake.host()).in_words().starts_with("another project's module is loaded as mpu"));
}

#[test]
fn older_mpu_is_found_for_each_kernel() {
    let fake = FakeHost::in_order();
    let others = "/lib/modules/6.8.0-55-generic/extra/mpu.ko";
    fake.write(others, "\0author=Magnus\0name=mpu\0");
    fake.write("/etc/modules", "loop\nmpu\n");
    let found = find(&fake.host());
    assert!(found.in_words().contains(others) && found.in_words().contains("/etc/modules"), "{}", found.in_words());
    // The file has other lines: it is not removed.
    let remove =
        format!("sudo rm {others} && sudo depmod && sudo sed -i '/^[[:space:]]*mpu[[:space:]]*$/d' /etc/modules");
    assert_eq!(found.fix(), format!("{remove}   # docs/moving.md"));
}

#[test]
fn pipe_in_place_of_file_is_passed_over() {
    let fake = FakeHost::in_order();
    for path in [&format!("/lib/modules/{RELEASE}/extra/mpu.ko"), LOADERS[0]] {
        fake.write(path, "");
        fake.remove(path);
        rustix::fs::mknodat(rustix::fs::CWD, fake.host().at(path), FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
    }
    assert!(find(&fake.host()).is_none());
}

#[test]
fn own_files_are_no_leftovers() {
    let fake = FakeHost::in_order();
    let module = format!("/lib/modules/{RELEASE}/extra/mpu.ko");
    fake.write(&module, "");
    fs::write(fake.host().at(&module), sources::fake::module(RELEASE)).expect("a module");
    fake.write("/etc/modules-load.d/mpu.conf", "# mpu\nnvidia\n");
    fake.write(&format!("/usr/src/mpu-0.0.9/{OUR_SOURCE}"), "");
    for folder in ["0.0.9/build", "kernel-6.1.0-x86_64/x", "original_module/x"] {
        fake.write(&format!("/var/lib/dkms/mpu/{folder}"), "");
    }
    fake.write("/sys/module/mpu/parameters/state", ARMED);
    assert!(find(&fake.host()).is_none());
}
