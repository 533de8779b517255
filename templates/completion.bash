# bash completion of @COMMAND@ (hpcrun @VERSION@); made by: hpcrun completion bash
_@FUNCTION@() {
    local kind='' value
    COMPREPLY=()
    {
        IFS= read -r kind
        while IFS= read -r value; do COMPREPLY+=("$value"); done
    } < <(@ARGV@ bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" </dev/null 2>/dev/null)
    case $kind in
    files) compopt -o default ;;
    both) compopt -o filenames ;;
    open) compopt -o nospace ;;
    esac
} 2>/dev/null
# bash before 4.4 knows no nosort.
complete -o nosort -F _@FUNCTION@ @COMMAND@ 2>/dev/null || complete -F _@FUNCTION@ @COMMAND@
