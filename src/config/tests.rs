use super::*;

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

fn parse(text: &str) -> Result<ConfigFile> {
    ConfigFile::parse(Path::new("x.toml"), text)
}

#[test]
fn every_setting_has_a_default_that_it_accepts_itself() {
    let settings = Config::isolated().settings(None).unwrap();
    assert_eq!(settings.metadata_ttl, Some(std::time::Duration::from_secs(60)));
    assert_eq!(settings.negative_ttl, Some(std::time::Duration::from_secs(2)));
    assert_eq!((settings.memory, settings.umask, settings.prefetch), (None, 0, true));
    assert!(SETTINGS.len() <= 40, "every setting is a cost to its users");
    for s in SETTINGS {
        assert!(s.key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", s.key);
    }
}

#[test]
fn flag_beats_environment_beats_section_beats_ecosystem_beats_file_beats_default() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(
        dir.path(),
        "c.toml",
        "region = 'file'\nnegative_ttl = '9s'\n[store.\"s3://train\"]\nregion = 'section'\nmetadata_ttl = '5s'\n\
         [store.\"s3://train/deep/\"]\nmetadata_ttl = 'inf'\n",
    );
    let load = |vars: &[(&str, &str)]| {
        Config::load(Some(&file), vars.iter().copied().collect::<Environment>()).unwrap()
    };
    let of = |config: &Config, key: &str, url: Option<&str>| {
        let e = config.entries(url).into_iter().find(|e| e.key == key).unwrap();
        (e.value, e.origin)
    };
    let plain = load(&[]);
    assert_eq!(of(&plain, "region", None), ("file".into(), Origin::File(file.clone())));
    assert_eq!(of(&plain, "retries", None).1, Origin::Default);
    let section = Origin::Section(file.clone(), "s3://train".into());
    for url in ["s3://train", "s3://train/", "s3a://train/a", "s3://train/deeper"] {
        assert_eq!(of(&plain, "metadata_ttl", Some(url)), ("5s".into(), section.clone()), "{url}");
    }
    assert_eq!(of(&plain, "metadata_ttl", Some("s3://training")).1, Origin::Default);
    assert_eq!(of(&plain, "metadata_ttl", Some("s3://train/deep/x")).0, "inf");
    // The longest section that speaks of the key, not the longest section.
    assert_eq!(of(&plain, "region", Some("s3://train/deep/x")).0, "section");

    let aws = load(&[("AWS_REGION", "aws")]);
    assert_eq!(of(&aws, "region", Some("s3://other")), ("aws".into(), Origin::Env("AWS_REGION".into())));
    assert_eq!(of(&aws, "region", Some("s3://train")).0, "section");
    let mut all = load(&[("AWS_REGION", "aws"), ("NEARFS_REGION", "env")]);
    assert_eq!(of(&all, "region", Some("s3://train")).0, "env");
    all.set("region", "flag", "--region").unwrap();
    assert_eq!(of(&all, "region", Some("s3://train")), ("flag".into(), Origin::Flag("--region".into())));
    assert_eq!(all.settings(Some("s3://train")).unwrap().region.as_deref(), Some("flag"));
}

#[test]
fn nearer_files_hide_farther_ones_key_by_key() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "xdg/nearfs/nearfs.toml", "retries = 3\nregion = 'far'\n");
    let vars = [("XDG_CONFIG_HOME", dir.path().join("xdg").display().to_string())];
    let config = Config::load(None, vars.into_iter().collect()).unwrap();
    assert_eq!(config.settings(None).unwrap().retries, 3);
    assert_eq!(config.searched()[1], dir.path().join("xdg/nearfs/nearfs.toml"));
    let explicit = write(dir.path(), "only.toml", "retries = 4\n");
    let vars = [("NEARFS_CONFIG", explicit.display().to_string())];
    let config = Config::load(None, vars.into_iter().collect()).unwrap();
    let settings = config.settings(None).unwrap();
    assert_eq!((settings.retries, settings.region), (4, None));
    let missing = dir.path().join("none.toml");
    let error = Config::load(Some(&missing), Environment::default()).unwrap_err();
    assert!(error.to_string().contains("none.toml: no such configuration file"), "{error}");
}

