from hpcrun.logs.files import LogFile as LogFile
from hpcrun.logs.files import Tail as Tail
from hpcrun.logs.files import end_in as end_in
from hpcrun.logs.files import for_terminal as for_terminal
from hpcrun.logs.files import log_files as log_files
from hpcrun.logs.files import part_of as part_of
from hpcrun.logs.files import read_at as read_at
from hpcrun.logs.files import start_of_last as start_of_last
