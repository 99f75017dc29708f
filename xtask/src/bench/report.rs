//! Prints runs: one table for each, or one Markdown table of all.

use super::goals::{CALLERS, allowance, callers, metrics, per_query, verdicts};
use super::guest::{CROWD, Run};

pub fn print(run: &Run) {
    let Run { release, era, client, .. } = run;
    println!(
        "\nLinux {release}, simulated driver of era {era}, nvidia-smi {client}. Instructions; the goals are MPU's."
    );
    print!("{:<24}{:<10}{:>12}", "", "caller", "without");
    for module in &run.modules[1..] {
        print!("{:>14}{:>10}{:>8}", format!("with {module}"), "adds", "ratio");
    }
    println!("{:>9}", "goal");
    for metric in metrics() {
        for caller in callers(&metric) {
            row(run, &metric, caller);
        }
    }
    for metric in ["mpu_up", "mpu_down"] {
        if let (Some(figure), Some(real)) = (run.figure(metric, "host", "mpu"), run.host_seconds.get(metric)) {
            let seconds = figure.instructions as f64 / 1e9;
            println!(
                "{metric}: {seconds:.3} s of the guest's time, {real:.2} s of this machine's (the longest of three)"
            );
        }
    }
    for (caller, more) in CALLERS.iter().filter_map(|caller| Some((caller, per_query(run, caller)?))) {
        println!(
            "each `os_find_ns_pid` question of the driver in GET_PID_INFO (950 rows x 951 clients), {caller}: {more:+.0}"
        );
    }
    if let Some(crowd) = run.crowd {
        println!("crowd: {crowd} processes, {} of them in {} other PID namespaces", CROWD.1, CROWD.0);
    }
    let verdicts = verdicts(run);
    let missed: Vec<_> = verdicts.iter().filter(|verdict| !verdict.met).collect();
    for verdict in verdicts.iter().filter(|verdict| allowance(&verdict.metric, &verdict.caller).is_none()) {
        let word = if verdict.met { "met" } else { "MISSED" };
        println!("{word}: {} {}: {}, goal {}", verdict.metric, verdict.caller, verdict.found, verdict.goal);
    }
    for failure in &run.failures {
        println!("not measured: {failure}");
    }
    for trouble in &run.troubles {
        println!("the guest: {trouble}");
    }
    println!("{} of {} goals met", verdicts.len() - missed.len(), verdicts.len());
    for verdict in missed {
        println!("missed: {} {}: {}, goal {}", verdict.metric, verdict.caller, verdict.found, verdict.goal);
    }
}

fn row(run: &Run, metric: &str, caller: &str) {
    let bare = run.figure(metric, caller, "none");
    print!("{metric:<24}{caller:<10}{:>12}", bare.map_or("-".to_owned(), |figure| figure.instructions.to_string()));
    for module in &run.modules[1..] {
        let Some((with, bare)) = run.figure(metric, caller, module).zip(bare) else {
            print!("{:>14}{:>10}{:>8}", "-", "-", "-");
            continue;
        };
        let adds = run.overhead(metric, caller, module).unwrap_or_default();
        let wrong = with.right.is_some_and(|(right, rows)| right != rows);
        let cost = format!("{}{}", with.instructions, if wrong { "!" } else { "" });
        print!("{cost:>14}{adds:>+10}{:>8.3}", with.instructions as f64 / bare.instructions as f64);
    }
    match allowance(metric, caller).zip(run.overhead(metric, caller, "mpu")) {
        None => println!(),
        Some((goal, adds)) if adds <= goal => println!("{goal:>+9}  met"),
        Some((goal, adds)) => println!("{goal:>+9}  missed by {}", adds - goal),
    }
}

/// Several runs side by side, as in docs/performance.md: the instructions that MPU adds, in bold if they miss the goal.
pub fn markdown(runs: &[Run]) {
    let line = |name: &str, cell: &dyn Fn(&Run) -> String| {
        let cells: Vec<String> = runs.iter().map(cell).collect();
        println!("| {name} | {} |", cells.join(" | "));
    };
    line("", &|run| format!("{}, era {}", run.kernel, run.era));
    println!("|---|{}", "---|".repeat(runs.len()));
    for metric in metrics() {
        for caller in callers(&metric) {
            line(&format!("{metric}, {caller}"), &|run| match (
                run.overhead(&metric, caller, "mpu"),
                allowance(&metric, caller),
            ) {
                (None, _) => "not measured".to_owned(),
                (Some(adds), Some(goal)) if adds > goal => format!("**{adds:+}**"),
                (Some(adds), _) => format!("{adds:+}"),
            });
        }
    }
    for caller in CALLERS {
        let question = |run: &Run| per_query(run, caller).map_or("-".to_owned(), |more| format!("{more:+.0}"));
        line(&format!("each `os_find_ns_pid` question of the driver, {caller}"), &question);
    }
    line("whole nvidia-smi, container with MPU : host without", &|run| {
        verdicts(run)
            .iter()
            .find(|verdict| verdict.metric.starts_with("whole"))
            .map_or("-".to_owned(), |v| v.found.clone())
    });
    for metric in ["mpu_up", "mpu_down"] {
        line(&format!("{metric}, guest's seconds"), &|run| {
            let figure = run.figure(metric, "host", "mpu");
            figure.map_or("-".to_owned(), |figure| format!("{:.2}", figure.instructions as f64 / 1e9))
        });
    }
    line("goals met", &|run| {
        let verdicts = verdicts(run);
        format!("{} of {}", verdicts.iter().filter(|verdict| verdict.met).count(), verdicts.len())
    });
}
