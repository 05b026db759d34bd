"""Cases of the conv family."""
import torch
import torch.nn.functional as F

from . import case, distinct, rand, x0, x1, x2

case("conv2d", [rand(2, 3, 6, 7), rand(4, 3, 3, 3), rand(4)], [x0, x1, x2], F.conv2d, growth=16)
case("conv2d", [rand(2, 3, 6, 7), rand(4, 3, 3, 3), rand(4)], [x0, x1, x2, {"padding": 1, "stride": 2}],
     lambda x, w, b: F.conv2d(x, w, b, padding=1, stride=2), growth=16, tag="stride, padding")
case("conv2d", [rand(1, 4, 7, 7), rand(6, 2, 3, 2)], [x0, x1, None, {"padding": [1, 0], "dilation": [2, 1], "groups": 2}],
     lambda x, w: F.conv2d(x, w, padding=(1, 0), dilation=(2, 1), groups=2), growth=16, tag="dilation, groups")
case("conv2d", [rand(2, 3, 6, 7), rand(4, 3, 3, 3), rand(4)], [x0, x1, x2, {"activation": "relu", "padding": 1}],
     lambda x, w, b: torch.relu(F.conv2d(x, w, b, padding=1)), growth=16, tag="relu")
case("conv2d", [rand(2, 3, 5, 5), rand(4, 3, 1, 1)], [x0, x1], F.conv2d, growth=8, tag="1x1")
case("max_pool2d", [distinct(2, 3, 6, 7)], [x0, 2], lambda x: F.max_pool2d(x, 2))
case("max_pool2d", [distinct(1, 2, 7, 7)], [x0, 3, {"stride": 2, "padding": 1}], lambda x: F.max_pool2d(x, 3, 2, 1),
     tag="stride, padding")
case("avg_pool2d", [rand(2, 3, 6, 7)], [x0, 2], lambda x: F.avg_pool2d(x, 2))
case("avg_pool2d", [rand(1, 2, 7, 7)], [x0, [3, 2], {"stride": 2, "padding": 1}], lambda x: F.avg_pool2d(x, (3, 2), 2, 1),
     tag="stride, padding")
case("adaptive_avg_pool2d", [rand(2, 3, 6, 7)], [x0, 1], lambda x: F.adaptive_avg_pool2d(x, 1), growth=8)
case("adaptive_avg_pool2d", [rand(2, 3, 6, 7)], [x0, [3, 4]], lambda x: F.adaptive_avg_pool2d(x, (3, 4)), growth=8, tag="3x4")
