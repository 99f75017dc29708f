//! The result of every verb.

/// What a verb found out about the product. An `Err` beside it is about the rig.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Passed,
    Failed,
}

impl Outcome {
    pub fn of(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }
}
