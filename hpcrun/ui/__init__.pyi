from hpcrun.ui.board import Board as Board
from hpcrun.ui.server import redirecting_file as redirecting_file
from hpcrun.ui.server import serve as serve
