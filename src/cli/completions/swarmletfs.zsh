
# clap's function would quote the ~ of a home folder.
_swarmletfs() {
    if [[ $PREFIX == \~* ]]; then _files; else _clap_dynamic_completer_swarmletfs; fi
}
compdef _swarmletfs swarmletfs
# The first call of a function that was loaded by its name.
[[ $funcstack[1] != _swarmletfs ]] || _swarmletfs
