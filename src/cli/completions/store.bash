
# Completes values from the store; what it does not know, the function above completes. The program
# escapes the words, takes only a moment, and prints no errors.
_swarmletfs() {
    local found
    if [[ $COMP_CWORD -gt 1 && $2 != -* ]] && found=$(
        command swarmletfs __complete bash -- "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null
    ); then
        # Words of the tree are no files of the current folder.
        compopt +o default +o bashdefault -o nospace 2>/dev/null
        COMPREPLY=()
        [[ -z $found ]] || mapfile -t COMPREPLY <<<"$found"
        return 0
    fi
    _swarmletfs_static "$@"
}
