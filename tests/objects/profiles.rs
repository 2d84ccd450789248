//! Profiles of the AWS CLI: the program reads an object store with the keys of `~/.aws`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::proxy::{Proxy, WebFault};
use super::server::{ACCESS_KEY, SECRET_KEY, Server, new_prefix, server, url, without_proxy};
use crate::cli::program::{CommandOutput, run, swarmletfs};
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::{Mount, TestStore, patience};

/// Prepares a command without the credentials of the caller, whose home directory is `home`.
fn without_credentials<'a>(command: &'a mut Command, home: &Path) -> &'a mut Command {
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("AWS_") {
            command.env_remove(variable);
        }
    }
    without_proxy(command).env("HOME", home)
}

/// Writes the files of `home/.aws`.
fn write(home: &Path, config: &str, credentials: &str) {
    fs::create_dir_all(home.join(".aws")).unwrap();
    fs::write(home.join(".aws/config"), config).unwrap();
    fs::write(home.join(".aws/credentials"), credentials).unwrap();
}

fn one_worker(server: &Server) -> String {
    let (store, prefix) = (TestStore::new(), new_prefix());
    store.worker("w1", json!({"status": "completed", "task": "Count"}));
    server.copy(&store.path(), &prefix);
    url(&prefix)
}

fn keys(id: &str, secret: &str) -> String {
    format!("aws_access_key_id = {id}\naws_secret_access_key = {secret}\n")
}

/// Promise: Credentials, region and endpoint of an object store come from the environment, and
/// else from a profile in `~/.aws`, as for the AWS CLI.
#[test]
fn a_profile_has_what_the_environment_lacks() {
    let Some(server) = server() else { return };
    let url = one_worker(server);
    let home = tempfile::tempdir().unwrap();
    let endpoint = format!("endpoint_url = http://{}\n", server.address());
    let right = keys(ACCESS_KEY, SECRET_KEY);
    let list = |variables: &[(&str, &str)]| -> CommandOutput {
        let mut command = swarmletfs(["ls", "workers", "--store", &url]);
        without_credentials(&mut command, home.path()).envs(variables.iter().copied());
        run(command)
    };
    let assert_listed = |variables: &[(&str, &str)]| {
        let output = list(variables);
        output.assert_success();
        assert!(output.out.contains("w1"), "{}", output.out);
    };
    // Everything is in the profile.
    write(
        home.path(),
        &format!("[default]\n{endpoint}region = eu-west-1\n"),
        &format!("[default]\n{right}"),
    );
    assert_listed(&[]);
    // The environment precedes the default profile.
    let closed =
        format!("[default]\nendpoint_url = http://127.0.0.1:9\n[profile dev]\n{endpoint}{right}");
    write(home.path(), &closed, &format!("[default]\n{}", keys("nobody", "x")));
    let address = format!("http://{}", server.address());
    assert_listed(&[
        ("AWS_ENDPOINT_URL", &address),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
    ]);
    list(&[("AWS_ENDPOINT_URL", &address)]).assert_failure(1, &["the access key is unknown"]);
    assert_listed(&[("AWS_PROFILE", "dev")]);
    list(&[("AWS_PROFILE", "none")])
        .assert_failure(1, &["there is no profile none in", "check $AWS_PROFILE"]);
    // A command prints the keys.
    let script = home.path().join("print keys");
    let printed = json!({"Version": 1, "AccessKeyId": ACCESS_KEY, "SecretAccessKey": SECRET_KEY});
    fs::write(&script, format!("echo '{printed}'\n")).unwrap();
    let command = format!("credential_process = sh \"{}\"\n", script.display());
    write(home.path(), &format!("[default]\n{endpoint}{command}"), "");
    assert_listed(&[]);
    fs::write(&script, "echo the sign-in has ended >&2; exit 3\n").unwrap();
    list(&[]).assert_failure(
        1,
        &["failed (exit status: 3): the sign-in has ended", "run it in a terminal"],
    );
    // A sign-in is left to the AWS CLI.
    write(home.path(), &format!("[profile dev]\n{endpoint}sso_session = a\n"), "");
    let named = ["a sign-in (SSO)", "aws configure export-credentials --profile dev --format env"];
    list(&[("AWS_PROFILE", "dev")]).assert_failure(1, &named);
    write(home.path(), "[default\n", "");
    list(&[]).assert_failure(1, &["cannot be parsed", "correct the file"]);
}

#[test]
fn a_mount_renews_keys_that_were_refused() {
    needs_fuse!();
    let Some(server) = server() else { return };
    let (url, home) = (one_worker(server), tempfile::tempdir().unwrap());
    let proxy = Proxy::start(&server.address());
    let runs = home.path().join("runs");
    let printed = json!({"Version": 1, "AccessKeyId": ACCESS_KEY, "SecretAccessKey": SECRET_KEY});
    let script = home.path().join("keys");
    fs::write(&script, format!("echo run >>'{}'; echo '{printed}'\n", runs.display())).unwrap();
    let endpoint = format!("endpoint_url = http://{}", proxy.address());
    let command = format!("credential_process = sh {}", script.display());
    write(home.path(), &format!("[default]\n{endpoint}\n{command}\n"), "");
    let mut mount = Mount::of(|point| {
        let mut command = Command::new(PROGRAM);
        without_credentials(&mut command, home.path());
        command.args(["mount", "--foreground", "--quiet", "--no-cache"]);
        command.args(["--store", &url]).arg(point);
        command
    });
    let count = || fs::read_to_string(&runs).unwrap().lines().count();
    assert!(mount.text("summary").contains("w1"));
    assert_eq!(count(), 1);
    mount.expect_warning("cannot list s3://");
    proxy.fail(WebFault::Code(400, "ExpiredToken"), 0, true);
    let begun = Instant::now();
    while count() == 1 {
        assert!(mount.text("summary").contains("w1"));
        assert!(begun.elapsed() < patience(Duration::from_secs(30)));
        std::thread::sleep(Duration::from_millis(100));
    }
    proxy.heal();
    while mount.text("summary").contains("warning") {
        assert!(begun.elapsed() < patience(Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(100));
    }
}
