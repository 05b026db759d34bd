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
case("conv1d", [rand(2, 4, 9), rand(6, 4, 3), rand(6)], [x0, x1, x2], F.conv1d, growth=16)
case("conv1d", [rand(2, 4, 9), rand(6, 2, 3), rand(6)],
     [x0, x1, x2, {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}],
     lambda x, w, b: F.conv1d(x, w, b, 2, 2, 2, 2), growth=16, tag="all options")
case("conv1d", [rand(2, 3, 7), rand(4, 3, 3)], [x0, x1, None, {"activation": "relu", "padding": 1}],
     lambda x, w: torch.relu(F.conv1d(x, w, padding=1)), growth=16, tag="relu")
case("conv3d", [rand(2, 2, 4, 5, 4), rand(4, 2, 2, 3, 2), rand(4)], [x0, x1, x2], F.conv3d, growth=16)
case("conv3d", [rand(1, 4, 5, 4, 5), rand(4, 2, 3, 2, 2), rand(4)],
     [x0, x1, x2, {"stride": [2, 1, 2], "padding": [2, 1, 0], "dilation": [2, 1, 2], "groups": 2}],
     lambda x, w, b: F.conv3d(x, w, b, (2, 1, 2), (2, 1, 0), (2, 1, 2), 2), growth=16, tag="all options")
case("conv_transpose1d", [rand(2, 4, 5), rand(4, 3, 3), rand(3)], [x0, x1, x2], F.conv_transpose1d, growth=16)
case("conv_transpose1d", [rand(2, 4, 5), rand(4, 3, 3), rand(6)],
     [x0, x1, x2, {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2, "dilation": 2}],
     lambda x, w, b: F.conv_transpose1d(x, w, b, 3, 1, 2, 2, 2), growth=16, tag="all options")
case("conv_transpose2d", [rand(2, 3, 4, 5), rand(3, 4, 3, 3), rand(4)], [x0, x1, x2], F.conv_transpose2d, growth=16)
case("conv_transpose2d", [rand(1, 4, 4, 3), rand(4, 3, 3, 2), rand(6)],
     [x0, x1, x2, {"stride": [2, 3], "padding": [1, 0], "output_padding": [1, 2], "groups": 2, "dilation": [1, 2]}],
     lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 3), (1, 0), (1, 2), 2, (1, 2)), growth=16, tag="all options")
case("conv_transpose3d", [rand(1, 2, 2, 3, 2), rand(2, 3, 2, 2, 3), rand(3)], [x0, x1, x2], F.conv_transpose3d,
     growth=16)
case("conv_transpose3d", [rand(1, 4, 3, 2, 3), rand(4, 1, 2, 2, 3), rand(2)],
     [x0, x1, x2, {"stride": [2, 1, 3], "padding": [1, 0, 1], "output_padding": [1, 0, 2], "groups": 2,
                   "dilation": [3, 1, 1]}],
     lambda x, w, b: F.conv_transpose3d(x, w, b, (2, 1, 3), (1, 0, 1), (1, 0, 2), 2, (3, 1, 1)), growth=16,
     tag="all options")
case("conv2d", [rand(2, 3, 5, 6), rand(4, 3, 2, 4), rand(4)], [x0, x1, x2, {"padding": "same", "dilation": [1, 2]}],
     lambda x, w, b: F.conv2d(x, w, b, padding="same", dilation=(1, 2)), growth=16, tag="same")
case("conv2d", [rand(2, 3, 5, 6), rand(4, 3, 3, 2)], [x0, x1, None, {"padding": "valid", "stride": 2}],
     lambda x, w: F.conv2d(x, w, padding="valid", stride=2), growth=16, tag="valid")
case("conv1d", [rand(2, 3, 7), rand(4, 3, 4)], [x0, x1, None, {"padding": "same"}],
     lambda x, w: F.conv1d(x, w, padding="same"), growth=16, tag="same")
case("conv3d", [rand(1, 2, 4, 3, 4), rand(2, 2, 2, 3, 2)], [x0, x1, None, {"padding": "same", "dilation": [1, 1, 2]}],
     lambda x, w: F.conv3d(x, w, padding="same", dilation=(1, 1, 2)), growth=16, tag="same")

# Maxima: with a dimension, with gaps, with windows that end beyond the padding, and with the places they are at.
case("max_pool2d", [distinct(1, 2, 8, 7)], [x0, [2, 3], {"stride": 2, "padding": 1, "dilation": [3, 1]}],
     lambda x: F.max_pool2d(x, (2, 3), 2, 1, (3, 1)), tag="dilation")
case("max_pool2d", [distinct(2, 2, 6, 5)], [x0, 3, {"stride": 2, "padding": 1, "ceil_mode": True}],
     lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), tag="ceil_mode")
case("max_pool2d", [distinct(2, 2, 6, 5)], [x0, 3, {"stride": 2, "padding": 1, "ceil_mode": True, "return_indices": True}],
     lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True), tag="return_indices")
