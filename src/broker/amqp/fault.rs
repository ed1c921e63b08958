//! Reads lapin's errors: what ended a channel or a connection, in our words.

use lapin::{Error, ErrorKind};

use crate::broker::LossCause;

/// The reasons a channel's publications failed with, boiled down to the one that explains the
/// others: the broker's own word on the channel, else its word on the connection, else the first.
#[derive(Debug, Default)]
pub(super) struct Blame(Option<(u8, LossCause)>);

impl Blame {
    pub(super) fn take_note(&mut self, error: &Error) {
        let weight = weight(error);
        if self.0.as_ref().is_none_or(|(noted, _)| weight > *noted) {
            self.0 = Some((weight, cause(error)));
        }
    }

    pub(super) fn take(&mut self) -> Option<LossCause> {
        self.0.take().map(|(_, cause)| cause)
    }
}

fn weight(error: &Error) -> u8 {
    if error.is_amqp_soft_error() {
        3
    } else if error.is_amqp_error() {
        2
    } else {
        u8::from(error.is_io_error())
    }
}

/// Reply codes with which the broker closes a connection over what it was sent on it: FRAME_ERROR,
/// SYNTAX_ERROR, COMMAND_INVALID, UNEXPECTED_FRAME, NOT_IMPLEMENTED, and INTERNAL_ERROR, which is how
/// RabbitMQ tells that a channel's process failed, over a header that an exchange type or a stream
/// cannot read, for instance (rabbitmq-server issues 2575, 3564). The others are about the connection
/// itself: an operator's wish, a limit, a virtual host that is gone (AMQP 0-9-1 reference,
/// "Constants").
const OVER_WHAT_WAS_SENT: [u16; 6] = [501, 502, 503, 505, 540, 541];

/// What an error says about the channel on which it was met. AMQP calls errors that close a
/// channel soft and those that close the connection hard (0-9-1 §2.2.10).
pub(super) fn cause(error: &Error) -> LossCause {
    if let ErrorKind::ProtocolError(said) = error.kind() {
        let (code, text) = (said.get_id(), said.get_message().to_string());
        if error.is_amqp_soft_error() {
            return LossCause::Closed { code, text };
        }
        if OVER_WHAT_WAS_SENT.contains(&code) {
            return LossCause::ConnectionClosed { code, text };
        }
    }
    LossCause::Connection {
        reason: error.to_string(),
    }
}

/// Did the broker close the channel with this code?
pub(super) fn is_closed_with(error: &Error, wanted: u16) -> bool {
    match cause(error) {
        LossCause::Closed { code, .. } => code == wanted,
        LossCause::ConnectionClosed { .. }
        | LossCause::Connection { .. }
        | LossCause::Silent { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::AMQPError;

    use super::*;

    fn said(code: u16, text: &str) -> Error {
        ErrorKind::ProtocolError(AMQPError::from_id(code, text.into()).unwrap()).into()
    }

    fn reset() -> Error {
        std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
    }

    #[test]
    fn the_brokers_word_on_the_channel_explains_the_rest() {
        let other: Error = ErrorKind::InvalidChannel(7).into();
        let mut blame = Blame::default();
        assert_eq!(blame.take(), None);
        for error in [
            other,
            said(404, "NOT_FOUND - no exchange 'x'"),
            reset(),
            said(403, "no"),
        ] {
            blame.take_note(&error);
        }
        let text = "NOT_FOUND - no exchange 'x'".to_owned();
        assert_eq!(blame.take(), Some(LossCause::Closed { code: 404, text }));
    }

    #[test]
    fn a_hard_error_is_the_connections() {
        let cause = cause(&said(320, "CONNECTION_FORCED - closed"));
        let LossCause::Connection { reason } = cause else {
            panic!("{cause:?}")
        };
        assert!(reason.contains("CONNECTION_FORCED - closed"), "{reason}");
        assert!(!is_closed_with(&said(320, ""), 320));
        for code in [501, 541] {
            let text = "INTERNAL_ERROR".to_owned();
            let closed = LossCause::ConnectionClosed { code, text };
            assert_eq!(super::cause(&said(code, "INTERNAL_ERROR")), closed);
            assert!(!is_closed_with(&said(code, ""), code));
        }
        assert!(is_closed_with(&said(404, ""), 404));
        assert!(!is_closed_with(&reset(), 404));
    }
}
