//! Prints what `driver` finds: GPUs, nodes and files of the host, or of a driver below the folder that is named.
//!
//! `cargo run -p mpu-container --example driver -- [ROOT [CAPABILITIES]]`

use mpu_container::capability::Capabilities;
use mpu_container::driver::{Driver, DriverRoot};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().map_or_else(DriverRoot::host, |root| DriverRoot::at(Path::new(&root), None));
    let words = arguments.next().unwrap_or_else(|| "all".to_owned());
    let capabilities = Capabilities::parse(&words).map_err(|word| format!("'{word}' is no capability"))?;
    let start = Instant::now();
    let driver = Driver::find(&root)?;
    let found = start.elapsed();
    println!("release {} in {found:?}", driver.version);
    for gpu in &driver.gpus {
        println!("{gpu:?}");
    }
    println!("CUDA {:?}", driver.cuda_version());
    for gpu in &driver.gpus {
        println!("{:?}", driver.facts(gpu));
    }
    for node in driver.nodes(&driver.select(&["all".to_owned()])?, capabilities) {
        println!("node {} {}:{}", node.container.display(), node.major, node.minor);
    }
    let start = Instant::now();
    let files = driver.files(capabilities)?;
    println!("files in {:?}", start.elapsed());
    for library in &files.libraries {
        let width = if library.compat32 { 32 } else { 64 };
        println!("library {width} {} ({})", library.file.container.display(), library.soname);
    }
    for (kind, list) in
        [("program", &files.programs), ("firmware", &files.firmware), ("socket", &files.sockets), ("data", &files.data)]
    {
        for file in list {
            println!("{kind} {} from {}", file.container.display(), file.host.display());
        }
    }
    for link in &files.links {
        println!("link {} -> {}", link.path.display(), link.target.display());
    }
    Ok(())
}
