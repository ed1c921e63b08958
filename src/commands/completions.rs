//! `outbox-relay completions SHELL`: prints the script that completes our commands and options.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Exit;

/// Print the script that completes commands and options in a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  source <(outbox-relay completions bash)
  outbox-relay completions bash > /usr/share/bash-completion/completions/outbox-relay
  outbox-relay completions zsh > \"${fpath[1]}/_outbox-relay\"
  outbox-relay completions fish > ~/.config/fish/completions/outbox-relay.fish")]
pub struct Arguments {
    /// The shell to complete in
    shell: Shell,
}

/// Prints it.
///
/// # Errors
/// When the output cannot be written.
pub fn run(arguments: &Arguments, out: &mut (dyn Write + Send)) -> std::io::Result<Exit> {
    let mut command = super::Arguments::command();
    // In memory first: the generator panics where a write fails, as into a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "outbox-relay", &mut script);
    out.write_all(&whole(&script))?;
    Ok(Exit::Done)
}

/// The generator for bash takes the hyphen of our name for the start of a subcommand in one half of
/// its script and not in the other, so that nothing behind a command would be completed.
fn whole(script: &[u8]) -> Vec<u8> {
    let script = String::from_utf8_lossy(script);
    let script = script.replace("outbox__subcmd__relay", "outbox__relay");
    script.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_completed_in_every_shell() {
        let commands = super::super::Arguments::command();
        let names: Vec<_> = commands
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut out = Vec::new();
            run(&Arguments { shell }, &mut out).unwrap();
            let script = String::from_utf8(out).unwrap();
            for name in &names {
                assert!(script.contains(name), "{shell}: {name}");
            }
            assert!(script.contains("until-empty"), "{shell}: no options");
        }
    }

    /// The script finds out which command is meant, and then what can come behind it.
    #[test]
    fn bash_completes_behind_every_command() {
        let mut out = Vec::new();
        run(&Arguments { shell: Shell::Bash }, &mut out).unwrap();
        let script = String::from_utf8(out).unwrap();
        let lines = || script.lines().map(str::trim);
        let meant = lines().filter_map(|line| line.strip_prefix("cmd=\"")?.strip_suffix('"'));
        let meant: Vec<_> = meant.filter(|command| !command.is_empty()).collect();
        assert!(meant.len() > 30, "only {} commands", meant.len());
        for command in meant {
            let label = format!("{command})");
            assert!(lines().any(|line| line == label), "no {label}");
        }
    }
}
