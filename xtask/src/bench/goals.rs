//! The goals of docs/performance.md, and whether a run meets them. A missing figure, or a wrong answer, misses its goal.

use super::guest::{ROWS, Run};

pub const CALLERS: [&str; 2] = ["host", "container"];

/// The rows of one look-up; for more, the bench calls again.
const LOOK_UP_ROWS: u32 = 200;

/// A goal, and a run's result.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub metric: String,
    /// `host` or `container`; empty if it makes no difference.
    pub caller: String,
    pub goal: String,
    /// The measured figure, as text.
    pub found: String,
    pub met: bool,
}

/// A host's call before any container has called since the module was loaded: the probe is not armed yet.
const ALONE: &str = "no_pids_alone";

/// The callers for which a metric is measured.
pub fn callers(metric: &str) -> &'static [&'static str] {
    if metric == ALONE { &CALLERS[..1] } else { &CALLERS }
}

/// The metrics of every module, in the order of the table.
pub fn metrics() -> Vec<String> {
    let lists = |ending: &'static str| {
        move |rows: u32| [format!("get_pids_{rows}{ending}"), format!("get_pid_info_{rows}{ending}")]
    };
    let mut all = ["other_device", ALONE, "no_pids"].map(str::to_owned).to_vec();
    all.extend(ROWS.into_iter().flat_map(lists("")));
    all.extend([950].into_iter().flat_map(lists("_crowd")));
    all.push("nvidia_smi".to_owned());
    all
}

/// The instructions that MPU may add: 1,500 for a call with PIDs and 150 for each row, so 3,000 for 10 rows.
pub fn allowance(metric: &str, caller: &str) -> Option<i64> {
    match (metric, caller) {
        ("other_device", _) => return Some(0),
        ("no_pids", "host") => return Some(150),
        ("no_pids", _) => return Some(450),
        (ALONE, _) => return Some(46),
        _ => {}
    }
    let rows: u32 = metric.trim_end_matches("_crowd").rsplit('_').next()?.parse().ok()?;
    let calls = if metric.starts_with("get_pid_info_") { rows.div_ceil(LOOK_UP_ROWS) } else { 1 };
    Some(1500 * i64::from(calls) + 150 * i64::from(rows))
}

/// The results of all goals for a run.
pub fn verdicts(run: &Run) -> Vec<Verdict> {
    let mut all = Vec::new();
    for metric in metrics() {
        for caller in callers(&metric).iter().copied() {
            all.extend(allowance(&metric, caller).map(|allowed| added(run, &metric, caller, allowed)));
        }
    }
    for control in ["get_pids", "get_pid_info"] {
        for caller in CALLERS {
            all.push(per_row(run, control, caller));
            all.push(crowded(run, control, caller));
        }
    }
    all.push(whole(run));
    all.push(up(run));
    all
}

fn verdict(metric: &str, caller: &str, goal: String, found: Option<(String, bool)>) -> Verdict {
    let (found, met) = found.unwrap_or(("not measured".to_owned(), false));
    Verdict { metric: metric.to_owned(), caller: caller.to_owned(), goal, found, met }
}

fn added(run: &Run, metric: &str, caller: &str, allowed: i64) -> Verdict {
    let found = run.overhead(metric, caller, "mpu").map(|adds| {
        let right = run.figure(metric, caller, "mpu").and_then(|figure| figure.right);
        match right {
            Some((right, rows)) if right != rows => (format!("{adds:+}, with {right} of {rows} rows right"), false),
            _ => (format!("{adds:+}"), adds <= allowed),
        }
    });
    verdict(metric, caller, format!("{allowed:+}"), found)
}

/// The instructions added for each further row, from one population to the next.
fn slopes(run: &Run, control: &str, caller: &str) -> Option<Vec<f64>> {
    let overhead = |rows: u32| run.overhead(&format!("{control}_{rows}"), caller, "mpu");
    let step = |pair: &[u32]| Some((overhead(pair[1])? - overhead(pair[0])?) as f64 / f64::from(pair[1] - pair[0]));
    ROWS[1..].windows(2).map(step).collect()
}

