"""Event recordings and images as time-major, channels-last batches.

    recordings = snn.data.cifar10_dvs("~/data")
    train, test = snn.data.split(recordings, fraction=0.1, seed=0)
    frames = snn.data.TimeBins(10, size=(48, 48))
    for x, labels in snn.data.batches(train, frames, 32, shuffle=True, epochs=100):
        ...  # x [10, 32, 48, 48, 2], labels [32]

A set is `Samples`: what it holds is read when it is asked for. An encoder (`TimeBins`,
`EventBins`; for images `Repeat`, `Columns`, `Pixels`) makes the same number of time
steps of each. `batches` shuffles, augments, keeps on disk, and puts them together.
Nothing is ever downloaded. Needs the extra `data`.
"""

from ._augment import Augmentation as Augmentation
from ._augment import Drop as Drop
from ._augment import Flip as Flip
from ._augment import Shift as Shift
from ._batches import FILLER as FILLER
from ._batches import batches as batches
from ._direct import Columns as Columns
from ._direct import Pixels as Pixels
from ._direct import Repeat as Repeat
from ._events import cifar10_dvs as cifar10_dvs
from ._events import dvs_gesture as dvs_gesture
from ._events import n_mnist as n_mnist
from ._frames import EventBins as EventBins
from ._frames import TimeBins as TimeBins
from ._images import cifar10 as cifar10
from ._images import image_folder as image_folder
from ._samples import Samples as Samples
from ._samples import from_arrays as from_arrays
from ._split import split as split
from ._spoken import shd as shd
from ._spoken import ssc as ssc
