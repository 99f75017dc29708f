//! The program `refresh`, as a process.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::fake_host::Host;

/// Killed on drop.
struct Watching(Child);

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A package replaces the executable by renaming. A service that is not restarted continues in the old one.
#[test]
fn hook_path_survives_program_replacement() {
    let host = Host::new();
    let (program, output) = (host.at("mpu-container"), host.at("nvidia.yaml"));
    // Another process copies: a child of another test would inherit a descriptor of ours that is open for writing.
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_mpu-container")).arg(&program).status().unwrap().success());
    let mut watch = Command::new(&program);
    watch.args(["refresh", "--watch", "--driver-root"]).arg(host.at("driver")).arg("--output").arg(&output);
    let _watching = Watching(watch.stdin(Stdio::null()).spawn().unwrap());
    let with = |gpu: &str| {
        let late = Instant::now() + Duration::from_secs(60);
        loop {
            let text = fs::read_to_string(&output).unwrap_or_default();
            if text.contains(gpu) {
                return text;
            }
            assert!(Instant::now() < late, "no {gpu} in {text}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    with("GPU-00000001-1111");
    fs::write(host.at("new"), "the next version").unwrap();
    fs::rename(host.at("new"), &program).unwrap();
    let gpu = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-00000002-1111\nDevice Minor: \t 2\n";
    host.write("driver/proc/driver/nvidia/gpus/0000:5b:00.0/information", gpu);
    let text = with("GPU-00000002-1111");
    assert!(text.contains(&format!("path: {}\n", program.display())), "{text}");
    assert!(!text.contains("deleted"), "{text}");
}
