//! The Dockerfiles: linted, and their commands run in a Debian root with what the containers have.
//! Docker itself runs in no test.

use std::fs;
use std::path::PathBuf;

use super::clean_root::{CleanRoot, root, target};
use crate::cli::program::{program, run};
use crate::support::skip;

fn dockerfile(name: &str) -> PathBuf {
    root().join("dist/docker").join(name)
}

/// Returns the command of a Dockerfile's last stage, quoted for bash.
fn command(name: &str) -> String {
    let text = fs::read_to_string(dockerfile(name)).unwrap();
    let words = |instruction: &str| -> Vec<String> {
        let json = text.lines().rev().find_map(|line| line.strip_prefix(instruction)).unwrap();
        serde_json::from_str(json).unwrap()
    };
    let words = [words("ENTRYPOINT "), words("CMD ")].concat();
    words.iter().map(|word| format!("'{word}' ")).collect()
}

#[test]
fn dockerfiles_have_no_faults() {
    let hadolint = target().join("python/bin/hadolint");
    if !hadolint.exists() {
        skip("hadolint is not installed: scripts/setup installs it");
        return;
    }
    let files = ["mount.Dockerfile", "read.Dockerfile"].map(dockerfile);
    assert_eq!(run(program(hadolint, files)).assert_success().out, "");
}

#[test]
#[ignore = "only in scripts/check --all"]
fn container_mounts_with_two_capabilities() {
    let Some(root) = CleanRoot::enter() else { return };
    root.install();
    root.output("mkdir /store /mnt/swarm && mount --bind /srv/swarm /store");
    let capabilities = "setpriv --bounding-set=-all,+sys_admin,+dac_read_search --inh-caps=-all";
    let done = root.output(&format!(
        "{capabilities} {} 2> /dev/null &
        until cat /mnt/swarm/workers/w1/result.txt 2> /dev/null; do sleep 0.05; done
        kill %1
        wait %1",
        command("mount.Dockerfile")
    ));
    assert_eq!(done, "done");
    assert_eq!(root.mounts(), "");
}

/// Has the program and the C library in `/image`, and `/store`, all of it read-only.
const IMAGE: &str = r"
mkdir -p /image/usr/bin /image/lib64 /image/lib/x86_64-linux-gnu /image/proc /image/dev /image/store
cp /usr/bin/swarmletfs /image/usr/bin
cp /lib64/ld-linux-x86-64.so.2 /image/lib64
cp /lib/x86_64-linux-gnu/lib{c,m,gcc_s}.so.[0-9] /image/lib/x86_64-linux-gnu
mknod -m 666 /image/dev/null c 1 3
mount --bind /image /image
mount -o remount,bind,ro /image
mount -t proc proc /image/proc
mount --bind /srv/swarm /image/store
";

#[test]
#[ignore = "only in scripts/check --all"]
fn container_reads_without_privileges_and_writes_nothing() {
    let Some(root) = CleanRoot::enter() else { return };
    if !cfg!(target_arch = "x86_64") {
        skip("the image is made of the libraries of x86_64");
        return;
    }
    root.install();
    root.output(IMAGE);
    let as_image = "unshare --net setpriv --no-new-privs env -i SWARMLET_STORE=/store PATH=/usr/bin \
                    /usr/sbin/chroot --userspec=65532:65532 /image";
    let summary = root.run(&format!("{as_image} {}", command("read.Dockerfile")));
    assert_eq!(summary.code, Some(0), "{summary:#?}");
    assert!(summary.out.contains("w1"), "{summary:#?}");
    assert_eq!(summary.err, "swarmletfs: the store is /store (named by $SWARMLET_STORE)\n");
    let read = root.output(&format!("{as_image} swarmletfs grep done"));
    assert!(read.contains("result.txt"), "{read}");
    #[cfg(feature = "mcp")]
    root.output(&format!("{as_image} swarmletfs mcp < /dev/null"));
}