#[test]
fn unknown_keys_and_bad_values_are_errors_that_help() {
    for (text, part, hint) in [
        ("metadata-ttl = '1s'", "unknown setting `metadata-ttl`", "`metadata_ttl`"),
        ("metdata_ttl = '1s'", "unknown setting `metdata_ttl`", "`metadata_ttl`"),
        ("metadata_ttl = 60", "`metadata_ttl`: `60` is not a time span: the unit is missing", "`60s`"),
        ("memory = '1XB'", "`memory`: `1XB` is not a size", "2GiB"),
        ("[store.\"s3://a\"]\nmemory = '1GiB'", "`memory` is not a setting of a store", "above the first"),
        ("[store.\"s3://a\"]\nregoin = 'x'", "unknown setting `regoin`", "`region`"),
        ("[store.train]\nregion = 'x'", "the name is not a URL", "quote the whole URL"),
        ("open = 'fast'", "`stateless`, `plain` or `passthrough`", ""),
        ("fuse_protocol = '8.1'", "a version from `7.23` on", ""),
        ("max_connections = 0", "a number from 1 to 1024", ""),
        ("anonymous = 'maybe'", "expected `true` or `false`, found `maybe`", ""),
        ("umask = '999'", "octal", ""),
        ("retries = [1]", "found array", ""),
        ("a = ", "line 1", ""),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.message().starts_with("x.toml: "), "{error}");
        assert!(error.message().contains(part), "{text}: {error}");
        assert!(error.context("hint").unwrap_or("").contains(hint), "{text}: {:?}", error.context("hint"));
    }
    let bad: Environment = [("NEARFS_DEADLINE", "soon")].into_iter().collect();
    let error = Config::load(Some(Path::new("/dev/null")), bad).unwrap_err();
    assert!(error.message().contains("environment NEARFS_DEADLINE: `deadline`"), "{error}");
}

#[test]
fn strange_variables_are_found_with_the_nearest_name() {
    let env: Environment =
        [("NEARFS_METADATA_TLL", "1s"), ("NEARFS_CONFIG", "/dev/null")].into_iter().collect();
    let config = Config::load(None, env).unwrap();
    assert_eq!(
        config.unknown_variables(),
        [("NEARFS_METADATA_TLL".to_owned(), Some("NEARFS_METADATA_TTL".to_owned()))]
    );
}

#[test]
fn the_manual_describes_every_setting_with_its_default() {
    let manual = include_str!("../manual/configuration.md");
    for s in SETTINGS {
        let row = manual.lines().find(|l| l.starts_with(&format!("| `{}`", s.key)));
        let row = row.unwrap_or_else(|| panic!("`{}` is missing in configuration.md", s.key));
        if !s.default.is_empty() {
            assert!(
                row.contains(&format!("`{}`", s.default)),
                "{row} does not name the default `{}`",
                s.default
            );
        }
    }
}

#[test]
fn settings_with_several_values_are_written_in_every_place() {
    let dirs = |config: &Config| config.settings(None).unwrap().cache_dir;
    let two = [PathBuf::from("/a"), PathBuf::from("/b:c")];
    let of_file = |text: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Config::load(Some(file.path()), Environment::default()).unwrap()
    };
    assert_eq!(dirs(&of_file("cache_dir = ['/a', '/b:c']")), two);
    assert_eq!(dirs(&of_file("cache_dir = '/b:c'")), two[1..]);
    let env = [("NEARFS_CACHE_DIR", "/a:/b\\:c"), ("NEARFS_CONFIG", "/dev/null")];
    let mut config = Config::load(None, env.into_iter().collect()).unwrap();
    assert_eq!(dirs(&config), two);
    config.set_list("cache_dir", ["/d:e"], "--cache-dir").unwrap();
    assert_eq!(dirs(&config), [PathBuf::from("/d:e")]);
    let entry = config.entries(None).into_iter().find(|e| e.key == "cache_dir").unwrap();
    assert_eq!((entry.value.as_str(), entry.list.as_deref()), ("/d\\:e", Some(&["/d:e".to_owned()][..])));
    for (text, part) in [
        ("cache_dir = [1]", "expected an array of strings"),
        ("cache_dir = []", "empty path"),
        ("cache_dir = ['/a', '/a']", "given twice"),
        ("retries = [1]", "found array"),
    ] {
        assert!(parse(text).unwrap_err().message().contains(part), "{text}");
    }
}

#[test]
fn a_cache_directory_of_nobodys_choice_follows_the_user() {
    let of = |vars: &[(&str, &str)], root: bool| {
        vars.iter().copied().collect::<Environment>().cache_directory(root).map(|p| p.display().to_string())
    };
    assert_eq!(of(&[("HOME", "/h")], true).as_deref(), Some("/var/cache/nearfs"));
    assert_eq!(of(&[("HOME", "/h")], false).as_deref(), Some("/h/.cache/nearfs"));
    assert_eq!(of(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], false).as_deref(), Some("/x/nearfs"));
    assert_eq!(of(&[], false), None);
}
