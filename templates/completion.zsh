#compdef %(prog_name)s
# zsh completion of %(prog_name)s; made by: hpcrun completion zsh
%(complete_func)s() {
    local line takes_files
    local -a items suffix
    for line in "${(@f)$(%(argv)s zsh "${(@Q)words[2,CURRENT-1]}" -- "${(Q)PREFIX}" \
</dev/null 2>/dev/null)}"; do
        case $line in
        file,*) takes_files=yes ;;
        open,*) items+=("${line#*,}"); suffix=(-S '') ;;
        plain,*) items+=("${line#*,}") ;;
        esac
    done
    (( $#items )) && _describe -V 'hpcrun' items "${suffix[@]}"
    [[ -n $takes_files ]] && _files
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    compdef %(complete_func)s %(prog_name)s
fi
