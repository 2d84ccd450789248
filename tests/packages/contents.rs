//! The list of files in the package, and its control file.

use std::fs;

use super::clean_root::{can_be_built, package, root};
use crate::cli::program::{program, run};

/// Every file of the package, except for the manual pages of commands and the documentation.
const FILES: &str = "\
-rw-r--r-- /usr/lib/systemd/system/swarmletfs@.service
-rw-r--r-- /usr/lib/systemd/user/swarmletfs-archive.service
-rw-r--r-- /usr/lib/systemd/user/swarmletfs-archive.timer
-rw-r--r-- /usr/lib/systemd/user/swarmletfs-gc.service
-rw-r--r-- /usr/lib/systemd/user/swarmletfs-gc.timer
-rw-r--r-- /usr/share/bash-completion/completions/swarmletfs
-rw-r--r-- /usr/share/doc/swarmletfs/README.md
-rw-r--r-- /usr/share/doc/swarmletfs/changelog.Debian.gz
-rw-r--r-- /usr/share/doc/swarmletfs/changelog.gz
-rw-r--r-- /usr/share/doc/swarmletfs/copyright
-rw-r--r-- /usr/share/doc/swarmletfs/examples/swarm.conf
-rw-r--r-- /usr/share/fish/vendor_completions.d/swarmletfs.fish
-rw-r--r-- /usr/share/man/man1/swarmletfs-mount.1.gz
-rw-r--r-- /usr/share/man/man1/swarmletfs.1.gz
-rw-r--r-- /usr/share/man/man8/mount.swarmletfs.8.gz
-rw-r--r-- /usr/share/zsh/vendor-completions/_swarmletfs
-rwxr-xr-x /usr/bin/swarmletfs
lrwxrwxrwx /usr/sbin/mount.fuse.swarmletfs -> ../bin/swarmletfs
lrwxrwxrwx /usr/sbin/mount.swarmletfs -> ../bin/swarmletfs
lrwxrwxrwx /usr/share/man/man8/mount.fuse.swarmletfs.8.gz -> mount.swarmletfs.8.gz
";

fn dpkg_deb(option: &str, more: &[&str]) -> String {
    let mut command = program("dpkg-deb", [option]);
    command.arg(package()).args(more);
    run(command).assert_success().out.clone()
}

#[test]
#[ignore = "only in scripts/check --all"]
fn package_has_exactly_the_listed_files() {
    if !can_be_built() {
        return;
    }
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(fields[1], "0/0", "{line}");
        format!("{} {}\n", fields[0], fields[5..].join(" ").trim_start_matches('.'))
    };
    let mut files: Vec<String> = dpkg_deb("--contents", &[])
        .lines()
        .filter(|line| !line.starts_with('d'))
        .map(|line| row(line).replace(" ./", " /"))
        .collect();
    let expected: Vec<String> = FILES.lines().map(|line| format!("{line}\n")).collect();
    let is_listed = |file: &String| {
        let is_one_of_many =
            file.contains("/man1/swarmletfs-") || file.contains("/swarmletfs/docs/");
        !is_one_of_many || expected.contains(file)
    };
    files.retain(is_listed);
    files.sort();
    assert_eq!(files.concat(), FILES);
}

#[test]
#[ignore = "only in scripts/check --all"]
fn control_file_names_what_the_package_needs() {
    if !can_be_built() {
        return;
    }
    let fields = ["Depends", "Recommends", "Section", "Version"];
    let control = dpkg_deb("--field", &fields);
    assert!(control.contains("Depends: libc6 (>= 2."), "{control}");
    assert!(control.contains("\nRecommends: fuse3\n"), "{control}");
}

#[test]
fn debian_changelog_begins_with_this_version() {
    let text = fs::read_to_string(root().join("dist/debian/changelog")).unwrap();
    let first = format!("swarmletfs ({}-1) ", env!("CARGO_PKG_VERSION"));
    assert!(text.starts_with(&first), "{text}");
}
