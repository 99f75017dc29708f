//! Builds the command that ends a process which holds the driver.
//!
//! A pure function. A name becomes part of a command only if a shell reads it as one word. Otherwise `kill` gets the
//! PID.

use mpu_core::HostPid;
use mpu_host::cgroup::Job;
use mpu_host::containers::path::is_name;
use mpu_host::containers::{Container, Runtime};

/// The host's process 1 cannot be ended. systemd keeps descriptors for services with a file descriptor store.
const INIT: u32 = 1;

/// Units that are never stopped because of one process: logins, job schedulers and the root of the hierarchy.
const PROTECTED_UNITS: [&str; 6] =
    ["ssh.service", "sshd.service", "cron.service", "crond.service", "atd.service", "init.scope"];

/// The command that ends a process: it stops what started the process, if that is known, so that the process is not
/// restarted. None for process 1. `unit` is the systemd unit, if all processes in it have one user.
pub fn end_command(
    pid: HostPid,
    container: Option<&Container>,
    job: Option<&Job>,
    unit: Option<&str>,
) -> Option<String> {
    let from_container = container.and_then(container_command);
    from_container
        .or_else(|| job.and_then(job_command))
        // A container without a unit of its own may be in its engine's unit, which must not be stopped.
        .or_else(|| unit.filter(|_| container.is_none() && job.is_none()).and_then(unit_command))
        .or_else(|| (pid.get() != INIT).then(|| format!("kill {}", pid.get())))
}

fn container_command(container: &Container) -> Option<String> {
    // A rootless container belongs to the user's own engine. A nested container belongs to an engine inside the outer
    // one. The host's root cannot stop either by name.
    if container.user.is_some() || container.outer.is_some() {
        return None;
    }
    let plain = |name: &Option<String>| name.clone().filter(|name| is_name(name));
    let id = container.short_id();
    let name = plain(&container.name).or_else(|| is_name(id).then(|| id.to_string()))?;
    if let Some(pod) = &container.pod {
        return Some(match (plain(&pod.name), plain(&pod.namespace)) {
            (Some(pod), Some(namespace)) => format!("kubectl delete pod --namespace {namespace} {pod}"),
            _ => format!("crictl stop {id}"),
        });
    }
    Some(match container.runtime {
        Runtime::Docker => format!("docker stop {name}"),
        Runtime::Podman => format!("podman stop {name}"),
        Runtime::Containerd => format!("nerdctl stop {name}"),
        Runtime::Crio => format!("crictl stop {id}"),
        Runtime::Runc => format!("runc delete --force {id}"),
        Runtime::Crun => format!("crun delete --force {id}"),
        // These hold whole systems.
        Runtime::Lxc | Runtime::Nspawn | Runtime::Unknown => return None,
    })
}

fn job_command(job: &Job) -> Option<String> {
    // Only numbers: it is not known whether scancel accepts an SLUID.
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let id = Some(&job.id).filter(|id| is_number(id))?;
    Some(match job.step.as_deref().filter(|step| is_number(step)) {
        Some(step) => format!("scancel {id}.{step}"),
        None => format!("scancel {id}"),
    })
}

fn unit_command(unit: &str) -> Option<String> {
    if PROTECTED_UNITS.contains(&unit)
        || ["user@", "session-", "getty@", "serial-getty@"].iter().any(|prefix| unit.starts_with(prefix))
    {
        return None;
    }
    Some(match unit.contains('\\') {
        true => format!("systemctl stop '{unit}'"),
        false => format!("systemctl stop {unit}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::containers::Pod;

    fn container(runtime: Runtime, name: Option<&str>) -> Container {
        let id = "a1b2c3d4e5f6".repeat(6)[..64].to_string();
        Container { id, runtime, user: None, name: name.map(str::to_string), pod: None, outer: None }
    }

    fn pod(name: Option<&str>) -> Option<Pod> {
        let [uid, name, namespace] = [Some("u"), name, Some("vision")].map(|text| text.map(str::to_string));
        Some(Pod { uid, name, namespace })
    }

    #[test]
    fn end_command_fits_process_origin() {
        let job = |id: &str, step: Option<&str>| Job { id: id.to_string(), step: step.map(str::to_string) };
        let check = |container: Option<&Container>, job: Option<&Job>, unit: Option<&str>, expected: &str| {
            let pid = HostPid::new(42).expect("a PID");
            assert_eq!(end_command(pid, container, job, unit).as_deref(), Some(expected));
        };
        let docker = container(Runtime::Docker, Some("train"));
        let engine = Some("docker-a1b2.scope");
        check(Some(&docker), None, engine, "docker stop train");
        check(Some(&container(Runtime::Podman, None)), None, None, "podman stop a1b2c3d4e5f6");
        let in_pod = |name| Container { pod: pod(name), ..container(Runtime::Containerd, Some("worker")) };
        check(Some(&in_pod(Some("train-0"))), None, engine, "kubectl delete pod --namespace vision train-0");
        check(Some(&in_pod(None)), None, engine, "crictl stop a1b2c3d4e5f6");
        check(Some(&Container { user: Some(1000), ..docker.clone() }), None, engine, "kill 42");
        let inner = Container { outer: Some(Box::new(docker.clone())), ..docker.clone() };
        check(Some(&inner), None, engine, "kill 42");
        check(Some(&container(Runtime::Lxc, Some("box"))), None, Some("lxc.service"), "kill 42");
        check(None, Some(&job("77", Some("0"))), Some("slurmstepd.scope"), "scancel 77.0");
        check(None, Some(&job("77", Some("batch"))), None, "scancel 77");
        check(None, Some(&job("s5K1KKYAYG5D00", None)), Some("slurmstepd.scope"), "kill 42");
        check(Some(&Container { user: Some(7), ..docker.clone() }), Some(&job("8", None)), None, "scancel 8");
        check(None, None, Some("nvidia-persistenced.service"), "systemctl stop nvidia-persistenced.service");
        check(None, None, Some("a\\x2db.service"), "systemctl stop 'a\\x2db.service'");
        for unit in ["session-3.scope", "user@1000.service", "ssh.service", "cron.service", "init.scope"] {
            check(None, None, Some(unit), "kill 42");
        }
        check(None, None, None, "kill 42");
        assert_eq!(end_command(HostPid::new(1).expect("a PID"), None, None, Some("init.scope")), None);
    }

    #[test]
    fn names_with_shell_characters_are_not_used() {
        for evil in ["a;reboot", "$(reboot)", "-f", "a b", "a\nb", "", "a'b"] {
            let docker = container(Runtime::Docker, Some(evil));
            assert_eq!(container_command(&docker).as_deref(), Some("docker stop a1b2c3d4e5f6"), "{evil:?}");
            let evil = Container { id: evil.to_string(), ..container(Runtime::Runc, None) };
            assert_eq!(container_command(&evil), None);
        }
        let evil = Container { pod: pod(Some("x;reboot")), ..container(Runtime::Containerd, None) };
        assert_eq!(container_command(&evil).as_deref(), Some("crictl stop a1b2c3d4e5f6"));
    }
}
