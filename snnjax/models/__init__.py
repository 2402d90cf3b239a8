"""Spiking networks, each in one readable file."""

from ._dvs_gesture import DVSGestureNet as DVSGestureNet
from ._meta_spikeformer import MetaConvBlock as MetaConvBlock
from ._meta_spikeformer import MetaSpikeformer as MetaSpikeformer
from ._meta_spikeformer import MetaTransformerBlock as MetaTransformerBlock
from ._meta_spikeformer import SpikingDownsampling as SpikingDownsampling
from ._qkformer import QKFormer as QKFormer
from ._qkformer import SpikingPatchEmbedding as SpikingPatchEmbedding
from ._sequential_cifar import SequentialCIFARNet as SequentialCIFARNet
from ._sew_resnet import SEWBlock as SEWBlock
from ._sew_resnet import SEWResNet as SEWResNet
from ._spikformer import Spikformer as Spikformer
from ._spikformer import SpikformerBlock as SpikformerBlock
from ._spikformer import SpikingMLP as SpikingMLP
from ._spikformer import SpikingPatchSplitting as SpikingPatchSplitting
from ._spiking_vgg import SpikingVGG as SpikingVGG
from ._vgg import CIFAR10DVSVGG as CIFAR10DVSVGG
from ._vgg import VGGBlock as VGGBlock
