//! Workspaces and stores at unusual places.

use tempfile::TempDir;

use super::place::swarmletfs;
use super::{Place, for_each_user};

#[test]
fn names_with_separators_of_mount_options_work() {
    for_each_user(|place| {
        let odd = place.make_dir("a,b:c\\d");
        let workspace = place.make_dir("a,b:c\\d/w,x:y\\z");
        place.write("a,b:c\\d/w,x:y\\z/file", "original\n");
        let store = odd.join("s,t:o\\re");
        let store = store.to_str().unwrap();
        assert!(place.plain(&[swarmletfs(), "init", store]).status.success());
        let output = place.plain(&[
            swarmletfs(),
            "run",
            "--quiet",
            "--store",
            store,
            "--workspace",
            workspace.to_str().unwrap(),
            "--",
            "sh",
            "-ec",
            "echo changed > file; cat file",
        ]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"changed\n");
        assert_eq!(place.read("a,b:c\\d/w,x:y\\z/file"), "original\n");
    });
}

/// The cover of the store is needed twice: at its own path, which is in the view.
#[test]
fn store_in_the_workspace_is_hidden() {
    for_each_user(|place| {
        let store = place.path("workspace/.store");
        let store = store.to_str().unwrap();
        assert!(place.plain(&[swarmletfs(), "init", store]).status.success());
        place.make_dir("workspace/.store/drafts");
        place.make_dir("workspace/.store/drafts/other");
        let output = place.plain(&[
            swarmletfs(),
            "run",
            "--quiet",
            "--store",
            store,
            "--workspace",
            place.path("workspace").to_str().unwrap(),
            "--",
            "sh",
            "-ec",
            "echo changed > file; ls .store; ls .store/workers | wc -l",
        ]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"workers\n1\n");
        assert_eq!(place.read("workspace/file"), "original\n");
    });
}

#[test]
fn places_in_tmp_work() {
    for_each_user(|place| {
        let place = Place::in_folder(place.uid, TempDir::new_in("/tmp").unwrap());
        place.make_dir("open");
        place.write("open/private", "");
        assert_eq!(
            place.shell(&[], "echo changed > file; cat file; ls .."),
            "changed\nstore\nworkspace\n"
        );
        assert_eq!(place.read("workspace/file"), "original\n");
        let open = place.path("open");
        let script = "ls ../open/private; echo made > ../open/made; echo changed > file";
        place.shell(&["--write", open.to_str().unwrap()], script);
        assert_eq!(place.read("open/made"), "made\n");
        assert_eq!(place.read("workspace/file"), "original\n");
    });
}
