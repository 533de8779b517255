#compdef @COMMAND@
# zsh completion of @COMMAND@ (hpcrun @VERSION@); made by: hpcrun completion zsh
_@FUNCTION@() {
    local kind line
    local -a answer items suffix
    answer=("${(@f)$(@ARGV@ zsh "${(@Q)words[2,CURRENT-1]}" -- "${(Q)PREFIX}" </dev/null 2>/dev/null)}")
    kind=${answer[1]}
    items=("${(@)answer[2,-1]}")
    [[ $kind == open ]] && suffix=(-S '')
    (( $#items )) && [[ -n ${items[1]} ]] && _describe -V 'hpcrun' items "${suffix[@]}"
    [[ $kind == files || $kind == both ]] && _files
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _@FUNCTION@ "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    compdef _@FUNCTION@ @COMMAND@
fi
