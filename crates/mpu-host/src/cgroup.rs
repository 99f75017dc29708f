//! The Slurm job and the systemd unit of a cgroup's path.
//!
//! A pure function of text. Source: Slurm's `cgroup/v1` and `cgroup/v2` plugins and cgroup.conf(5) (`CgroupJobIdPaths`); systemd.slice(5).

use crate::containers::path::{is_name, paths};
use schemars::JsonSchema;
use serde::Serialize;

/// A job of Slurm's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Job {
    /// Its number; on a node of Slurm 26.05 and later its SLUID, such as `s5K1KKYAYG5D00`.
    pub id: String,
    /// The step: a number, `batch`, `extern` or `interactive`; none outside a step.
    pub step: Option<String>,
}

/// The job of a cgroup file's text.
pub fn job(text: &str) -> Option<Job> {
    paths(text).find_map(parse_job)
}

fn parse_job(path: &str) -> Option<Job> {
    // Only root creates cgroups down to this level. A process in a service, a scope or a container may name the cgroups below.
    let mut parts = path.trim_start_matches('/').split('/').skip_while(|part| part.ends_with(".slice"));
    parts.next().filter(|part| is_slurm_cgroup(part))?;
    let mut parts = parts.skip_while(|part| part.starts_with("uid_"));
    let id = parts.next()?;
    let id = match id.strip_prefix("job_") {
        Some(number) => Some(number).filter(|number| is_number(number)),
        None => Some(id).filter(|id| is_sluid(id)),
    }?;
    let step = parts.next().and_then(|step| step.strip_prefix("step_")).filter(|step| is_name(step));
    Some(Job { id: id.to_string(), step: step.map(str::to_string) })
}

/// `slurm` and `slurm_NODE` with version 1, `slurmstepd.scope` and `NODE_slurmstepd.scope` with version 2: the longer ones if Slurm was
/// built to run several slurmds on one host, as Debian's is.
fn is_slurm_cgroup(part: &str) -> bool {
    part == "slurm" || part.starts_with("slurm_") || part == "slurmstepd.scope" || part.ends_with("_slurmstepd.scope")
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `s` and 13 digits of Crockford's base 32.
fn is_sluid(text: &str) -> bool {
    let digits = text.strip_prefix('s').unwrap_or_default();
    digits.len() == 13 && digits.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
}

/// The cgroup of the outermost service or scope in a cgroup file's text. systemd creates it below slices. A process in it, or in a
/// container, may name all cgroups below.
pub fn unit(text: &str) -> Option<&str> {
    paths(text).find_map(parse_unit)
}

fn parse_unit(path: &str) -> Option<&str> {
    let is_unit = |part: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
        let has_unit_suffix = part.ends_with(".service") || part.ends_with(".scope");
        has_unit_suffix && part.len() <= 255 && !part.starts_with(['-', '.']) && part.bytes().all(is_plain)
    };
    let mut len = 0;
    for part in path.split_inclusive('/') {
        len += part.len();
        let part = part.trim_end_matches('/');
        // In a cgroup namespace an outside path starts with `..`.
        if !part.is_empty() && part != ".." && !part.ends_with(".slice") {
            return is_unit(part).then(|| path[..len].trim_end_matches('/'));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_and_step_of_every_slurm_are_read() {
        for (path, expected) in [
            // 21.08 to 25.11, version 1, also with several slurmds.
            ("9:devices:/slurm/uid_1000/job_77/step_0/task_3", Some(("77", Some("0")))),
            ("9:devices:/slurm_node1/uid_1000/job_77/step_batch", Some(("77", Some("batch")))),
            ("4:freezer:/slurm/uid_1000/job_77/step_extern", Some(("77", Some("extern")))),
            ("4:memory:/slurm/uid_0/job_4294901760", Some(("4294901760", None))),
            // 22.05 and later, version 2. The first is of Debian's 22.05.8 (tests/node/slurm.sh).
            ("0::/system.slice/node_slurmstepd.scope/job_1/step_batch/user/task_0", Some(("1", Some("batch")))),
            ("0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0", Some(("77", Some("0")))),
            (
                "0::/system.slice/node-1_slurmstepd.scope/job_77/step_interactive/user",
                Some(("77", Some("interactive"))),
            ),
            // 26.05, by the job's SLUID.
            (
                "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_batch/slurm",
                Some(("s5K1KKYAYG5D00", Some("batch"))),
            ),
            // Slurm's own, and others.
            ("0::/system.slice/slurmstepd.scope/system", None),
            ("0::/system.slice/slurmd.service", None),
            ("0::/system.slice/slurmstepd.scope/job_x/step_0", None),
            ("0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D0;/step_0", None),
            ("0::/user.slice/user-7.slice/user@7.service/slurm/uid_0/job_1/step_0", None),
            ("0::/system.slice/docker-1.scope/system.slice/slurmstepd.scope/job_1/step_0", None),
            ("5:devices:/docker/1/slurm/uid_0/job_1/step_0", None),
            ("0::/jobs/job_7/step_0", None),
        ] {
            let job = job(path);
            let found = job.as_ref().map(|job| (job.id.as_str(), job.step.as_deref()));
            assert_eq!(found, expected, "{path}");
        }
        let both = "0::/system.slice/slurmd.service\n5:devices:/slurm/uid_1/job_8/step_1/task_0\n";
        assert_eq!(job(both).map(|job| job.id).as_deref(), Some("8"), "hybrid hierarchies");
    }

    #[test]
    fn outermost_unit_counts() {
        for (text, expected) in [
            ("0::/system.slice/nvidia-persistenced.service\n", Some("/system.slice/nvidia-persistenced.service")),
            ("0::/system.slice/a.service/system.slice/sshd.service\n", Some("/system.slice/a.service")),
            (
                "0::/user.slice/user-7.slice/user@7.service/app.slice/x.service\n",
                Some("/user.slice/user-7.slice/user@7.service"),
            ),
            ("0::/user.slice/user-7.slice/session-3.scope\n", Some("/user.slice/user-7.slice/session-3.scope")),
            ("0::/system.slice/dev-disk\\x2dby.service\n", Some("/system.slice/dev-disk\\x2dby.service")),
            ("1:name=systemd:/system.slice/cron.service\n0::/\n", Some("/system.slice/cron.service")),
            ("0::/../../system.slice/a.service\n", Some("/../../system.slice/a.service")),
            ("0::/init.scope\n", Some("/init.scope")),
            // Named by a process in the container.
            ("0::/kubepods/burstable/pod1/2/nvidia-persistenced.service\n", None),
            ("0::/docker/1/system.slice/sshd.service\n", None),
            ("0::/lxc.payload.x/system.slice/sshd.service\n", None),
            ("0::/system.slice/a;reboot.service\n", None),
            ("0::/\n", None),
        ] {
            assert_eq!(unit(text), expected, "{text}");
        }
    }
}
