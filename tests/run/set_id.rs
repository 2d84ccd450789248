//! Programs that would run with the rights of the worker's user.

use std::os::unix::fs::PermissionsExt;

use super::workspace::Workspace;

/// No file of a worker's directory has a setuid or setgid bit after the worker's end, also where no
/// wall kept them from being made.
#[test]
fn bits_are_removed_from_the_directory_of_a_worker() {
    for place in Workspace::all() {
        let script = "cd $SWARMLET_STORE/workers/w
            mkdir -p outputs/closed
            cp /bin/true outputs/closed/true; chmod 6755 outputs/closed/true
            stat -c %a outputs/closed/true
            chmod 0 outputs/closed";
        let done = place.sh(&["--no-sandbox"], script);
        done.assert_success();
        assert_eq!(done.out, "6755\n");
        let note = "setuid and setgid bits were removed from files in the worker's directory: \
                    outputs/closed/true";
        assert!(done.err.contains(note), "{done:#?}");
        assert_eq!(place.json("store/workers/w/changes.json")["notes"][0], note);
        let program = std::fs::metadata(place.at("store/workers/w/outputs/closed/true")).unwrap();
        assert_eq!(program.permissions().mode() & 0o7777, 0o755);
    }
}
