//! Process families: a process and all its descendants, signalled and awaited together.
//! Servers start children in sessions of their own, so a process group is not enough.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process and its descendants as they were when looked at; handles that cannot be mistaken
/// for later processes of the same number.
pub struct Family(Vec<(Pid, OwnedFd)>);

impl Family {
    /// Looks at a process and its descendants.
    pub fn of(root: Pid) -> Self {
        let all = parents();
        let mut members = vec![root];
        let mut next = 0;
        while let Some(&member) = members.get(next) {
            members.extend(
                all.iter()
                    .filter(|(pid, parent)| *parent == member && !members.contains(pid))
                    .map(|(pid, _)| *pid)
                    .collect::<Vec<_>>(),
            );
            next += 1;
        }
        Self(
            members
                .into_iter()
                .filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
                .collect(),
        )
    }

    /// Sends a signal to every member that still lives.
    pub fn signal(&self, signal: Signal) {
        for (_, handle) in &self.0 {
            // Gone already is what a signal may meet at any time.
            let _ = pidfd_send_signal(handle, signal);
        }
    }

    /// Stops the family of `root`, newcomers included, and returns when no thread of it runs:
    /// SIGSTOP takes effect some time after it was sent.
    ///
    /// # Panics
    /// If it does not, which would make whatever is tested next a lie.
    pub fn freeze(root: Pid) {
        // Each look stops who was there; the first that finds all still, newcomers included,
        // is the last. Every round yields to those that have to stop.
        for _ in 0..100_000 {
            let family = Self::of(root);
            family.signal(Signal::STOP);
            if family.pids().into_iter().all(is_still) {
                return;
            }
            std::thread::yield_now();
        }
        panic!("process {} does not stop", root.as_raw_nonzero());
    }

    /// Waits until every member has ended.
    ///
    /// # Panics
    /// If one lives on for more than 30 s, which after SIGKILL only a broken kernel causes.
    pub fn await_end(&self) {
        for (pid, handle) in &self.0 {
            let mut end = [PollFd::new(handle, PollFlags::IN)];
            let limit = Timespec {
                tv_sec: 30,
                tv_nsec: 0,
            };
            let ended = poll(&mut end, Some(&limit)).expect("a pidfd can be polled");
            assert!(ended > 0, "process {} did not end", pid.as_raw_nonzero());
        }
    }

    /// Kills the family of `root` at once, newcomers included, and waits for its end.
    pub fn kill(root: Pid) {
        // Stopped, it starts nothing while we look for its children.
        Self::freeze(root);
        let family = Self::of(root);
        family.signal(Signal::KILL);
        family.await_end();
    }

    /// The members' numbers.
    pub fn pids(&self) -> Vec<i32> {
        self.0
            .iter()
            .map(|(pid, _)| pid.as_raw_nonzero().get())
            .collect()
    }
}

/// Is every thread of the process stopped or gone?
fn is_still(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state comes after the name in parentheses: T stopped, Z and X ended.
        stat.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
    })
}

/// Every process with its parent.
fn parents() -> Vec<(Pid, Pid)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        panic!("/proc is needed to find the children of servers");
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name in parentheses may hold anything; after it come state and parent.
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?;
            Some((pid, Pid::from_raw(parent.parse().ok()?)?))
        })
        .collect()
}
