//! The `nearfs` command. What it can do is described in `nearfs help` and in the manual (`nearfs::manual`).

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
