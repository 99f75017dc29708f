//! `mpu who`: prints the holders of the driver as a table, each with the command that ends it.

use crate::listing::columns::{Align, EMPTY_CELL, printable};
use crate::listing::table::format_rows;
use crate::report::{Report, Style};
use crate::who::{ProcessView, Who};
use mpu_host::exit::Exit;
use mpu_host::holders::Use;

const LEFT: (Align, Option<usize>) = (Align::Left, None);
const RIGHT: (Align, Option<usize>) = (Align::Right, None);

impl Report for Who {
    fn exit(&self) -> Exit {
        match self.has_waited && !self.free {
            true => Exit::Busy,
            false => Exit::Ok,
        }
    }

    fn text(&self, style: Style) -> String {
        let what = self.gpu.as_ref().map_or("the NVIDIA driver".to_string(), |gpu| format!("GPU {}", gpu.index));
        if self.driver.is_none() {
            return "no NVIDIA driver is loaded: nothing holds it\n".to_string();
        }
        let mut parts = Vec::new();
        if !self.processes.is_empty() {
            let mut rows = vec![["PID", "USER", "WHERE", "NODES", "NAME", "END"].map(str::to_string).to_vec()];
            rows.extend(self.processes.iter().map(row));
            parts.push(table(style, &[RIGHT, LEFT, LEFT, LEFT, LEFT, LEFT], &rows));
        }
        if self.gpu.is_none() {
            let mut rows = vec![["MODULE", "REFERENCES", "HOLDERS", "END"].map(str::to_string).to_vec()];
            rows.extend(self.modules.iter().map(|module| {
                let references = module.references.map_or(EMPTY_CELL.to_string(), |count| count.to_string());
                vec![module.name.clone(), references, or_dash(module.holders.join(",")), module.end.clone()]
            }));
            parts.push(table(style, &[LEFT, RIGHT, LEFT, LEFT], &rows));
        }
        parts.push(match self.free {
            true => style.good(&format!("{what} is free")) + "\n",
            false => style.warn(&format!("{what} is in use")) + "\n",
        });
        parts.join("\n")
    }
}

fn table(style: Style, columns: &[(Align, Option<usize>)], rows: &[Vec<String>]) -> String {
    let mut lines = format_rows(columns, rows, None);
    if let Some(first) = lines.first_mut() {
        *first = style.name(first);
    }
    lines.join("\n") + "\n"
}

fn row(process: &ProcessView) -> Vec<String> {
    let user = process.user.clone().or_else(|| process.uid.map(|uid| uid.to_string()));
    let name = match (&process.name, process.role) {
        (Some(name), Some(role)) => format!("{name} ({})", role.description()),
        (Some(name), None) => name.clone(),
        (None, _) => String::new(),
    };
    let nodes: Vec<String> = process.uses.iter().map(node).collect();
    let cells = [
        user.unwrap_or_default(),
        place(process).unwrap_or_default(),
        nodes.join(","),
        name,
        process.end.clone().unwrap_or_default(),
    ];
    let cells = cells.map(|cell| or_dash(printable(&cell)));
    std::iter::once(process.pid.get().to_string()).chain(cells).collect()
}

/// A node's name. Marked if the process only has it mapped.
fn node(used: &Use) -> String {
    match used.descriptors {
        0 => format!("{} (mapped)", used.node.name),
        _ => used.node.name.clone(),
    }
}

/// The first that exists of pod, container, job and unit.
fn place(process: &ProcessView) -> Option<String> {
    let of_container = process.container.as_ref().map(|container| {
        let pod = container.pod.as_ref().and_then(|pod| {
            let name = pod.name.as_ref().or(pod.uid.as_ref())?;
            Some(match &pod.namespace {
                Some(namespace) => format!("pod {namespace}/{name}"),
                None => format!("pod {name}"),
            })
        });
        let name = container.name.as_deref().unwrap_or(container.short_id());
        pod.unwrap_or_else(|| format!("{} {name}", container.runtime_name()))
    });
    let of_job = || {
        let job = process.job.as_ref()?;
        Some(match &job.step {
            Some(step) => format!("job {}.{step}", job.id),
            None => format!("job {}", job.id),
        })
    };
    of_container.or_else(of_job).or_else(|| process.unit.clone())
}

fn or_dash(text: String) -> String {
    if text.is_empty() { EMPTY_CELL.to_string() } else { text }
}
