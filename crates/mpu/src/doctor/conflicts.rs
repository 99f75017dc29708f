//! Checks for other programs that redirect the same functions: live patches, tracers, preloaded libraries.

use super::check::{CheckResult, CheckRow};
use mpu_engine::module::{foreign, state};
use mpu_host::host::Host;

pub const CHECKS: &[CheckRow] = &[
    (
        "foreign_module",
        "whether another project's module named mpu is loaded, or would be at the next boot",
        foreign_module,
    ),
    ("livepatch", "live patches of the driver: MPU cannot redirect a patched function", livepatch),
    ("other_redirects", "whether somebody else redirects the functions that MPU needs", redirects),
    (
        "preload",
        "libraries that are preloaded into every program: one that intercepts NVML would answer before the driver",
        preload,
    ),
];

/// The driver's functions that the module redirects. If another program redirects one of them, the module places no
/// redirect.
const NEEDED: [&str; 8] = [
    "nvidia_unlocked_ioctl",
    "nvidia_frontend_unlocked_ioctl",
    "nvidia_frontend_compat_ioctl",
    "os_memcpy_from_user",
    "os_memcpy_to_user",
    "os_find_ns_pid",
    "os_is_init_ns",
    "os_get_pid_info",
];

/// Where the kernel lists live patches, as `PATCH/MODULE/FUNCTION,POSITION` (Documentation/ABI/testing/sysfs-kernel-livepatch).
const PATCHES: &str = "/sys/kernel/livepatch";

/// Where the kernel lists the functions that are traced now (Documentation/trace/ftrace.rst, `enabled_functions`).
const TRACED_FUNCTIONS: [&str; 2] =
    ["/sys/kernel/tracing/enabled_functions", "/sys/kernel/debug/tracing/enabled_functions"];

/// The prefix of NVML's functions.
const NVML_PREFIX: &[u8] = b"nvmlDevice";
const LIBRARY_LIMIT: usize = 16 << 20;

fn foreign_module(host: &Host) -> CheckResult {
    let found = foreign::find(host);
    match (found.is_none(), found.loaded.is_empty()) {
        (true, _) => CheckResult::ok("none"),
        (_, true) => CheckResult::attention(found.in_words(), found.fix()),
        (_, false) => CheckResult::broken(found.in_words(), found.fix()),
    }
}

fn livepatch(host: &Host) -> CheckResult {
    let mut of_driver = None;
    for patch in host.names(PATCHES) {
        let functions = host.names(format!("{PATCHES}/{patch}/nvidia"));
        let needed = functions.iter().filter_map(|function| function.split(',').next()).find(|f| NEEDED.contains(f));
        if let Some(function) = needed {
            return CheckResult::broken(
                format!("the live patch {patch} changes the NVIDIA driver's {function}, which MPU redirects"),
                format!(
                    "cat {PATCHES}/{patch}/enabled   # once the patch's owner agrees: echo 0 | sudo tee \
                    {PATCHES}/{patch}/enabled"
                ),
            );
        }
        of_driver = of_driver.or((!functions.is_empty()).then_some(patch));
    }
    match of_driver {
        None => CheckResult::ok("none of the driver"),
        Some(patch) => CheckResult::attention(
            format!("the live patch {patch} changes the NVIDIA driver, in functions that MPU does not redirect"),
            "sudo mpu probe   # says whether the change affects containers",
        ),
    }
}

fn redirects(host: &Host) -> CheckResult {
    let Some(list) = TRACED_FUNCTIONS.iter().find_map(|list| host.text(list)) else {
        return CheckResult::skipped("the kernel's list of traced functions is not mounted, or only root can read it");
    };
    // A line is `function [module] (count) FLAGS …`. The flag I is an IPMODIFY user, D a direct call.
    let redirected: Vec<&str> = list
        .lines()
        .filter(|line| {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            let flags = line.split_once(')').map_or("", |(_, rest)| rest);
            let flags: Vec<&str> = flags.split_whitespace().take_while(|word| word.len() == 1).collect();
            NEEDED.contains(&name) && (flags.contains(&"I") || flags.contains(&"D"))
        })
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let is_ours = state::read(host).ok().flatten().is_some_and(|state| state.phase.is_placed());
    match redirected.first() {
        Some(function) if !is_ours => CheckResult::broken(
            format!("{function} is redirected by something other than MPU"),
            format!("sudo grep {function} {}   # names the module: unload it, then sudo mpu up", TRACED_FUNCTIONS[0]),
        ),
        _ => CheckResult::ok(if is_ours { "MPU's own" } else { "none" }),
    }
}

fn preload(host: &Host) -> CheckResult {
    let text = host.text("/etc/ld.so.preload").unwrap_or_default();
    // ld.so(8): names between blanks or colons; a # begins a comment.
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let named: Vec<&str> =
        lines.flat_map(|line| line.split([' ', '\t', ':'])).filter(|word| !word.is_empty()).collect();
    // A library that intercepts NVML contains NVML's names. An allocator, for example, does not.
    let intercepts_nvml = |library: &&&str| {
        let bytes = host.beginning(library, LIBRARY_LIMIT).unwrap_or_default();
        bytes.windows(NVML_PREFIX.len()).any(|window| window == NVML_PREFIX)
    };
    match named.iter().find(intercepts_nvml) {
        None if named.is_empty() => CheckResult::ok("none"),
        None => CheckResult::ok(format!("{}, which does not contain NVML", named.join(", "))),
        Some(library) => CheckResult::attention(
            format!("{library} is loaded into every program of this host, and intercepts NVML calls"),
            "cat /etc/ld.so.preload   # MPU does not need an NVML shim there",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::NEEDED;
    use std::collections::BTreeSet;

    #[test]
    fn needed_symbols_match_module_hooks() {
        let table = include_str!("../../../../kmod/mpu_hooks.c");
        let rows = table.lines().filter(|line| line.starts_with("\t[MPU_"));
        let symbols: BTreeSet<&str> = rows.flat_map(|row| row.split('"').skip(1).step_by(2)).collect();
        assert_eq!(NEEDED.into_iter().collect::<BTreeSet<_>>(), symbols);
    }
}