/// The instructions added to each helper call of the driver. Releases of eras 2 to 4 look up the caller's PIDs with a helper that MPU
/// redirects: one call for each row and client.
pub fn per_query(run: &Run, caller: &str) -> Option<f64> {
    let queries = run.era.chars().next()? >= '2';
    let adds = run.overhead("get_pid_info_950", caller, "mpu").filter(|_| queries)?;
    Some(adds as f64 / f64::from(950 * 951))
}

fn per_row(run: &Run, control: &str, caller: &str) -> Verdict {
    let found = slopes(run, control, caller).map(|slopes| {
        let words: Vec<String> = slopes.iter().map(|slope| format!("{slope:.0}")).collect();
        (words.join(", then "), slopes.iter().all(|slope| *slope <= 150.0))
    });
    verdict(&format!("{control}: each row from 10 to 200, and from 200 to 950"), caller, "150".to_owned(), found)
}

fn crowded(run: &Run, control: &str, caller: &str) -> Verdict {
    let per_row = |ending: &str| Some(run.overhead(&format!("{control}_950{ending}"), caller, "mpu")? as f64 / 950.0);
    let found = per_row("_crowd").zip(per_row("")).map(|(crowd, alone)| {
        let same = crowd <= alone * 1.05 + 1.0;
        (format!("{crowd:.0} a row, {alone:.0} without the crowd"), same)
    });
    verdict(&format!("{control}: 950 rows in a crowd"), caller, "the same a row, within 5 %".to_owned(), found)
}

fn whole(run: &Run) -> Verdict {
    let with = run.figure("nvidia_smi", "container", "mpu");
    let host = run.figure("nvidia_smi", "host", "none");
    let found = with.zip(host).map(|(with, host)| {
        let ratio = with.instructions as f64 / host.instructions as f64;
        let complete = with.right.is_some_and(|(right, rows)| right == rows) && host.right == with.right;
        let note = if complete { "" } else { ", but not all processes are shown" };
        (format!("{ratio:.4}{note}"), complete && ratio <= 1.01)
    });
    verdict("whole nvidia-smi, against the host without MPU", "container", "1.01".to_owned(), found)
}

fn up(run: &Run) -> Verdict {
    let guest = run.figure("mpu_up", "host", "mpu");
    let found = guest.zip(run.host_seconds.get("mpu_up")).map(|(guest, real)| {
        let seconds = guest.instructions as f64 / 1e9;
        // The goal applies to the guest's time: this machine's time depends on its other load.
        (format!("{seconds:.2} s of the guest's time, {real:.2} s of this machine's"), seconds <= 1.0)
    });
    verdict("mpu up on a built node", "", "1 s".to_owned(), found)
}

#[cfg(test)]
mod tests {
    use super::super::guest::fake::run;
    use super::*;

    #[test]
    fn allowance_matches_performance_goals() {
        assert_eq!(allowance("get_pids_10", "host"), Some(3000));
        assert_eq!(allowance("get_pid_info_10", "container"), Some(3000));
        assert_eq!(allowance("get_pid_info_950_crowd", "host"), Some(5 * 1500 + 950 * 150), "five calls");
        assert_eq!((allowance("other_device", "host"), allowance("no_pids", "container")), (Some(0), Some(450)));
        assert_eq!(allowance("nvidia_smi", "host"), None);
    }

    #[test]
    fn figure_over_goal_or_absent_misses_it() {
        let met = |mpu: &str| {
            let run = run(&["cost none host get_pids_10 10000 10/10", mpu]).unwrap();
            verdicts(&run).into_iter().find(|verdict| verdict.metric == "get_pids_10").unwrap().met
        };
        assert!(met("cost mpu host get_pids_10 13000 10/10"));
        assert!(!met("cost mpu host get_pids_10 13001 10/10"));
        assert!(!met("cost mpu host get_pids_10 11000 9/10"));
        assert!(!met("failed mpu host no list"));
    }
}
