//! Standard output and error as commands write to them.
//!
//! A reader that has seen enough, as `head` has, ends neither the command nor its truth: what is
//! written afterwards goes nowhere, and the exit code is that of the work. Any other trouble, such
//! as a full disk, is an error.

use std::io::{self, ErrorKind, Write};

/// A stream whose reader may go away.
#[derive(Debug)]
pub struct Output<W> {
    stream: W,
    read: bool,
}

impl<W: Write> Output<W> {
    /// Writes to `stream` as long as somebody reads.
    pub fn new(stream: W) -> Self {
        Self { stream, read: true }
    }

    fn unless_left<T>(&mut self, done: io::Result<T>, nowhere: T) -> io::Result<T> {
        match done {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.read = false;
                Ok(nowhere)
            }
            Ok(_) | Err(_) => done,
        }
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.read {
            return Ok(bytes.len());
        }
        let written = self.stream.write(bytes);
        self.unless_left(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.read {
            return Ok(());
        }
        let flushed = self.stream.flush();
        self.unless_left(flushed, ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails in this way.
    struct Broken(ErrorKind, usize);

    impl Write for Broken {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_reader_that_left_is_no_fault_and_is_not_written_to_again() {
        let mut output = Output::new(Broken(ErrorKind::BrokenPipe, 0));
        for _ in 0..3 {
            output.write_all(b"line").expect("goes nowhere");
            output.flush().expect("nothing to do");
        }
        assert_eq!(output.stream.1, 1);
    }

    #[test]
    fn any_other_trouble_is_told() {
        let mut output = Output::new(Broken(ErrorKind::StorageFull, 0));
        assert!(output.write_all(b"line").is_err());
        assert!(output.flush().is_err());
    }
}
