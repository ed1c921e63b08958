//! What the visitor sees: events as lines, progress in one line that is redrawn on a terminal
//! and printed now and then elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

const WIDTH: usize = 24;

/// Standard output.
pub struct Screen {
    terminal: bool,
    color: bool,
    state: Mutex<State>,
}

struct State {
    start: Instant,
    /// The last progress line; empty if there is none.
    line: String,
    printed: Option<Instant>,
}

impl Screen {
    /// Looks at what standard output is.
    pub fn new() -> Self {
        let terminal = std::io::stdout().is_terminal();
        Self {
            terminal,
            color: terminal && std::env::var_os("NO_COLOR").is_none(),
            state: Mutex::new(State {
                start: Instant::now(),
                line: String::new(),
                printed: None,
            }),
        }
    }

    /// What is about to happen.
    pub fn title(&self) {
        println!(
            "\n  {}\n\n  \
             A shop commits 2,000 orders, each with a row in its outbox; some are rolled back.\n  \
             outbox-relay publishes the rows to RabbitMQ. On the way the relay is killed twice\n  \
             and the broker once (SIGKILL). A consumer checks what arrives against what was\n  \
             committed. All servers are private to this demo and go away with it.\n",
            self.bold("outbox-relay demo: nothing is lost")
        );
    }

    /// Something begins.
    pub fn event(&self, text: &str) {
        self.say(&self.paint("2", "·"), text);
    }

    /// Something succeeded.
    pub fn done(&self, text: &str) {
        self.say(&self.paint("32", "✓"), text);
    }

    /// Something was broken.
    pub fn broken(&self, text: &str) {
        self.say(&self.paint("31", "✗"), &self.bold(text));
    }

    /// How far everything is.
    pub fn progress(&self, placed: usize, orders: usize, committed: usize, arrived: usize) {
        let full = WIDTH * placed / orders;
        let line = format!(
            "          {}{} {:>5} orders   {:>5} delivered   {:>5} waiting",
            "█".repeat(full),
            "░".repeat(WIDTH - full),
            thousands(placed),
            thousands(arrived),
            thousands(committed.saturating_sub(arrived)),
        );
        let mut state = self.state.lock().expect("no panic while held");
        if self.terminal {
            state.line = line;
            print!("\r\x1b[2K{}", state.line);
            // A closed terminal is seen by the next print.
            let _ = std::io::stdout().flush();
        } else {
            let now = Instant::now();
            let due = state
                .printed
                .is_none_or(|last| now - last > Duration::from_secs(2));
            if due && state.line != line {
                println!("{line}");
                state.printed = Some(now);
                state.line = line;
            }
        }
    }

    /// The progress line stays as it is from now on.
    pub fn progress_ends(&self) {
        let mut state = self.state.lock().expect("no panic while held");
        if !std::mem::take(&mut state.line).is_empty() && self.terminal {
            println!();
        }
    }

    /// One line of the result.
    pub fn result(&self, name: &str, value: &str, good: Option<bool>, note: &str) {
        let mark = match good {
            Some(true) => self.paint("32", "✓"),
            Some(false) => self.paint("31", "✗"),
            None => " ".to_owned(),
        };
        let value = format!("{value:>12}");
        println!(
            "  {name:<20}{} {mark} {}",
            self.bold(&value),
            self.paint("2", note)
        );
    }

    /// How long messages took.
    pub fn latency(&self, when: &str, value: &str, note: &str) {
        let (name, value) = (format!("latency, {when}"), format!("{value:>20}"));
        println!(
            "  {name:<22}{}   {}",
            self.bold(&value),
            self.paint("2", note)
        );
    }

    /// A heading or a closing sentence.
    pub fn heading(&self, text: &str) {
        println!("\n  {}\n", self.bold(text));
    }

    /// The relay's last words, when something went wrong.
    pub fn relay_says(&self, lines: &[String]) {
        println!("  The relay's last words:");
        for line in &lines[lines.len().saturating_sub(20)..] {
            println!("    {line}");
        }
    }

    /// Everything is over.
    pub fn end(&self, took: Duration) {
        let took = took.as_secs();
        println!(
            "\n  {}\n",
            self.paint(
                "2",
                &format!("{took} s. The private servers are stopped and removed.")
            )
        );
    }

    fn say(&self, mark: &str, text: &str) {
        let state = self.state.lock().expect("no panic while held");
        let redraw = self.terminal && !state.line.is_empty();
        let clear = if redraw { "\r\x1b[2K" } else { "" };
        let seconds = format!("{:>4.1} s", state.start.elapsed().as_secs_f64());
        println!("{clear}  {}  {mark} {text}", self.paint("2", &seconds));
        if redraw {
            print!("{}", state.line);
            let _ = std::io::stdout().flush();
        }
    }

    fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// 1234567 as people read it: 1,234,567.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
