from hpcrun.secrets.kinds import is_secret_name as is_secret_name
from hpcrun.secrets.kinds import looks_random as looks_random
from hpcrun.secrets.mask import FileMasker as FileMasker
from hpcrun.secrets.mask import Masker as Masker
from hpcrun.secrets.mask import SecretMark as SecretMark
from hpcrun.secrets.mask import contains_secret as contains_secret
from hpcrun.secrets.mask import is_secret_setting as is_secret_setting
from hpcrun.secrets.mask import mark_secrets as mark_secrets
