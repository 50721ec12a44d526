//! From the words typed to [`Cli`]: two bare operands become `mount`, `-o` names become options.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{CommandFactory, Parser};
use nearfs::config::nearest;

use super::args::Cli;
use super::diagnostics::Failure;

/// Names under which mount(8) calls a helper.
const HELPERS: [&str; 2] = ["mount.nearfs", "mount.fuse.nearfs"];

/// Words after `-o` that are meant for mount(8), systemd or the kernel's defaults and change nothing here.
///
/// `rw` is among them because mount(8) adds it to every line that does not say `ro`: it asks for nothing.
/// `nosuid` and `nodev` always hold.
const IGNORED: [&str; 25] = [
    "defaults",
    "rw",
    "auto",
    "noauto",
    "nofail",
    "user",
    "users",
    "nouser",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "_netdev",
    "nosuid",
    "nodev",
    "async",
    "noatime",
    "nodiratime",
    "relatime",
    "norelatime",
    "lazytime",
    "exec",
    "suid",
    "dev",
    "default_permissions",
];

/// What was typed, understood.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) cli: Cli,
    /// mount(8) was told to do everything but mount (`-f`).
    pub(crate) fake: bool,
}

/// Why nothing was understood.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Help, version, or an error in clap's words.
    Clap(Box<clap::Error>),
    Failure(Failure),
}

/// True if mount(8) called us as its helper.
pub(crate) fn is_helper(argv0: &OsStr) -> bool {
    let name = argv0.as_bytes().rsplit(|b| *b == b'/').next().unwrap_or_default();
    HELPERS.iter().any(|h| h.as_bytes() == name)
}

/// Understands `argv`, the program's name first.
pub(crate) fn parse(mut argv: Vec<OsString>) -> Result<Parsed, Refused> {
    let known = Known::new();
    let helper = argv.first().is_some_and(|name| is_helper(name));
    let mut fake = false;
    if helper {
        argv = helper_words(argv, &mut fake)?;
        argv.insert(1, "mount".into());
    } else if let Some(at) = known.first_operand(&argv)
        && !known.is_verb(&argv[at])
        && looks_like_a_place(&argv[at])
        && known.operands(&argv) == 2
    {
        argv.insert(1, "mount".into());
    }
    if known.first_operand(&argv).is_some_and(|at| argv[at] == "mount") {
        argv = known.expand_options(argv).map_err(Refused::Failure)?;
    }
    let cli = Cli::try_parse_from(argv).map_err(|e| Refused::Clap(Box::new(e)))?;
    Ok(Parsed { cli, fake })
}

/// Drops what mount(8) adds for its own helpers: `-s` (tolerate unknown options), `-n`, `-t TYPE`; notes `-f`.
fn helper_words(argv: Vec<OsString>, fake: &mut bool) -> Result<Vec<OsString>, Refused> {
    let mut out = Vec::new();
    let mut words = argv.into_iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-s" | b"-n" => {}
            b"-f" => *fake = true,
            b"-t" => drop(words.next()),
            b"-N" => {
                let message = "mounting into another namespace (`-N`) is not possible";
                return Err(Refused::Failure(Failure::plain(message)));
            }
            _ => out.push(word),
        }
    }
    Ok(out)
}

/// A URL or a path with a `/`, `.` or `..`; a mistyped verb is none of them.
fn looks_like_a_place(word: &OsStr) -> bool {
    let word = word.as_bytes();
    word.contains(&b'/') || word.contains(&b':') || word == b"." || word == b".."
}

/// The options and verbs of the grammar, from the grammar itself.
struct Known {
    verbs: Vec<String>,
    /// Long options of `mount` and the global ones; true if a value follows.
    long: BTreeMap<String, bool>,
}

impl Known {
    fn new() -> Self {
        let mut root = Cli::command();
        root.build();
        let mut verbs = Vec::new();
        let mut long = BTreeMap::new();
        for sub in root.get_subcommands() {
            verbs.push(sub.get_name().to_owned());
            verbs.extend(sub.get_all_aliases().map(str::to_owned));
            // Built, `mount` carries the global options too.
            for arg in sub.get_arguments().filter(|_| sub.get_name() == "mount") {
                let names = arg.get_long_and_visible_aliases().unwrap_or_default();
                long.extend(names.into_iter().map(|n| (n.to_owned(), arg.get_action().takes_values())));
            }
        }
        Known { verbs, long }
    }

    fn is_verb(&self, word: &OsStr) -> bool {
        self.verbs.iter().any(|v| word == v.as_str())
    }

