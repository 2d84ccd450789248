//! The paths that programs run by themselves, or take programs to run from.
//!
//! A path belongs here if it is enough to enter its folder, to open it in an editor or to commit in
//! it: a prompt, an editor, an agent or a hook then runs its content. Programs that a person
//! starts, such as `make`, `npm` or `pytest`, run the code of the project in any case and are not
//! listed.

#[derive(Debug)]
pub(super) struct UnaskedEntry {
    /// The last names of the path, in lower case. A name that begins with `*` stands for each name
    /// that ends like it. Everything beneath the path counts, too.
    pub(super) path: &'static str,
    pub(super) reason: &'static str,
    /// True if git runs it, so that `--git-dir` brings it in.
    pub(super) is_of_git: bool,
}

const GIT: &str = "it belongs to git, which may run it";
/// Reason for leaving out a repository that has another name than `.git`.
pub(super) const REPOSITORY: &str =
    "git takes its folder for a repository, and runs programs that its settings name";

const ENVIRONMENT: &str = "a shell that enters the folder may run it";
const HOOK: &str = "a hook of git may run programs that it names";
const VERSION_CONTROL: &str = "it belongs to a version control system, which may run it";
const EDITOR: &str = "an editor that opens the folder may run programs that it names";
const AGENT: &str = "an agent that works in the folder may run programs that it names";
const CONTAINER: &str = "an editor runs the commands that it names when it starts the container";
const TOOLCHAIN: &str =
    "cargo and rustc run programs that it names, also for a prompt or an editor";
const SHELL: &str = "a shell runs it when it starts or ends";
const SESSION: &str = "a session of the user runs it, or programs that it names";
const INTERPRETER: &str = "an interpreter or debugger that starts in the folder may run it";

const fn git(path: &'static str, reason: &'static str) -> UnaskedEntry {
    UnaskedEntry { path, reason, is_of_git: true }
}

const fn other(path: &'static str, reason: &'static str) -> UnaskedEntry {
    UnaskedEntry { path, reason, is_of_git: false }
}

/// The folder of hooks that the settings of the workspace's repository name.
pub(super) static HOOKS: UnaskedEntry =
    git("hooks", "git runs the hooks in it: its settings name the folder");

/// Files that the settings of the workspace's repository name.
pub(super) static SETTINGS: UnaskedEntry =
    git("settings", "git reads or runs it: the settings of the repository name it");

/// A link into the store, where the folders of workers are.
pub(super) static STORE: UnaskedEntry =
    other("store", "it leads into the store, where workers can leave what programs run");

