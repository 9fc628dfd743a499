//! Stories: what clients do, and what the machine answers, as text.
//!
//! A line that begins with `>` is something that happens; the lines below it are all that the machine does about
//! it: replies, records (`log:`), notices (`note:`). `#` begins a comment. Member ids are shown as `a#1`. With
//! `UPDATE_STORIES=1` in the environment the answers in the files are rewritten: read the difference.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of a story are small")]

mod client;
mod properties;
mod script;

macro_rules! stories {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            script::tell(stringify!($name));
        })*
    };
}

stories! {
    empty
    preparing
    completing
    stable
    first_rebalance
    statics
    sessions
    offsets
    expiry
    restart
    limits
    operators
}
