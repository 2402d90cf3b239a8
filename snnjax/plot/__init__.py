"""Pictures of memory and of spikes; matplotlib is imported when one is drawn.

pip install "snnjax[plot]"

Every function draws on matplotlib axes, those that it is given or new ones, and returns
them: `ax.figure.savefig("picture.png")` saves the picture.
"""

from ._breakdown import memory_breakdown as memory_breakdown
from ._growth import peak_over as peak_over
from ._pareto import HasFront as HasFront
from ._pareto import pareto as pareto
from ._program import HasLiveBytes as HasLiveBytes
from ._program import memory_over_program as memory_over_program
from ._spikes import membrane as membrane
from ._spikes import raster as raster
