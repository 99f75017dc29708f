//! The stories, in order: those with one scene first, those that load and unload last.

mod accounting;
mod agent;
mod arming;
mod attacks;
mod blocked;
mod common;
mod counting;
mod endings;
mod events;
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
mod who;

use crate::story::Story;

pub fn usual() -> impl Iterator<Item = &'static Story> {
    USUAL.iter().copied().flatten()
}

pub fn all() -> impl Iterator<Item = &'static Story> {
    usual().chain(LAST)
}

const USUAL: &[&[Story]] = &[
    tables::STORIES,
    library::STORIES,
    namespaces::STORIES,
    host::STORIES,
    injection::STORIES,
    listing::STORIES,
    requests::STORIES,
    attacks::STORIES,
    taint::STORIES,
    events::STORIES,
    endings::STORIES,
    accounting::STORIES,
    neighbours::STORIES,
    counting::STORIES,
    metrics::STORIES,
    up_down::STORIES,
    loading::UNDER_LOAD,
    policy::STORIES,
    hostile::STORIES,
    blocked::STORIES,
    shortage::STORIES,
    unprivileged::STORIES,
    supervised::STORIES,
    up_down::REFUSALS,
    agent::STORIES,
    loading::STORIES,
    releases::STORIES,
    ways::STORIES,
    rivals::STORIES,
    who::STORIES,
    arming::STORIES,
    oops::STORIES,
];

/// Stories after which no other can run: run only when named, in the last row of a plan.
pub const LAST: &[Story] = lockdown::STORIES;

#[cfg(test)]
mod tests {
    use super::all;

    #[test]
    fn each_story_is_declared_once_and_whole() {
        let mut names: Vec<&str> = all().map(|story| story.name).collect();
        for story in all() {
            let lines = story.lines;
            assert!(!lines.is_empty() && lines.iter().all(|line| (1..=7).contains(line)), "{} {lines:?}", story.name);
            assert!(story.claim.len() > 10, "{} proves nothing", story.name);
        }
        assert!((1..=7).all(|line| all().any(|story| story.lines.contains(&line))), "a line is proved by no story");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
    }
}
