# bash completion of %(prog_name)s; made by: hpcrun completion bash
%(complete_func)s() {
    local kind value
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
        plain) COMPREPLY+=("$value") ;;
        open) COMPREPLY+=("$value") && compopt -o nospace ;;
        file)
            if ((${#COMPREPLY[@]} == 0)); then
                compopt -o default
            else
                compopt -o filenames
                while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -f -- "$2")
            fi
            ;;
        esac
    done < <(%(argv)s bash "$2" "${COMP_LINE:0:COMP_POINT}" </dev/null 2>/dev/null)
} 2>/dev/null
complete -o nosort -F %(complete_func)s %(prog_name)s 2>/dev/null ||
    complete -F %(complete_func)s %(prog_name)s
