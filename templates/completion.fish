# fish completion of %(prog_name)s; made by: hpcrun completion fish
function %(complete_func)s
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    for line in (%(argv)s fish $words -- "$current" </dev/null 2>/dev/null)
        switch $line
            case 'file,*'
                __fish_complete_path $current
            case '*'
                string replace -r '^[a-z]*,' '' -- $line
        end
    end
end
complete -c %(prog_name)s -e
complete -c %(prog_name)s -f -k -a '(%(complete_func)s)'
