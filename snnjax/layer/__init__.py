"""Layers over `[time, batch, ...]`: Flax's, spiking norms, blocks and attention.

Time and batch are in front, channels are last. A block is a projection, its batch norm
and its neuron, the unit that a network is made of and that the memory planner targets.
"""

from ._attention import SpikeDrivenSelfAttention as SpikeDrivenSelfAttention
from ._attention import SpikingSelfAttention as SpikingSelfAttention
from ._attention import TokenQKAttention as TokenQKAttention
from ._batch_norm import TemporalEffectiveBatchNorm as TemporalEffectiveBatchNorm
from ._batch_norm import ThresholdDependentBatchNorm as ThresholdDependentBatchNorm
from ._block import ConvBlock as ConvBlock
from ._block import LinearBlock as LinearBlock
from ._block import MakeNeuron as MakeNeuron
from ._flax import AvgPool as AvgPool
from ._flax import BatchNorm as BatchNorm
from ._flax import Conv as Conv
from ._flax import Dropout as Dropout
from ._flax import Flatten as Flatten
from ._flax import Linear as Linear
from ._flax import MaxPool as MaxPool
from ._flax import Sequential as Sequential
from ._flax import fold as fold
from ._norm_neuron import NormNeuron as NormNeuron
from ._rep_conv import RepConv as RepConv
