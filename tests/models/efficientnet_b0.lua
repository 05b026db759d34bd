-- efficientnet_b0.lua - torchvision's efficientnet_b0.

return dofile("tests/models/mbconv.lua") {
  { 1, 3, 1, 16, 1 }, { 6, 3, 2, 24, 2 }, { 6, 5, 2, 40, 2 }, { 6, 3, 2, 80, 3 }, { 6, 5, 1, 112, 3 },
  { 6, 5, 2, 192, 4 }, { 6, 3, 1, 320, 1 },
}
