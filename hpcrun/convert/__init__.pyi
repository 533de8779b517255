from hpcrun.convert.conversion import Conversion as Conversion
from hpcrun.convert.conversion import convert_script as convert_script
from hpcrun.convert.conversion import format_converted_job as format_converted_job
from hpcrun.convert.followed import follow_last_script as follow_last_script
from hpcrun.convert.remarks import Remark as Remark
