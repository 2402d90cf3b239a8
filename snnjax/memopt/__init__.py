"""The planner: trains a model in less memory, with the same gradients.

`memory_optimization` is the one call; `make_plan` and `apply_plan` are its two halves;
`measure` and `residual_bytes` say what a step takes.
"""

from ._apply import apply_plan as apply_plan
from ._checkpoint import checkpoint as checkpoint
from ._chunked import chunked_segment as chunked_segment
from ._compress import BaseSpikeCompressor as BaseSpikeCompressor
from ._compress import BitSpikeCompressor as BitSpikeCompressor
from ._compress import BooleanSpikeCompressor as BooleanSpikeCompressor
from ._compress import IntegerSpikeCompressor as IntegerSpikeCompressor
from ._compress import NullSpikeCompressor as NullSpikeCompressor
from ._compress import Payload as Payload
from ._compress import SparseSpikeCompressor as SparseSpikeCompressor
from ._compress import Uint8SpikeCompressor as Uint8SpikeCompressor
from ._container import BCGCContainer as BCGCContainer
from ._container import GCContainer as GCContainer
from ._container import TCGCContainer as TCGCContainer
from ._devices import DEVICES as DEVICES
from ._devices import DeviceSpec as DeviceSpec
from ._devices import device_spec as device_spec
from ._grid import Grid as Grid
from ._measure import MeasureError as MeasureError
from ._measure import MemoryReport as MemoryReport
from ._measure import measure as measure
from ._measure import time_alternating as time_alternating
from ._optimize import make_plan as make_plan
from ._optimize import memory_optimization as memory_optimization
from ._plan import Plan as Plan
from ._plan import PlannedSegment as PlannedSegment
from ._plan import Trial as Trial
from ._residuals import residual_bytes as residual_bytes
from ._residuals import residual_shapes as residual_shapes
from ._searching import BudgetError as BudgetError
from ._segment import gc_segment as gc_segment
from ._summary import MemOptSummary as MemOptSummary
from ._timeline import LiveBuffer as LiveBuffer
from ._timeline import Timeline as Timeline
from ._verify import verify as verify
