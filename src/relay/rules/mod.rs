//! The rules of the relay: what to read, what may be published next, what an outcome means.
//!
//! Pure: `now` and events go in, decisions come out. No I/O, no clock, no async, no client
//! crate, so that the whole of it runs in a seeded simulation (`simulation`, tests only).
//!
//! ```text
//!  Reading ──▶ coverage ──▶ ledger + lanes ──▶ ready ──▶ window ──▶ Publication
//!                                 ▲                                   │
//!              Settlement ◀── judge (Outcome, channel loss) ◀─────────┘
//! ```
//!
//! Words:
//! * A **lane** is what order applies to: all rows of one ordering key, or, for rows without
//!   one, all rows of one destination (no order inside, but held back together).
//! * A lane is **live** when every pending row of it that the last snapshot saw is in memory,
//!   **catching up** when that holds up to the cursor of the running pass, and **shelved from**
//!   an id when rows from that id on were deliberately not kept.
//! * A **pass** pages through the pending rows by id, from a cursor to the end.
//! * A **gate** stands before an exchange or a destination and closes when it refuses, or when an
//!   operator **bars** it.

mod channels;
mod coverage;
mod flow;
mod gate;
mod hazard;
mod held_back;
mod lane;
mod ledger;
mod ownership;
mod partition;
mod pause;
mod reading;
mod settlement;
#[cfg(test)]
mod simulation;
mod snapshot;
mod tenet;
mod walk;

pub use channels::ChannelNo;
pub use flow::{BEHIND_QUARANTINED, Batches, Flow, FlowLimits, Request, Standing};
pub use held_back::{HeldBack, IDS_TOLD, Unwritten, Withheld};
pub use lane::Lane;
pub use ownership::{Leases, Ownership, Peer, Plan, Take};
pub use partition::{Partition, PartitionSet};
pub use pause::Pause;
pub use reading::{DueMark, Fetched, Fingerprint, Found, Position, ReadRequest, Reading, Wanted};
pub use settlement::{SettleReport, Settlement, Ticket, Verdict};
pub use snapshot::{Snapshot, SnapshotSyntax};
pub(crate) use tenet::{Tenet, holds};
pub use walk::{SWEEP_ROWS, Stretch, Swept, Walk};
