//! What every verb ends with.

/// What a verb found out about the product. An `Err` beside it is about the rig.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Passed,
    /// The product failed a check.
    Failed,
}