case("max_pool2d", [distinct(1, 1, 18, 17)], [x0, [17, 16]], lambda x: F.max_pool2d(x, (17, 16)), tag="large")
case("max_pool1d", [distinct(2, 3, 9)], [x0, 2], lambda x: F.max_pool1d(x, 2))
case("max_pool1d", [distinct(2, 2, 11)],
     [x0, 3, {"stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True, "return_indices": True}],
     lambda x: F.max_pool1d(x, 3, 2, 1, 2, True, True), tag="all options")
case("max_pool3d", [distinct(1, 2, 4, 5, 4)], [x0, 2], lambda x: F.max_pool3d(x, 2))
case("max_pool3d", [distinct(1, 2, 5, 6, 7)],
     [x0, [3, 2, 3], {"stride": [2, 2, 1], "padding": [1, 1, 0], "dilation": [1, 2, 2], "ceil_mode": True, "return_indices": True}],
     lambda x: F.max_pool3d(x, (3, 2, 3), (2, 2, 1), (1, 1, 0), (1, 2, 2), True, True), tag="all options")
case("adaptive_max_pool1d", [distinct(2, 3, 7)], [x0, 3], lambda x: F.adaptive_max_pool1d(x, 3))
case("adaptive_max_pool2d", [distinct(2, 3, 6, 7)], [x0, 2], lambda x: F.adaptive_max_pool2d(x, 2))
case("adaptive_max_pool2d", [distinct(2, 3, 6, 7)], [x0, [3, 4], {"return_indices": True}],
     lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), tag="return_indices")
case("adaptive_max_pool3d", [distinct(1, 2, 4, 5, 6)], [x0, [2, 3, 4], {"return_indices": True}],
     lambda x: F.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True))
case("max_unpool1d", [rand(2, 3, 4), torch.tensor([0, 3, 4, 7]).expand(2, 3, 4).contiguous()], [x0, x1, 2],
     lambda x, i: F.max_unpool1d(x, i, 2))
case("max_unpool2d", [rand(2, 2, 2, 2), torch.tensor([[0, 3], [14, 11]]).expand(2, 2, 2, 2).contiguous()], [x0, x1, 2],
     lambda x, i: F.max_unpool2d(x, i, 2))
case("max_unpool2d", [rand(1, 2, 2, 2), torch.tensor([[0, 9], [14, 7]]).expand(1, 2, 2, 2).contiguous()],
     [x0, x1, 3, {"stride": 2, "padding": 1, "output_size": [4, 4]}],
     lambda x, i: F.max_unpool2d(x, i, 3, 2, 1, (4, 4)), tag="output_size")
case("max_unpool3d", [rand(1, 2, 2, 1, 2), torch.tensor([[[0, 3]], [[12, 11]]]).expand(1, 2, 2, 1, 2).contiguous()],
     [x0, x1, 2, {"output_size": [4, 2, 4]}], lambda x, i: F.max_unpool3d(x, i, 2, output_size=(4, 2, 4)))

# Means.
case("avg_pool2d", [rand(2, 2, 6, 5)], [x0, 3, {"stride": 2, "padding": 1, "ceil_mode": True}],
     lambda x: F.avg_pool2d(x, 3, 2, 1, True), tag="ceil_mode")
case("avg_pool2d", [rand(2, 2, 6, 5)], [x0, 3, {"stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False}],
     lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), tag="without padding")
case("avg_pool2d", [rand(2, 2, 6, 5)], [x0, [2, 3], {"padding": 1, "divisor_override": 5}],
     lambda x: F.avg_pool2d(x, (2, 3), padding=1, divisor_override=5), growth=8, tag="divisor")
case("avg_pool1d", [rand(2, 3, 9)], [x0, 2], lambda x: F.avg_pool1d(x, 2))
case("avg_pool1d", [rand(2, 3, 10)], [x0, 3, {"stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False}],
     lambda x: F.avg_pool1d(x, 3, 2, 1, True, False), tag="all options")
case("avg_pool3d", [rand(1, 2, 4, 5, 4)], [x0, 2], lambda x: F.avg_pool3d(x, 2), growth=8)
case("avg_pool3d", [rand(1, 2, 5, 4, 6)],
     [x0, [3, 2, 3], {"stride": 2, "padding": [1, 1, 0], "ceil_mode": True, "count_include_pad": False}],
     lambda x: F.avg_pool3d(x, (3, 2, 3), 2, (1, 1, 0), True, False), growth=8, tag="without padding")
case("avg_pool3d", [rand(1, 2, 3, 4, 3)], [x0, 2, {"stride": 1, "padding": 1, "divisor_override": 3}],
     lambda x: F.avg_pool3d(x, 2, 1, 1, divisor_override=3), growth=8, tag="divisor")
case("adaptive_avg_pool1d", [rand(2, 3, 7)], [x0, 3], lambda x: F.adaptive_avg_pool1d(x, 3), growth=8)
case("adaptive_avg_pool3d", [rand(1, 2, 4, 5, 6)], [x0, [2, 3, 4]], lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4)), growth=8)
case("lp_pool1d", [rand(2, 3, 7, low=0.25)], [x0, 2, 3, {"stride": 2}], lambda x: F.lp_pool1d(x, 2, 3, 2), growth=8)
case("lp_pool2d", [rand(2, 2, 5, 6, low=0.25)], [x0, 3, [2, 3], {"stride": [2, 1], "ceil_mode": True}],
     lambda x: F.lp_pool2d(x, 3, (2, 3), (2, 1), True), growth=16)
case("lp_pool3d", [rand(2, 2, 4, 5, 6, low=0.25)], [x0, 2.5, [2, 3, 2], {"stride": [2, 1, 2], "ceil_mode": True}],
     lambda x: F.lp_pool3d(x, 2.5, (2, 3, 2), (2, 1, 2), True), growth=16)
case("lp_pool3d", [rand(1, 2, 4, 4, 4, low=0.25)], [x0, 3, 2], lambda x: F.lp_pool3d(x, 3, 2), growth=16, tag="one size")
