"""Cases of the view family."""
import torch

from . import case, rand, x0

case("view", [rand(3, 4)], [x0, [2, -1]], lambda x: x.view(2, 6))
case("reshape", [rand(3, 4)], [x0, [2, 6]], lambda x: x.reshape(2, 6))
case("flatten", [rand(2, 3, 4)], [x0, 2], lambda x: x.flatten(1))
case("unflatten", [rand(2, 12)], [x0, 2, [3, -1]], lambda x: x.unflatten(1, (3, 4)))
case("transpose", [rand(2, 3, 4)], [x0, 1, -1], lambda x: x.transpose(0, 2))
case("permute", [rand(2, 3, 4)], [x0, [3, 1, 2]], lambda x: x.permute(2, 0, 1))
case("t", [rand(3, 4)], [x0], torch.t)
case("squeeze", [rand(2, 1, 3, 1)], [x0], torch.squeeze)
case("squeeze", [rand(2, 1, 3, 1)], [x0, 2], lambda x: x.squeeze(1), tag="one dim")
case("unsqueeze", [rand(2, 3)], [x0, 3], lambda x: x.unsqueeze(2))
case("expand", [rand(2, 1, 3)], [x0, [4, 2, 5, -1]], lambda x: x.expand(4, 2, 5, 3), growth=24)
case("narrow", [rand(3, 5)], [x0, 2, 2, 3], lambda x: x.narrow(1, 1, 3))
case("select", [rand(3, 5)], [x0, 2, -1], lambda x: x.select(1, -1))
case("slice", [rand(3, 9)], [x0, 2, 2, 8, 3], lambda x: x[:, 1:8:3])
case("diagonal", [rand(4, 5)], [x0], lambda x: x.diagonal())
case("diagonal", [rand(2, 4, 5)], [x0, 1, 2, 3], lambda x: x.diagonal(1, 1, 2), tag="of matrices")
case("unfold", [rand(2, 7)], [x0, 2, 3, 2], lambda x: x.unfold(1, 3, 2), growth=8)
case("unfold", [rand(5, 3)], [x0, 1, 2, 3], lambda x: x.unfold(0, 2, 3), tag="gaps")
