# fish completion of @COMMAND@ (hpcrun @VERSION@); made by: hpcrun completion fish
function _@FUNCTION@
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    set -l answer (@ARGV@ fish $words -- "$current" </dev/null 2>/dev/null)
    test (count $answer) -gt 1; and printf '%s\n' $answer[2..-1]
    if contains -- "$answer[1]" files both
        __fish_complete_path $current
    end
end
complete -c @COMMAND@ -e
complete -c @COMMAND@ -f -k -a '(_@FUNCTION@)'
