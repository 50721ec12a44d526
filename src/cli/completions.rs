//! `nearfs completions`: completion scripts for shells.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::args::Cli;
use super::context::Context;
use super::diagnostics::{DONE, Outcome};

/// Print a completion script
///
/// For bash: `nearfs completions bash > /etc/bash_completion.d/nearfs`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell to print it for
    shell: Shell,
}

pub(crate) async fn run(ctx: &Context, args: CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "nearfs", &mut script);
    ctx.out.bytes(script.into()).await?;
    Ok(DONE)
}
