//! mpu-container with real parts: runc, crun, podman, Docker, NVIDIA's libraries and nvidia-smi, roots of several kinds of image.
//!
//! Only the GPU is fake: a host has procfs files and device nodes without a driver behind them (`host`). Each test first runs without our
//! part and must show the wrong result. Needs root and the trees of `xtask/rig.toml`; `./x containers` creates those and runs the tests.
//! Without them, each test is skipped with a reason.

mod baseline;
mod bench;
mod cluster;
mod container;
mod cri;
mod engines;
mod facts;
mod host;
mod hpc;
#[path = "../notify/listener.rs"]
mod listener;
mod native;
mod notify;
mod procfs;
mod replays;
mod rootless;
mod setups;
#[path = "../notify/sys.rs"]
mod sys;
mod wrapper;
