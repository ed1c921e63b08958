//! Makes frames from the broker readable for lapin, in place. Pure.
//!
//! The broker passes on what a publisher sent: short strings that are not UTF-8, although the
//! protocol says that they are (AMQP 0-9-1, 4.2.5.3), and tables of any depth. lapin gives the
//! connection up for the former, and overflows its stack by the latter; the message would be
//! delivered again, and do so again, for ever. Nothing here changes a length.

/// How deeply tables and lists may nest; deeper ones become bytes. The outbox allows fewer.
const DEEPEST: usize = 64;

/// Stands for a byte that is no text.
const NO_TEXT: u8 = b'?';

/// What a frame begins with: type, channel, length.
pub(super) const HEAD: usize = 7;
const METHOD: u8 = 1;
const HEADER: u8 = 2;

const BASIC: u16 = 60;
const RETURN: u16 = 50;
const DELIVER: u16 = 60;

/// Whether a frame of this type has to be looked at as a whole.
pub(super) fn is_of_interest(frame_type: u8) -> bool {
    frame_type == METHOD || frame_type == HEADER
}

/// Mends a whole frame. One that is not understood is left as it is: lapin is to judge it.
pub(super) fn mend(frame: &mut [u8]) {
    let Some((&mut kind, _)) = frame.split_first_mut() else {
        return;
    };
    let Some(payload) = frame.get_mut(HEAD..) else {
        return;
    };
    let mut rest = Rest(payload);
    // What ends too early is lapin's business as well.
    let _ = match kind {
        METHOD => method(&mut rest),
        HEADER => header(&mut rest),
        _ => None,
    };
}

/// What has not been read yet.
struct Rest<'a>(&'a mut [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Option<&'a mut [u8]> {
        if length > self.0.len() {
            return None;
        }
        let (taken, rest) = std::mem::take(&mut self.0).split_at_mut(length);
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<&'a mut u8> {
        self.take(1)?.first_mut()
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn short(&mut self) -> Option<&'a mut [u8]> {
        let length = usize::from(*self.byte()?);
        self.take(length)
    }

    fn long(&mut self) -> Option<&'a mut [u8]> {
        let length = u32::from_be_bytes(self.take(4)?.try_into().ok()?);
        self.take(usize::try_from(length).ok()?)
    }

    fn text(&mut self) -> Option<()> {
        make_text(self.short()?, |byte| {
            if !byte.is_ascii() {
                *byte = NO_TEXT;
            }
        });
        Some(())
    }
}

fn make_text(bytes: &mut [u8], change: fn(&mut u8)) {
    if std::str::from_utf8(bytes).is_err() {
        bytes.iter_mut().for_each(change);
    }
}

/// Exchange and routing key of a delivery.
fn method(rest: &mut Rest<'_>) -> Option<()> {
    match (rest.u16()?, rest.u16()?) {
        (BASIC, DELIVER) => {
            rest.short()?;
            // Delivery tag and redelivered.
            rest.take(9)?;
        }
        (BASIC, RETURN) => {
            rest.u16()?;
            rest.text()?;
        }
        _ => return None,
    }
    rest.text()?;
    rest.text()
}

/// The properties, in the order of their flags.
fn header(rest: &mut Rest<'_>) -> Option<()> {
    if rest.u16()? != BASIC {
        return None;
    }
    // Weight and size of the body.
    rest.take(10)?;
    let flags = rest.u16()?;
    for bit in (1..16).rev() {
        if flags & (1 << bit) == 0 {
            continue;
        }
        match bit {
            13 => table(&mut Rest(rest.long()?), 0)?,
            // Delivery mode and priority.
            12 | 11 => rest.take(1).map(drop)?,
            // Of two ids, each made a text, both might be the same one: it is unusable, and U+0000
            // says so.
            7 => make_text(rest.short()?, |byte| *byte = 0),
            // Time.
            6 => rest.take(8).map(drop)?,
            _ => rest.text()?,
        }
    }
    Some(())
}

fn table(rest: &mut Rest<'_>, depth: usize) -> Option<()> {
    while !rest.0.is_empty() {
        rest.text()?;
        value(rest, depth)?;
    }
    Some(())
}

fn list(rest: &mut Rest<'_>, depth: usize) -> Option<()> {
    while !rest.0.is_empty() {
        value(rest, depth)?;
    }
    Some(())
}

