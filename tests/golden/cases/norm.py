"""Cases of the norm family."""
import torch.nn.functional as F

from . import case, rand, x0, x1, x2, x3, x4, x5

case("layer_norm", [rand(3, 8), rand(8), rand(8)], [x0, [8], x1, x2], lambda x, w, b: F.layer_norm(x, (8,), w, b), growth=32)
case("layer_norm", [rand(2, 3, 4)], [x0, [3, 4]], lambda x: F.layer_norm(x, (3, 4)), growth=32, tag="two dims, plain")
case("rms_norm", [rand(3, 8), rand(8)], [x0, [8], x1], lambda x, w: F.rms_norm(x, (8,), w, 1e-6), growth=32)
case("add_layer_norm", [rand(3, 8), rand(3, 8), rand(8), rand(8)], [x0, x1, [8], x2, x3],
     lambda x, r, w, b: (F.layer_norm(x + r, (8,), w, b), x + r), growth=32)
case("batch_norm", [rand(4, 3, 2, 2), rand(3, low=0.5), rand(3)], [x0, None, None, x1, x2, {"training": True}],
     lambda x, w, b: F.batch_norm(x, None, None, w, b, True), growth=48, tag="training")
case("batch_norm", [rand(4, 3, 2), rand(3), rand(3, low=0.5), rand(3), rand(3)], [x0, x1, x2, x3, x4],
     lambda x, rm, rv, w, b: F.batch_norm(x, rm, rv, w, b, False), grad=[0, 3, 4], growth=32, tag="evaluation")
case("batch_norm", [rand(4, 3, 2, 2), rand(3, low=0.5), rand(3), rand(4, 3, 2, 2)],
     [x0, None, None, x1, x2, x3, {"training": True, "activation": "relu"}],
     lambda x, w, b, r: F.relu(F.batch_norm(x, None, None, w, b, True) + r), growth=48, tag="residual and relu, training")
case("batch_norm", [rand(4, 3, 5), rand(3, low=0.5), rand(3)],
     [x0, None, None, x1, x2, {"training": True, "activation": "relu"}],
     lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)), growth=48, tag="relu, training")
case("batch_norm", [rand(4, 3, 2), rand(3), rand(3, low=0.5), rand(3), rand(3), rand(4, 3, 2)],
     [x0, x1, x2, x3, x4, x5, {"activation": "relu"}],
     lambda x, rm, rv, w, b, r: F.relu(F.batch_norm(x, rm, rv, w, b, False) + r), grad=[0, 3, 4, 5], growth=32,
     tag="residual and relu, evaluation")
case("batch_norm", [rand(4, 3), rand(4, 3)], [x0, None, None, None, None, x1, {"training": True}],
     lambda x, r: F.batch_norm(x, None, None, training=True) + r, growth=48, tag="residual, plain")
case("group_norm", [rand(2, 6, 3, 5), rand(6, low=0.5), rand(6)], [x0, 3, x1, x2],
     lambda x, w, b: F.group_norm(x, 3, w, b), growth=48)
case("group_norm", [rand(3, 4, 7)], [x0, 4, {"eps": 1e-3}], lambda x: F.group_norm(x, 4, eps=1e-3), growth=48,
     tag="a channel each, plain")
case("group_norm", [rand(2, 4), rand(4)], [x0, 1, x1], lambda x, w: F.group_norm(x, 1, w), growth=48, tag="no places")