    /// How many words this option takes, itself included; `None` for an operand.
    fn width(&self, word: &OsStr) -> Option<usize> {
        let text = word.as_bytes();
        if text == b"-" || !text.starts_with(b"-") {
            return None;
        }
        let takes = match text.strip_prefix(b"--") {
            Some(name) => str::from_utf8(name).ok().and_then(|n| self.long.get(n)).copied().unwrap_or(false),
            None => text == b"-o",
        };
        Some(1 + usize::from(takes))
    }

    fn places(&self, argv: &[OsString]) -> Vec<usize> {
        let mut found = Vec::new();
        let mut at = 1;
        while at < argv.len() {
            if argv[at] == "--" {
                found.extend(at + 1..argv.len());
                break;
            }
            match self.width(&argv[at]) {
                Some(width) => at += width,
                None => {
                    found.push(at);
                    at += 1;
                }
            }
        }
        found
    }

    fn first_operand(&self, argv: &[OsString]) -> Option<usize> {
        self.places(argv).first().copied()
    }

    fn operands(&self, argv: &[OsString]) -> usize {
        self.places(argv).len()
    }

    /// Puts the options that `-o a,b=c` stands for before everything else, so that a long option typed wins.
    fn expand_options(&self, argv: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
        let mut rest = Vec::new();
        let mut expanded = Vec::new();
        let mut words = argv.into_iter();
        rest.extend(words.next());
        while let Some(word) = words.next() {
            if word == "--" {
                rest.push(word);
                rest.extend(words);
                break;
            }
            let list = match word.as_bytes() {
                b"-o" => words.next().ok_or_else(|| Failure::plain("`-o` needs a list of mount options"))?,
                [b'-', b'o', list @ ..] => OsString::from_vec(list.to_vec()),
                _ => {
                    let takes_next = self.width(&word) == Some(2);
                    rest.push(word);
                    if takes_next {
                        rest.extend(words.next());
                    }
                    continue;
                }
            };
            for option in split_list(list.as_bytes()) {
                expanded.extend(self.option(&option)?);
            }
        }
        let verb = rest.iter().position(|w| w == "mount").map_or(1, |i| i + 1);
        rest.splice(verb..verb, expanded);
        Ok(rest)
    }

    /// The words for one mount option; none for those that change nothing.
    fn option(&self, option: &[u8]) -> Result<Vec<OsString>, Failure> {
        let (name, value) = match option.iter().position(|b| *b == b'=') {
            Some(at) => (&option[..at], Some(&option[at + 1..])),
            None => (option, None),
        };
        let shown = String::from_utf8_lossy(name).into_owned();
        if name.is_empty()
            || name.starts_with(b"x-")
            || name.starts_with(b"X-")
            || name == b"comment"
            || IGNORED.contains(&shown.as_str())
        {
            return Ok(Vec::new());
        }
        if name == b"ro" {
            return Ok(vec!["--read-only".into()]);
        }
        if name == b"remount" {
            return Err(Failure::new(
                "a mount cannot be changed while it is there",
                "unmount it, then mount it again",
            ));
        }
        let long = shown.replace('_', "-");
        match (self.long.get(&long), value) {
            (Some(true), Some(value)) => {
                let mut word = format!("--{long}=").into_bytes();
                word.extend_from_slice(value);
                Ok(vec![OsString::from_vec(word)])
            }
            (Some(false), None) => Ok(vec![format!("--{long}").into()]),
            (Some(true), None) => {
                Err(Failure::plain(format!("mount option `{shown}` needs a value: `{shown}=…`")))
            }
            (Some(false), Some(_)) => Err(Failure::plain(format!("mount option `{shown}` takes no value"))),
            (None, _) => {
                let names: Vec<String> = self.long.keys().map(|n| n.replace('-', "_")).collect();
                let message = format!("unknown mount option `{shown}`");
                Err(match nearest(&shown.replace('-', "_"), names.iter().map(String::as_str)) {
                    Some(near) => Failure::new(
                        message,
                        format!("did you mean `{near}` (`--{}`)?", near.replace('_', "-")),
                    ),
                    None => {
                        Failure::new(message, "`nearfs mount --help` lists the options; each is an `-o` name")
                    }
                })
            }
        }
    }
}