/// Types and their lengths as RabbitMQ writes them ("AMQP 0-9-1 Errata", field types).
fn value(rest: &mut Rest<'_>, depth: usize) -> Option<()> {
    let tag = rest.byte()?;
    match *tag {
        b'F' | b'A' if depth >= DEEPEST => {
            // A byte array has the same length in front.
            *tag = b'x';
            rest.long().map(drop)
        }
        b'F' => table(&mut Rest(rest.long()?), depth + 1),
        b'A' => list(&mut Rest(rest.long()?), depth + 1),
        b'S' | b'x' => rest.long().map(drop),
        b'V' => Some(()),
        b't' | b'b' | b'B' => rest.take(1).map(drop),
        b's' | b'U' | b'u' => rest.take(2).map(drop),
        b'I' | b'i' | b'f' => rest.take(4).map(drop),
        b'D' => rest.take(5).map(drop),
        b'l' | b'L' | b'd' | b'T' => rest.take(8).map(drop),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).expect("short");
        [&[length], bytes].concat()
    }

    fn long(bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).expect("not so long");
        [&length.to_be_bytes(), bytes].concat()
    }

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        [&[kind, 0, 1], long(payload).as_slice(), &[0xce]].concat()
    }

    fn with_properties(flags: u16, properties: &[u8]) -> Vec<u8> {
        let mut payload = BASIC.to_be_bytes().to_vec();
        payload.extend([0; 10]);
        payload.extend(flags.to_be_bytes());
        payload.extend(properties);
        frame(HEADER, &payload)
    }

    fn mended(mut frame: Vec<u8>) -> Vec<u8> {
        mend(&mut frame);
        frame
    }

    #[test]
    fn what_is_readable_is_left_as_it_is() {
        let headers = [short("ü".as_bytes()), b"S".to_vec(), long(b"\xff\xfe")].concat();
        let all = [
            short(b"text/plain"),
            long(&headers),
            vec![2, 5],
            short("ü".as_bytes()),
            vec![0, 0, 0, 0, 0, 0, 0, 7],
            short(b"paid"),
        ];
        let flags = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 11 | 1 << 7 | 1 << 6 | 1 << 5;
        let frame = with_properties(flags, &all.concat());
        assert_eq!(mended(frame.clone()), frame);
    }

    #[test]
    fn an_id_that_is_no_text_becomes_unusable_and_other_texts_are_shown_as_far_as_they_go() {
        let broken = [short(b"a\xff"), short(b"p\xe9id")].concat();
        let whole = [short(b"\0\0"), short(b"p?id")].concat();
        let flags = 1 << 7 | 1 << 5;
        assert_eq!(
            mended(with_properties(flags, &broken)),
            with_properties(flags, &whole)
        );
    }

    #[test]
    fn exchange_and_routing_key_of_a_delivery_are_texts() {
        let delivery = |exchange: &[u8], key: &[u8]| {
            let mut payload = [BASIC.to_be_bytes(), DELIVER.to_be_bytes()].concat();
            payload.extend(short(b"consumer"));
            payload.extend([0; 9]);
            payload.extend(short(exchange));
            payload.extend(short(key));
            frame(METHOD, &payload)
        };
        assert_eq!(mended(delivery(b"e\xff", b"\xffk")), delivery(b"e?", b"?k"));
    }

    #[test]
    fn too_deep_a_table_becomes_bytes_and_a_thousand_levels_do_not_overflow() {
        let nested = |levels: usize, innermost: u8| {
            let mut value = vec![innermost];
            value.extend(long(b""));
            for _ in 0..levels {
                value = [b"A".to_vec(), long(&value)].concat();
            }
            let headers = [short(b"h"), value].concat();
            with_properties(1 << 13, &long(&headers))
        };
        assert_eq!(mended(nested(DEEPEST, b'A')), nested(DEEPEST, b'x'));
        assert_eq!(mended(nested(DEEPEST - 1, b'A')), nested(DEEPEST - 1, b'A'));
        let deep = nested(20_000, b'A');
        assert_ne!(mended(deep.clone()), deep);
    }

    #[test]
    fn what_is_cut_short_or_unknown_is_not_touched_and_does_not_panic() {
        let whole = with_properties(1 << 7, &short(b"\xff\xff"));
        for end in 0..whole.len() - 3 {
            let cut = whole[..end].to_vec();
            assert_eq!(mended(cut.clone()), cut);
        }
        let unknown = frame(METHOD, &[0, 10, 0, 10, 0xff]);
        assert_eq!(mended(unknown.clone()), unknown);
    }
}
