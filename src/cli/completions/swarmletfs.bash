# Completes a line. The program escapes the words, takes only a moment, and prints no errors.
_swarmletfs() {
    local found
    found=$(SWARMLETFS_COMPLETE=bash command swarmletfs -- "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
    COMPREPLY=()
    [[ -z $found ]] || mapfile -t COMPREPLY <<<"$found"
}
complete -o nospace -o nosort -o bashdefault -F _swarmletfs swarmletfs
