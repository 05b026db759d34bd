-- resnet50.lua - torchvision's resnet50.

return dofile("tests/models/resnet.lua")("bottleneck", { 3, 4, 6, 3 })