/// Parts between commas; `\,` and `\\` stand for themselves, as in other mount helpers.
fn split_list(list: &[u8]) -> Vec<Vec<u8>> {
    let mut out = vec![Vec::new()];
    let mut bytes = list.iter().copied().peekable();
    while let Some(b) = bytes.next() {
        match (b, bytes.peek()) {
            (b'\\', Some(b',' | b'\\')) => out.last_mut().expect("never empty").extend(bytes.next()),
            (b',', _) => out.push(Vec::new()),
            _ => out.last_mut().expect("never empty").push(b),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Command;
    use crate::cli::mount::MountArgs;

    fn mount(line: &str) -> (Box<MountArgs>, Parsed) {
        let mut parsed = parse(line.split(' ').map(OsString::from).collect()).unwrap();
        let Command::Mount(args) =
            std::mem::replace(&mut parsed.cli.command, Command::Mounts(crate::cli::mounts::MountsArgs {}))
        else {
            panic!("`{line}` is not a mount")
        };
        (args, parsed)
    }

    fn refused(line: &str) -> String {
        match parse(line.split(' ').map(OsString::from).collect()).unwrap_err() {
            Refused::Clap(e) => e.to_string(),
            Refused::Failure(f) => format!("{f:?}"),
        }
    }

    #[test]
    fn two_operands_mean_mount_with_every_kind_of_option_around_them() {
        for line in [
            "nearfs s3://b/p /data",
            "nearfs s3://b/p /data -o ro,allow_other",
            "nearfs -o ro --log debug s3://b/p -q /data",
            "nearfs --memory=1GiB ./src /data",
            "/usr/bin/nearfs mount s3://b/p /data -o rw,nosuid,nodev,x-systemd.automount,_netdev,nofail",
        ] {
            assert_eq!(mount(line).0.operands.len(), 2, "{line}");
        }
        assert!(refused("nearfs lss s3://b/p").contains("lss"));
        assert!(refused("nearfs ./src").contains("unrecognized"));
        assert!(refused("nearfs s3://a s3://b /c").contains("unrecognized"));
    }

    #[test]
    fn mount_options_are_long_options() {
        let (args, parsed) = mount(
            "nearfs s3://b /d -o ro,allow_other,metadata-ttl=5s,memory=1GiB,path_style,no_sign_request,umask=077",
        );
        assert!(
            args.allow_other && args.read_only && parsed.cli.global.path_style && parsed.cli.global.anonymous
        );
        assert_eq!(args.metadata_ttl.as_deref(), Some("5s"));
        assert_eq!(parsed.cli.global.memory.as_deref(), Some("1GiB"));
        assert_eq!(args.umask.as_deref(), Some("077"));
        // What is typed out wins.
        let (args, _) = mount("nearfs mount --metadata-ttl 9s s3://b /d -o metadata_ttl=5s");
        assert_eq!(args.metadata_ttl.as_deref(), Some("9s"));
        let (_, parsed) = mount("nearfs s3://b /d -oca_bundle=/a\\,b");
        assert_eq!(parsed.cli.global.ca_bundle.as_deref(), Some("/a,b"));

        assert!(
            refused("nearfs s3://b /d -o allow_othr")
                .contains("did you mean `allow_other` (`--allow-other`)?")
        );
        assert!(refused("nearfs s3://b /d -o memory").contains("needs a value"));
        assert!(refused("nearfs s3://b /d -o allow_other=1").contains("takes no value"));
        assert!(refused("nearfs s3://b /d -o remount").contains("unmount it"));
        assert!(refused("nearfs s3://b /d -o").contains("needs a list"));
        let (_, parsed) =
            mount("nearfs s3://b /d -o cache_dir=/a,cache_size=1GiB,cache_dir=/b --cache-dir /c");
        assert_eq!(parsed.cli.global.cache_dir, ["/a", "/b", "/c"]);
        assert_eq!(parsed.cli.global.cache_size.as_deref(), Some("1GiB"));
    }

    #[test]
    fn mount_helpers_are_called_their_own_way() {
        for name in ["/sbin/mount.nearfs", "mount.fuse.nearfs"] {
            let (args, parsed) =
                mount(&format!("{name} s3://b/p /data -s -n -v -t fuse.nearfs -o rw,allow_other"));
            assert!(!parsed.fake && args.allow_other && args.operands.len() == 2);
            assert_eq!(parsed.cli.global.verbose, 1);
        }
        assert!(mount("mount.nearfs s3://b /d -f -o rw").1.fake);
        assert!(refused("mount.nearfs s3://b /d -N 1").contains("namespace"));
    }

    #[test]
    fn global_options_stand_on_both_sides_of_the_verb() {
        for line in ["nearfs --json -vv --region eu ls s3://b", "nearfs ls s3://b --json -v -v --region eu"] {
            let parsed = parse(line.split(' ').map(OsString::from).collect()).unwrap();
            assert!(parsed.cli.global.json, "{line}");
            assert_eq!(
                (parsed.cli.global.verbose, parsed.cli.global.region.as_deref()),
                (2, Some("eu")),
                "{line}"
            );
        }
        Cli::command().debug_assert();
    }
}
