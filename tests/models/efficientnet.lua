-- efficientnet.lua - a small EfficientNet of torchvision's blocks.

return dofile("tests/models/mbconv.lua") { { 1, 3, 1, 16, 1 }, { 4, 3, 2, 24, 2 } }
