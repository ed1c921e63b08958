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
mod world;
mod writers;

use dice::Dice;
use world::World;

const STEPS: usize = 1_500;

fn run(seed: u64) {
    let mut world = World::new(seed);
    let mut dice = Dice::new(seed);
    for _ in 0..STEPS {
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
    let runs = setting("OUTBOX_RELAY_SIMULATION_RUNS").unwrap_or(1_000);
    for seed in 0..runs {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("failed: run it alone with OUTBOX_RELAY_SIMULATION_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
