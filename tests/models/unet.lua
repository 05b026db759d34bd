-- unet.lua - Ronneberger et al. 2015, with padding and batch norm: two levels, joined by concatenation.

local gb = require "gibbous"
local F = gb.nn.functional
local common = dofile("tests/models/common.lua")

-- Two convolutions, each with batch norm and relu.
local function double(w, name, x)
  for i = 0, 3, 3 do
    local y = common.conv(w, ("%s.%d"):format(name, i), x, { padding = 1 })
    x = common.batch_norm(w, ("%s.%d"):format(name, i + 1), y, 1e-5, { activation = "relu" })
  end
  return x
end

-- A transposed convolution of kernel 2 and stride 2: each pixel becomes four, which do not overlap, so it is a product.
local function up(w, name, x)
  local weight, n, h, width = w[name .. ".weight"], x:size(1), x:size(3), x:size(4)
  local y = x:permute({ 1, 3, 4, 2 }):matmul(weight:flatten(2)):reshape(n, h, width, weight:size(2), 2, 2)
  y = y:permute({ 1, 4, 2, 5, 3, 6 }):reshape(n, weight:size(2), 2 * h, 2 * width)
  return y + w[name .. ".bias"]:reshape(1, -1, 1, 1):to(y.dtype)
end

-- The logits [batch, height, width, classes] of inputs.x by the weights w.
return function(w, inputs)
  local a = double(w, "down1", inputs.x)
  local b = double(w, "down2", F.max_pool2d(a, 2))
  local c = double(w, "bottom", F.max_pool2d(b, 2))
  b = double(w, "join2", gb.cat({ b, up(w, "up2", c) }, 2))
  a = double(w, "join1", gb.cat({ a, up(w, "up1", b) }, 2))
  return common.conv(w, "head", a):permute({ 1, 3, 4, 2 })
end
