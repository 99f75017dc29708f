//! mpu-container with real parts: runc, crun, podman, Docker, NVIDIA's libraries and nvidia-smi, roots of several kinds of image.
//!
//! What is made up is the GPU: a host's facts and device nodes, without a driver behind them (`host`). Each claim is seen to fail first
//! without our part. Needs root and the trees of `xtask/rig.toml`; `./x containers` makes those and runs this. Without them each test says
//! that it was skipped, and why.

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
mod places;
mod plain;
mod procfs;
mod replays;
mod rootless;
#[path = "../notify/sys.rs"]
mod sys;
mod wrapper;