pub(super) const TABLE: &[UnaskedEntry] = &[
    git(".git", GIT),
    git(".gitmodules", "git takes the addresses and settings of submodules from it"),
    git(".gitattributes", "git runs filters of its settings on the files that it names"),
    git(".gitconfig", GIT),
    git(".config/git", GIT),
    // Version control.
    other(".hg", VERSION_CONTROL),
    other(".hgrc", VERSION_CONTROL),
    other(".jj", VERSION_CONTROL),
    other(".sl", VERSION_CONTROL),
    // Programs that hooks of git start.
    other(".githooks", HOOK),
    other(".husky", HOOK),
    other(".huskyrc", HOOK),
    other(".pre-commit-config.yaml", HOOK),
    other(".pre-commit-config.yml", HOOK),
    other(".lefthook", HOOK),
    other(".lefthook.json", HOOK),
    other(".lefthook.toml", HOOK),
    other(".lefthook.yaml", HOOK),
    other(".lefthook.yml", HOOK),
    other(".lefthook.jsonc", HOOK),
    other(".lefthook-local.json", HOOK),
    other(".lefthook-local.jsonc", HOOK),
    other(".lefthook-local.toml", HOOK),
    other(".lefthook-local.yaml", HOOK),
    other(".lefthook-local.yml", HOOK),
    other("lefthook.json", HOOK),
    other("lefthook.jsonc", HOOK),
    other("lefthook-local.jsonc", HOOK),
    other(".git-hooks", HOOK),
    other(".trunk", HOOK),
    other("captainhook.json", HOOK),
    other("grumphp.yml", HOOK),
    other("hk.pkl", HOOK),
    other("prek.toml", HOOK),
    other("lefthook.toml", HOOK),
    other("lefthook.yaml", HOOK),
    other("lefthook.yml", HOOK),
    other("lefthook-local.json", HOOK),
    other("lefthook-local.toml", HOOK),
    other("lefthook-local.yaml", HOOK),
    other("lefthook-local.yml", HOOK),
    other(".overcommit.yml", HOOK),
    // Environments of folders: direnv, mise, asdf, devbox and their kind.
    other(".envrc", ENVIRONMENT),
    other(".direnv", ENVIRONMENT),
    other(".direnvrc", ENVIRONMENT),
    other(".config/direnv", ENVIRONMENT),
    other(".mise", ENVIRONMENT),
    other("mise/config.toml", ENVIRONMENT),
    other(".config/mise", ENVIRONMENT),
    other(".mise.toml", ENVIRONMENT),
    other(".mise.local.toml", ENVIRONMENT),
    other("mise.toml", ENVIRONMENT),
    other("mise.local.toml", ENVIRONMENT),
    other("mise.dev.toml", ENVIRONMENT),
    other(".miserc.toml", ENVIRONMENT),
    other("mise/config.local.toml", ENVIRONMENT),
    other(".autoenv", ENVIRONMENT),
    other(".autoenv.leave", ENVIRONMENT),
    other(".flox", ENVIRONMENT),
    other(".idx", CONTAINER),
    other(".rtx.toml", ENVIRONMENT),
    other(".config/mise.toml", ENVIRONMENT),
    other(".tool-versions", ENVIRONMENT),
    other("devbox.json", ENVIRONMENT),
    other(".devbox", ENVIRONMENT),
    other("devenv.nix", ENVIRONMENT),
    other("devenv.yaml", ENVIRONMENT),
    other(".shadowenv.d", ENVIRONMENT),
    other(".autoenv.zsh", ENVIRONMENT),
    other(".autoenv_leave.zsh", ENVIRONMENT),
    other(".rvmrc", ENVIRONMENT),
    // Editors.
    other(".vscode", EDITOR),
    other("*.code-workspace", EDITOR),
    other(".idea", EDITOR),
    other("rust-analyzer.toml", EDITOR),
    other(".fleet", EDITOR),
    other(".zed", EDITOR),
    other(".helix", EDITOR),
    other(".vs", EDITOR),
    other(".exrc", EDITOR),
    other(".nvimrc", EDITOR),
    other(".nvim.lua", EDITOR),
    other(".lazy.lua", EDITOR),
    other("_vimrc", EDITOR),
    other(".config/nvim", EDITOR),
    other(".vimrc", EDITOR),
    other(".gvimrc", EDITOR),
    other(".lvimrc", EDITOR),
    other(".vim", EDITOR),
    other(".dir-locals.el", EDITOR),
    other(".dir-locals-2.el", EDITOR),
    other(".emacs", EDITOR),
    other(".emacs.d", EDITOR),
    other(".ycm_extra_conf.py", EDITOR),
    other(".devcontainer", CONTAINER),
    other(".devcontainer.json", CONTAINER),
    other(".gitpod.yml", CONTAINER),
    // Agents and their tools.
    other(".aider.conf.yml", AGENT),
    other(".amazonq", AGENT),
    other(".claude", AGENT),
    other(".clinerules", AGENT),
    other(".factory", AGENT),
    other(".kilocode", AGENT),
    other(".trae", AGENT),
    other(".claude.json", AGENT),
    other(".codex", AGENT),
    other(".continue", AGENT),
    other(".continuerc.json", AGENT),
    other(".copilot", AGENT),
    other(".crush.json", AGENT),
    other("crush.json", AGENT),
    other(".cursor", AGENT),
    other(".gemini", AGENT),
    other(".github/hooks", AGENT),
    other(".junie", AGENT),
    other(".kiro", AGENT),
    other(".mcp.json", AGENT),
    other(".opencode", AGENT),
    other("opencode.json", AGENT),
    other("opencode.jsonc", AGENT),
    other(".openhands", AGENT),
    other(".qwen", AGENT),
    other(".roo", AGENT),
    other(".windsurf", AGENT),
    // Toolchains that prompts query for their version, and editors for more.
    other(".cargo/config", TOOLCHAIN),
    other(".cargo/config.toml", TOOLCHAIN),
    other("rust-toolchain", TOOLCHAIN),
    other("rust-toolchain.toml", TOOLCHAIN),
    // Interpreters and debuggers that read a file of the folder.
    other(".gdbinit", INTERPRETER),
    other(".lldbinit", INTERPRETER),
    other(".pdbrc", INTERPRETER),
    other(".ghci", INTERPRETER),
    other(".ocamlinit", INTERPRETER),
    other(".irbrc", INTERPRETER),
    other("sitecustomize.py", INTERPRETER),
    other("usercustomize.py", INTERPRETER),
    other(".pryrc", INTERPRETER),
    other(".rprofile", INTERPRETER),
    // Shells and sessions, for a workspace that is a home directory.
    other(".bashrc", SHELL),
    other(".bash_aliases", SHELL),
    other(".bash_completion", SHELL),
    other(".bash_login", SHELL),
    other(".bash_logout", SHELL),
    other(".bash_profile", SHELL),
    other(".cshrc", SHELL),
    other(".kshrc", SHELL),
    other(".login", SHELL),
    other(".logout", SHELL),
    other(".mkshrc", SHELL),
    other(".profile", SHELL),
    other(".tcshrc", SHELL),
    other(".zlogin", SHELL),
    other(".zlogout", SHELL),
    other(".zprofile", SHELL),
    other(".zshenv", SHELL),
    other(".zshrc", SHELL),
    other(".config/fish", SHELL),
    other(".local/bin", SESSION),
    other(".config/autostart", SESSION),
    other(".config/environment.d", SESSION),
    other(".config/systemd", SESSION),
    other(".local/share/systemd", SESSION),
    other(".pam_environment", SESSION),
    other(".config/starship.toml", SESSION),
    other(".inputrc", SESSION),
    other(".lessfilter", SESSION),
    other(".screenrc", SESSION),
    other(".ssh", SESSION),
    other(".tmux.conf", SESSION),
    other(".config/tmux", SESSION),
    other(".wezterm.lua", SESSION),
    other(".xinitrc", SESSION),
    other(".xprofile", SESSION),
    other(".xsession", SESSION),
    other(".xsessionrc", SESSION),
];
