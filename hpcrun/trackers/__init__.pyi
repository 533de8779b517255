from hpcrun.trackers.choose import make_tracker as make_tracker
from hpcrun.trackers.tracker import SYSTEM_PREFIX as SYSTEM_PREFIX
from hpcrun.trackers.tracker import MetricPoint as MetricPoint
from hpcrun.trackers.tracker import TrackedRun as TrackedRun
from hpcrun.trackers.tracker import Tracker as Tracker
