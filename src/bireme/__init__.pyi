from bireme.api.jobs import Job as Job
from bireme.api.jobs import Run as Run
from bireme.api.jobs import RunStatus as RunStatus
from bireme.api.jobs import load as load
from bireme.api.jobs import run as run
from bireme.api.jobs import runs as runs
from bireme.api.models import Model as Model
from bireme.api.models import model as model
from bireme.core.errors import BiremeError as BiremeError
from bireme.job.status import JobStatus as JobStatus
from bireme.job.status import PassSummary as PassSummary

__version__: str
