"""The values of variables in a converted job, compared with those that bash gives the script."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from hpcrun.convert import convert_script

HEAD = "#!/bin/bash\n#SBATCH --gpus=1\n#SBATCH --cpus-per-task=2\n"
CALL = 'srun python t.py --n="$N" --m $M ${N}_"$M" "~/x" $N.*\n'
LINES = r"""
N=1; N=2
N=1; if true; then N=2; fi
N=1; false && N=2
N=1; (N=2); M=$N
f() { N=2; }; N=1; f
f() { g; }; g() { N=8; }; N=1; f
f() { local N=2; }; N=1; f; M=$N
f() { echo $N; }; N=3; M=$(f)
N=1; for N in 3 4; do :; done
N=1; while read N; do M=$N; done < <(printf '5\n6\n')
N=1; case a in a) N=2;; esac
: ${N:=5}; M=${N:+set}
N=; : ${N:=5}; M=${UNSET-d}
N=; M=${N-unset}
N=1; declare -i M; M=2+3
typeset -l N; N=ABC
declare N=$(echo 4); export M=$N
N=1; export N=4; M=$N
N=1; N+=2; M=$N$N
N=$'a\tb'; M='c d'
N=~/x; M=a:~/b
N='~/x'; M='{a,b}'
N={a,b}; M='*.none'
N=a M=$N
N=1 M=2
N=abc; M=${N^^}; N=${N#a}
x=5; N=x; M=${!N}
N=1; eval M=9; let N=N+5
N=1; printf -v M '%03d' 7
read N M <<< "p q"
A=(); A+=(x y); N=${A[@]}; M=${#A[@]}
A=(a b); A[1]=z; N=${A[1]}
A=(a b c); n=0; for a in "${A[@]}"; do ((n += 1)); N=$n$a; done; M=${A[*]:1}
N=1; A=$((N += 5)); M=$A
N=5; ((N -= 2, M = N))
N=5; (( N <= 5 )) && M=yes
N=010; M=$((N))
for ((i = 0; i < 3; i++)); do N=$i; done
N=1; [ $((N = 3)) ]; M=$N
set -- 4 5 6; shift; N=$1; M=$#
N="a # b"; M="a\"b"
N="\$HOME"; M=\$HOME
"""


def unescape(text: str) -> str:
    """Return a text of a job without the escapes of its placeholders."""
    marked = text.replace("{{", "\0").replace("}}", "\1")
    return marked.replace("\0", "{").replace("\1", "}")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a python that shows its arguments, and an srun that starts one rank."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "python").write_text("#!/bin/bash\nprintf '[%s]' \"$@\"\n")
    (folder / "srun").write_text('#!/bin/bash\nexec "$@"\n')
    for one in folder.iterdir():
        one.chmod(0o755)
    return folder


@pytest.mark.parametrize("line", LINES.strip().split("\n"))
def test_arguments_are_those_of_the_script(line: str, programs: Path, tmp_path: Path) -> None:
    def run(text: str) -> str:
        env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)}
        argv = ["bash", "-c", text]
        done = subprocess.run(
            argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    script = f"{HEAD}{line}\n{CALL}"
    made = convert_script(script, "a", project=str(tmp_path), home=str(tmp_path))
    assert made.is_complete
    job = made.job
    lines = [f"export {name}={shlex.quote(text)}" for name, text in job.get("env", {}).items()]
    lines += job.get("setup", {}).get("commands", [])
    argv = ["python", job["script"], *job.get("args", [])] if "script" in job else job["command"]
    ranks = shlex.join(unescape(word) for word in argv)
    assert run("\n".join(["set -e", *lines, ranks])) == run(script)
