//! The rules against a simulated world: virtual time, transactions that commit late, reads that
//! overtake settlements, lost confirms, closed channels, cut connections, crashes.
//!
//! Every run is decided by its seed alone. After every step the world checks what must never
//! happen (P2, P4, P5); at the end everything is mended and all that was committed must have
//! arrived (P1), and before that everything that is not itself refused (P6). A failing seed is
//! printed; `OUTBOX_RELAY_SIMULATION_SEED` runs that one alone, `OUTBOX_RELAY_SIMULATION_RUNS`
//! sets how many there are.

mod broker;
mod checks;
mod dice;
mod misfortune;
mod node;
mod settling;
mod world;
mod writers;

use super::tenet::{Tenet, without};
use dice::Dice;
pub(super) use node::limits;
use world::World;

const STEPS: usize = 1_500;

fn run(seed: u64) {
    let mut dice = Dice::new(seed);
    let relays = 1 + dice.below(3);
    let mut world = World::new(seed, relays);
    for _ in 0..STEPS * relays {
        world.step(&mut dice);
    }
    world.finish(&mut dice);
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn whatever_happens_nothing_is_lost_invented_reordered_or_repeated_without_cause() {
    if let Some(seed) = setting("OUTBOX_RELAY_SIMULATION_SEED") {
        run(seed);
        return;
    }
    let runs = setting("OUTBOX_RELAY_SIMULATION_RUNS").unwrap_or(300);
    for seed in 0..runs {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("failed: run it alone with OUTBOX_RELAY_SIMULATION_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// A simulation that would not notice a broken rule proves nothing.
fn is_noticed(tenet: Tenet) {
    // Rarely does it take more than a few dozens.
    let runs = setting("OUTBOX_RELAY_SIMULATION_RUNS").unwrap_or(1000);
    let fails = |seed: &u64| {
        let broken = || without(tenet, || run(*seed));
        std::panic::catch_unwind(broken).is_err()
    };
    let seed = (0..runs).find(fails);
    println!("{tenet:?} broken: noticed with seed {seed:?}");
    assert!(
        seed.is_some(),
        "{tenet:?} broken: not noticed in {runs} runs"
    );
}

#[test]
fn publishing_after_the_lease_is_noticed() {
    is_noticed(Tenet::Fence);
}

#[test]
fn taking_rows_in_by_transaction_id_is_noticed() {
    is_noticed(Tenet::OrderById);
}

#[test]
fn forgetting_a_row_as_soon_as_it_is_settled_is_noticed() {
    is_noticed(Tenet::RememberSettled);
}

#[test]
fn handing_over_what_is_under_way_is_noticed() {
    is_noticed(Tenet::DrainFirst);
}

#[test]
fn sending_rows_of_a_new_partition_before_walking_over_it_is_noticed() {
    is_noticed(Tenet::WalkFirst);
}
