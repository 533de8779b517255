from hpcrun.lint.check import Finding as Finding
from hpcrun.lint.check import apply_fixes as apply_fixes
from hpcrun.lint.check import lint_script as lint_script
from hpcrun.lint.directives import parse_directives as parse_directives
from hpcrun.lint.formats import format_github as format_github
from hpcrun.lint.formats import format_sarif as format_sarif
from hpcrun.lint.formats import format_text as format_text
