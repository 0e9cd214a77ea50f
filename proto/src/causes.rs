//! An error in one line.

use std::error::Error;

/// The error and everything that caused it, from the outside in.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("can't read the key")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn causes_follow_the_error() {
        assert_eq!(with_causes(&Outer(std::io::Error::other("no disk"))), "can't read the key: no disk");
    }
}
