"""Cases of the distance family."""
import torch
import torch.nn.functional as F

from . import case, distinct, rand, x0, x1, x2, x3

case("cosine_similarity", [rand(3, 4), rand(3, 4)], [x0, x1], F.cosine_similarity, growth=64)
case("cosine_similarity", [rand(2, 3, 4), rand(3, 4)], [x0, x1, -1, {"eps": 0.5}],
     lambda x, y: F.cosine_similarity(x, y, -1, 0.5), growth=16, tag="broadcast")
case("cosine_similarity", [rand(3, 4, low=-0.125, high=0.125), rand(3, 4)], [x0, x1, 1, {"eps": 0.7}],
     lambda x, y: F.cosine_similarity(x, y, 0, 0.7), growth=16, tag="short vectors")
case("pairwise_distance", [rand(3, 4), rand(3, 4)], [x0, x1], F.pairwise_distance, growth=16)
case("pairwise_distance", [rand(2, 3, 4), rand(3, 4)], [x0, x1, 1, {"keepdim": True, "eps": 0.01}],
     lambda x, y: F.pairwise_distance(x, y, 1, 0.01, True), growth=16, tag="p = 1, kept")
case("pairwise_distance", [rand(4), rand(4)], [x0, x1, 3], lambda x, y: F.pairwise_distance(x, y, 3), growth=16, tag="one row, p = 3")
case("cdist", [rand(3, 4), rand(5, 4)], [x0, x1], torch.cdist, growth=16)
even = rand(2, 3, 4).map(lambda x: (x * 8).round() / 8)  # no element is one of distinct's
case("cdist", [even, distinct(5, 4)], [x0, x1, 1], lambda x, y: torch.cdist(x, y, 1), growth=16, tag="p = 1, broadcast")
case("cdist", [rand(3, 4), rand(2, 4)], [x0, x1, 2.5], lambda x, y: torch.cdist(x, y, 2.5), growth=16, tag="p = 2.5")
# squares of 3 to 25, of which a product cancels less than half a digit
case("cdist", [rand(30, 4, low=1, high=2), rand(2, 4, low=-2, high=-1)], [x0, x1], torch.cdist, growth=16,
     tag="by a product")
case("cdist", [rand(2, 3, 4, low=1, high=2), rand(2, 4, low=-2, high=-1)],
     [x0, x1, 2, {"compute_mode": "use_mm_for_euclid_dist"}],
     lambda x, y: torch.cdist(x, y, 2, "use_mm_for_euclid_dist"), growth=16, tag="asked by a product, broadcast")
case("normalize", [rand(3, 4)], [x0], F.normalize, growth=16)
case("normalize", [rand(2, 3, 4)], [x0, 1, -1], lambda x: F.normalize(x, 1, -1), growth=16, tag="p = 1")
case("normalize", [rand(3, 4, low=-0.125, high=0.125)], [x0, 2, 1, {"eps": 0.7}], lambda x: F.normalize(x, 2, 0, 0.7),
     growth=16, tag="short vectors")
case("bilinear", [rand(3, 4), rand(3, 5), rand(2, 4, 5), rand(2)], [x0, x1, x2, x3], F.bilinear, growth=32)
case("bilinear", [rand(2, 3, 4), rand(2, 3, 5), rand(3, 4, 5)], [x0, x1, x2], F.bilinear, growth=32, tag="no bias, 3 dims")
