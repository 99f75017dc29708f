//! `info`: the driver and its GPUs, as text or as comma-separated values.

use crate::driver::{Driver, Gpu};

const COLUMNS: [&str; 7] =
    ["Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture"];

pub fn page(driver: &Driver, csv: bool) -> String {
    let cuda = text(driver.facts().cuda);
    let rows = driver.gpus.iter().map(|gpu| row(driver, gpu));
    if csv {
        let head = format!("NVRM version,CUDA version\n{},{cuda}\n\n{}\n", driver.version, COLUMNS.join(","));
        return head + &rows.map(|row| row.join(",") + "\n").collect::<String>();
    }
    let mut page = line("NVRM version", &driver.version) + &line("CUDA version", &cuda);
    for row in rows {
        page.push('\n');
        page.extend(COLUMNS.iter().zip(row).map(|(name, value)| line(name, &value)));
    }
    page
}

fn line(name: &str, value: &str) -> String {
    format!("{:<15} {value}\n", format!("{name}:"))
}

fn row(driver: &Driver, gpu: &Gpu) -> [String; 7] {
    let facts = driver.gpu_facts(gpu);
    [
        gpu.index.to_string(),
        gpu.minor.to_string(),
        gpu.model.clone(),
        text(facts.brand),
        gpu.uuid.clone(),
        gpu.bus.clone(),
        text(facts.arch),
    ]
}

fn text(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}
