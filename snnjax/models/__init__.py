"""Spiking networks, each in one readable file."""

from ._vgg import CIFAR10DVSVGG as CIFAR10DVSVGG
from ._vgg import VGGBlock as VGGBlock
