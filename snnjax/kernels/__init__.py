"""GPU kernels (Pallas), and the choice between them and XLA's own programs.

Nothing here is meant to be called by a user: neurons and compressors take
`implementation=None | "xla" | "pallas"` and choose.
"""

from ._bitpack import bitpack_refusal as bitpack_refusal
from ._bitpack import pack as pack
from ._bitpack import unpack as unpack
from ._choice import check_implementation as check_implementation
from ._choice import choose as choose
from ._choice import is_local as is_local
from ._lif import lif_backward as lif_backward
from ._lif import lif_forward as lif_forward
from ._lif import lif_refusal as lif_refusal
