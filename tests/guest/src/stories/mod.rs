//! The stories, in the order they are played: those that look at one scene first, those that load and unload last.
//!
//! docs/stories.md says what each proves; a test below holds it to this list.

pub mod scene;
mod tables;

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
];
