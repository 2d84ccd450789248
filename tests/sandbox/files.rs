//! What a command can read and write.

use super::for_each_user;

#[test]
fn workspace_is_writable_inside_and_unchanged_outside() {
    for_each_user(|place| {
        let seen = place.shell(
            &[],
            "echo changed > file; rm -r dir; mkdir dir; echo new > dir/new; mv file moved; \
             cat moved; ls dir; pwd",
        );
        assert_eq!(seen, format!("changed\nnew\n{}\n", place.path("workspace").display()));
        assert_eq!(place.read("workspace/file"), "original\n");
        assert_eq!(place.read("workspace/dir/inner"), "inner\n");
        assert!(!place.path("workspace/moved").exists());
    });
}

#[test]
fn files_outside_of_the_workspace_are_read_only() {
    for_each_user(|place| {
        let home = place.path("home").display().to_string();
        place.write("home/victim", "");
        let code = format!(
            "
home = '{home}'
attempt(lambda: open(home + '/new', 'w'))
attempt(lambda: open(home + '/.profile', 'a'))
attempt(lambda: os.chmod(home + '/.profile', 0o600))
attempt(lambda: os.utime(home + '/.profile'))
attempt(lambda: os.setxattr(home + '/.profile', 'user.x', b'1'))
attempt(lambda: os.rename(home + '/.profile', home + '/.other'))
attempt(lambda: os.rename(home + '/.other', home + '/.profile'))
attempt(lambda: os.unlink(home + '/victim'))
"
        );
        let (outside, inside) = place.attack(&[], &code);
        assert_eq!(outside, ["ok"; 8]);
        let refused = [&["EROFS"; 4][..], &["ENOTSUP"], &["EROFS"; 3]].concat();
        assert_eq!(inside, refused, "uid {}", place.uid);
    });
}

#[test]
fn temporary_files_are_private() {
    for_each_user(|place| {
        let name = format!("/tmp/sandbox-test-{}", place.uid);
        let script = format!("echo x > {name}; echo x > /dev/shm/sandbox; ls /tmp | wc -l");
        place.shell(&[], &script);
        assert!(!std::path::Path::new(&name).exists());
        assert!(!std::path::Path::new("/dev/shm/sandbox").exists());
        let lock = "import multiprocessing; multiprocessing.Lock(); print('ok')";
        assert!(place.run(&[], &["python3", "-c", lock]).status.success());
    });
}

#[test]
fn other_workers_and_drafts_are_hidden() {
    for_each_user(|place| {
        let store = place.path("store").display().to_string();
        place.make_dir("store/drafts");
        place.make_dir("store/drafts/other");
        let code = format!(
            "
store = '{store}'
attempt(lambda: os.listdir(store + '/drafts/other'))
attempt(lambda: open(store + '/workers/other/result.txt'))
attempt(lambda: os.mkdir(store + '/workers/made'))
"
        );
        place.fails_inside(&[], &code, &["ENOENT", "ENOENT", "EROFS"]);
        let own = "cd \"$SWARMLET_STORE/workers\"; ls | wc -l; echo mine > $SWARMLET_WORKER/note; \
                   rm $SWARMLET_WORKER/note";
        assert_eq!(place.shell(&[], own).trim(), "1");
    });
}

#[test]
fn descriptors_of_the_caller_are_closed() {
    for_each_user(|place| {
        let line = place.in_sandbox(&[], &["sh", "-c", "cat /proc/self/fd/7/file"]);
        let script = format!("exec 7<{}; exec \"$@\"", place.path("workspace").display());
        let mut words = vec!["sh", "-c", &script, "sh"];
        words.extend(line.iter().map(String::as_str));
        assert!(!place.plain(&words).status.success());
        let control = [&words[..4], &["cat", "/proc/self/fd/7/file"]].concat();
        assert!(place.plain(&control).status.success());
    });
}

#[test]
fn path_named_by_write_is_writable_and_real() {
    for_each_user(|place| {
        let (home, profile) = (place.path("home"), place.path("home/.profile"));
        place.shell(&["--write", home.to_str().unwrap()], "echo x > $HOME/made");
        assert_eq!(place.read("home/made"), "x\n");
        place.shell(&["--write", profile.to_str().unwrap()], "echo y > $HOME/.profile");
        assert_eq!(place.read("home/.profile"), "y\n");
    });
}

#[test]
fn parent_of_the_store_cannot_be_made_writable() {
    for_each_user(|place| {
        let parent = place.path("");
        let output = place.run(&["--write", parent.to_str().unwrap()], &["true"]);
        assert!(!output.status.success());
    });
}

#[test]
fn store_cannot_be_made_writable() {
    for_each_user(|place| {
        let workers = place.path("store/workers");
        let output = place.run(&["--write", workers.to_str().unwrap()], &["true"]);
        assert!(!output.status.success());
    });
}
