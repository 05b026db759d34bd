-- resnet18.lua - torchvision's resnet18.

return dofile("tests/models/resnet.lua")("basic", { 2, 2, 2, 2 })
