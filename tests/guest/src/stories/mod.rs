//! The stories, in the order they are played.

mod one_container;

use crate::story::Story;

/// All of them.
pub const ALL: &[Story] = &[one_container::SEES_ITS_OWN_PROCESSES];
