//! Checks systemd units against each other.

use std::path::Path;

use crate::tidy::read;

/// The values of a key, from all its lines.
fn values(unit: &str, key: &str) -> Vec<String> {
    let text = read(&Path::new("packaging/systemd").join(unit));
    let lines = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// A container engine restarts containers at boot. Our units must be ready before, not only started.
#[test]
fn units_are_ready_before_container_engines() {
    let engines = values("mpu.service", "Before");
    assert!(engines.len() >= 8 && engines.contains(&"docker.service".to_owned()), "{engines:?}");
    for unit in ["mpu-notify.service", "mpu-cdi-refresh.service"] {
        assert_eq!(values(unit, "Before"), engines, "{unit}");
    }
    let driver = ["systemd-modules-load.service", "nvidia-persistenced.service"];
    for unit in ["mpu.service", "mpu-cdi-refresh.service"] {
        let after = values(unit, "After");
        assert!(driver.iter().all(|early| after.iter().any(|unit| unit == early)), "{unit} is after {after:?}");
    }
    for (unit, kind) in [("mpu.service", "oneshot"), ("mpu-notify.service", "notify"), ("mpu-cdi-refresh.service", "")]
    {
        // A simple unit counts as started when its process starts. Units after it wait for ExecStartPre only.
        let waits =
            values(unit, "Type").concat() == kind && (!kind.is_empty() || !values(unit, "ExecStartPre").is_empty());
        assert!(waits, "{unit}: units after it do not wait for what it does");
    }
}
