# Completes values from the store; what it does not know, the function above completes. The program
# takes only a moment and prints no errors; zsh escapes the words.
_swarmletfs() {
    local found
    local -a values
    if (( CURRENT > 2 )) && [[ $PREFIX != -* || $PREFIX == --*=* ]] && found=$(
        command swarmletfs __complete zsh -- \
            "${(@Q)words[1,CURRENT-1]}" "$QIPREFIX$PREFIX" 2>/dev/null
    ); then
        [[ $PREFIX != --*=* ]] || compset -P 1 '*='
        local ret=1
        values=("${(@M)${(@f)found}:#=*}")
        (( ! $#values )) || { compadd -- "${(@)values#=}" && ret=0 }
        values=("${(@M)${(@f)found}:#+*}")
        (( ! $#values )) || { compadd -S '' -- "${(@)values#+}" && ret=0 }
        return ret
    fi
    _swarmletfs_static "$@"
}

