from hpcrun.logs.files import LogFile as LogFile
from hpcrun.logs.files import Tail as Tail
from hpcrun.logs.files import find_attempt as find_attempt
from hpcrun.logs.files import find_last_lines as find_last_lines
from hpcrun.logs.files import find_next_attempt as find_next_attempt
from hpcrun.logs.files import list_log_files as list_log_files
from hpcrun.logs.files import read_at as read_at
from hpcrun.logs.files import sanitize_for_terminal as sanitize_for_terminal
