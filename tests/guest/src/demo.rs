//! The demonstration: one container on a shared GPU, with the same nvidia-smi before and after MPU. Its lines have the prefix `demo: `. Like
//! a story it fails if the tables are not as described.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use anyhow::Result;

use crate::client::{self, pids};
use crate::command::run_with;
use crate::container::Container;
use crate::holder::Holder;
use crate::stage::Stage;
use crate::story::{Fault, Story};

/// Played only when named, on a stage where the engine comes later.
pub const DEMO: Story = Story::new("demo", &[], "What `x demo` shows.", show)
    .every_client()
    .right("the demonstration loads the engine itself");

fn show(stage: &Stage) -> Result<(), Fault> {
    for name in ["neighbour", "train", "serve"] {
        std::os::unix::fs::symlink("gpu-hold", format!("/bin/{name}"))?;
    }
    let foreign = Holder::on_host_as("/bin/neighbour", &["--mem", "300"])?;
    let container = stage.container("box")?;
    let train = container.hold_as("/bin/train", &["--mem", "40", "--clients", "2"])?;
    let serve = container.hold_as("/bin/serve", &["--mem", "43"])?;
    let mut own = [train.view_pid, serve.view_pid];
    own.sort_unstable();

    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    print_line("");
    print_line(&format!(
        "Linux {}, NVIDIA driver {} (simulated), nvidia-smi {} (the real one).",
        kernel.trim(),
        driver()?,
        stage.client
    ));
    print_line("Three processes use the GPU:");
    print_line(&format!("  neighbour   outside         PID {:<18} 300 MiB", foreign.host_pid));
    place("train", &train, 80);
    place("serve", &serve, 43);

    print_line("");
    print_line("Before.  $ crun exec box nvidia-smi");
    let before = processes(&container)?;
    print_line("");
    print_line("         $ mpu up");
    // A guest has no kernel headers: the module is one that was built elsewhere (docs/prebuilt.md). It counts only if root alone can
    // change it, and a RAM disk's root has mode 1777.
    std::fs::set_permissions("/", Permissions::from_mode(0o755))?;
    let kept = format!("/usr/lib/mpu/modules/{}", kernel.trim());
    std::fs::create_dir_all(&kept)?;
    std::fs::copy("/mpu/mpu.ko", format!("{kept}/mpu.ko"))?;
    show_output(&["mpu", "up"], &[])?;
    print_line("");
    print_line("After.   $ crun exec box nvidia-smi");
    let after = processes(&container)?;
    print_line("");
    print_line("On the host, nvidia-smi still shows all processes by the host's PIDs:");
    let host = stage.host().table()?;
    for row in &host {
        print_line(&format!("  PID {:<6} {:<24} {:>5} MiB", row.pid, row.name, row.mib.unwrap_or(0)));
    }
    print_line("");
    print_line("         $ mpu ps");
    show_output(&["mpu", "ps"], &[("LD_LIBRARY_PATH", &format!("/nvidia/{}", stage.client))])?;
    check!(pids(&before) != own, "the table was right without MPU");
    check!(pids(&after) == own, "with MPU the table shows {:?}, the container's own are {own:?}", pids(&after));
    check!(host.iter().any(|row| row.pid == foreign.host_pid), "the host no longer sees its own processes");
    Ok(())
}

/// Shows the process part of the table, as it is printed.
fn processes(container: &Container) -> Result<Vec<client::Row>> {
    let shown = container.client().smi(&[])?;
    let part = shown.out.lines().skip_while(|line| !line.contains("Processes:"));
    part.for_each(|line| print_line(&format!("  {line}")));
    client::table_rows(&shown.out)
}

/// Runs a command and shows what it prints. It must succeed.
fn show_output(command: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    run_with(command, environment)?.at_most(0)?.lines().for_each(|line| print_line(&format!("  {line}")));
    Ok(())
}

fn place(name: &str, holder: &Holder, mib: u32) {
    let both = format!("{} ({} outside)", holder.view_pid, holder.host_pid);
    print_line(&format!("  {name:<11} in a container  PID {both:<18} {mib:>3} MiB"));
}

fn driver() -> Result<String> {
    Ok(std::fs::read_to_string("/sys/module/nvidia/version")?.trim().to_owned())
}

fn print_line(line: &str) {
    println!("demo: {line}");
}
