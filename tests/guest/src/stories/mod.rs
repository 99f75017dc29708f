//! The stories, in the order they are played: those that look at one scene first, those that load and unload last.
//!
//! docs/stories.md says what each proves; a test below holds it to this list.

mod accounting;
mod agent;
mod arming;
mod attacks;
mod common;
mod counting;
mod endings;
mod events;
mod held;
mod host;
mod hostile;
mod injection;
mod library;
mod listing;
mod loading;
mod lockdown;
mod metrics;
mod namespaces;
mod neighbours;
mod oops;
mod policy;
mod releases;
mod requests;
mod rivals;
mod shortage;
mod supervised;
mod tables;
mod taint;
mod unprivileged;
mod up_down;
mod ways;

use crate::story::Story;

/// All of them.
pub const ALL: &[Story] = &[
    tables::SEES_ITS_OWN_PROCESSES,
    tables::RUNC_SEES_ITS_OWN,
    tables::EXEC_SEES_PROCESS_1,
    tables::QUERY_COMPUTE_APPS,
    tables::PMON,
    tables::QUERY_PIDS_AND_ACCOUNTING,
    tables::SESSIONS,
    library::NOBODY_ELSE,
    library::UTILISATION,
    library::PYNVML,
    library::THREE_HUNDRED,
    namespaces::TWO_DEEP,
    namespaces::FOUR_DEEP,
    host::UNCHANGED,
    injection::OWN_STACK,
    listing::HOSTS_VIEW,
    listing::REFUSES,
    requests::FOREIGN_PID,
    requests::OWN_PID,
    requests::EVERY_WAY,
    requests::EVERY_LAYOUT,
    requests::ANOTHER_THREAD,
    requests::THIRTY_TWO_BITS,
    requests::HWPM,
    requests::RC_REPORT,
    requests::RACE,
    requests::RACE_PASSED_ON,
    requests::NONSENSE,
    requests::SAMPLES_BEYOND,
    requests::SESSION_COUNT,
    attacks::OTHER_CONTROLS,
    attacks::FAULT,
    attacks::RACE_EVERY_ROW,
    taint::TAINT,
    events::MEMORY_LIMIT,
    events::PROTECTED,
    events::SWAPPED,
    events::SECRET,
    events::HANGS,
    endings::DEAD,
    endings::REUSED,
    endings::ZOMBIE,
    endings::ORPHAN,
    endings::DEAD_THREAD,
    endings::COLLISION,
    endings::HEIR,
    endings::STALE,
    accounting::DEAD_STRANGER,
    accounting::ONCE,
    accounting::PEAK,
    accounting::V2,
    neighbours::TRACED,
    neighbours::TRACED_BY_TURNS,
    neighbours::PROBED,
    neighbours::LOOKUPS,
    neighbours::PAST_THE_COPIES,
    counting::TRANSLATED,
    counting::REASONS,
    metrics::METRICS,
    up_down::PROBE,
    up_down::UP_AND_DOWN,
    loading::ENGINE_RELOAD,
    loading::ENGINE_SWAP,
    loading::SWAP_UNDER_GOING,
    loading::GO_TOGETHER,
    policy::VISIBILITY,
    hostile::NOT_THE_DRIVERS,
    hostile::PROTECTED,
    hostile::KILLED_IN_MID_CALL,
    hostile::BLOCKED,
    hostile::SWAPPED,
    hostile::SECRET,
    hostile::OWN_FILES,
    hostile::X32,
    hostile::WIDE_TABLE,
    hostile::CROWD_OF_THE_DEAD,
    held::UNLOADING,
    held::HAND_OVER,
    held::STARVED,
    held::DRIVER_HANGS,
    shortage::FAILS_IN_TURN,
    shortage::HAND_OVER,
    shortage::MISCOUNTED,
    unprivileged::SAME_ANSWERS,
    unprivileged::NO_RIGHT_MORE,
    unprivileged::WAS_ROOT,
    supervised::KILLED,
    supervised::STARTED_AGAIN,
    supervised::RETIRED,
    supervised::CROWD,
    supervised::BY_COMMAND,
    supervised::ONE_KEEPER,
    up_down::REFUSALS,
    agent::NODE,
    loading::EITHER_ORDER,
    loading::DRIVER_RELOAD,
    loading::SEVERAL_GPUS,
    releases::WITHOUT_A_GPU,
    releases::UPGRADE,
    releases::NO_GPU,
    ways::CHOSEN,
    ways::HEIR_GOES,
    ways::RIVALS,
    rivals::REFUSED_TWICE,
    rivals::JUMPED,
    arming::FTRACE_OFF,
    arming::WRONG_ENTRY,
    arming::COUNTERS,
    arming::BRIEF_CALLERS,
    arming::JUMP,
    oops::IN_THE_DRIVER,
];

/// Those that leave a guest unfit for any other: played when named, in the last row of a plan.
pub const LAST: &[Story] = &[lockdown::SERVED];

#[cfg(test)]
mod tests {
    use super::{Story, ALL, LAST};

    fn everything() -> impl Iterator<Item = &'static Story> {
        ALL.iter().chain(LAST)
    }

    /// `| name in backticks | lines of the contract | engines | what it proves |`
    #[test]
    fn the_page_has_every_story_in_order_and_no_other() {
        let page = include_str!("../../../../docs/stories.md");
        let rows: Vec<Vec<&str>> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .map(|line| line.split('|').map(|cell| cell.trim().trim_matches('`')).collect())
            .collect();
        let named: Vec<&str> = rows.iter().map(|row| row[0]).collect();
        let played: Vec<&str> = everything().map(|story| story.name).collect();
        assert_eq!(named, played);
        for row in rows {
            let lines: Vec<u32> = row[1].split(' ').map(|line| line.parse().unwrap()).collect();
            assert!(!lines.is_empty() && lines.iter().all(|line| (1..=7).contains(line)), "{} has {lines:?}", row[0]);
            let story = everything().find(|story| story.name == row[0]).unwrap();
            assert_eq!(row[2], story.engines.names(), "{}", row[0]);
            assert!(row[3].len() > 10, "{} proves nothing", row[0]);
        }
    }

    #[test]
    fn no_story_is_there_twice() {
        let mut names: Vec<&str> = everything().map(|story| story.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len() + LAST.len());
    }
}
