//! Names the right that a user lacks, instead of the broker's refusal.

use garenne_common::exit::{Exit, Failure};
use garenne_protocol::rights::MissingRight;

/// The failure with the right that is missing, if the broker refused something because of one.
pub(crate) fn named(failure: Failure) -> Failure {
    match MissingRight::of(&failure.line) {
        Some(right) if failure.exit == Exit::Denied => {
            Failure::new(Exit::Denied, format_args!("the broker denied access: {right}"))
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_becomes_the_right_and_other_failures_stay() {
        let refusal = "the broker denied the message: ACCESS_REFUSED - write access to exchange 'garenne.events' in vhost '/' \
                       refused for user 'w'";
        let right = r#"the broker denied access: user "w" lacks the right write on exchange "garenne.events" in virtual host "/""#;
        assert_eq!(named(Failure::new(Exit::Denied, refusal)).line, right);
        let other = Failure::new(Exit::Denied, "wrong password");
        assert_eq!(named(other.clone()), other);
    }
}
