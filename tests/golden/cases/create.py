"""Cases of the create family."""
import torch

from . import case, rand, x0

case("clone", [rand(3, 4)], [x0], torch.clone)
case("contiguous", [rand(3, 4)], [x0], torch.clone)
