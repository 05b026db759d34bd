-- resnet.lua - torchvision's ResNet, training, of basic blocks or bottlenecks: what resnet18.lua is made of.

local gb = require "gibbous"
local F = gb.nn.functional
local common = dofile("tests/models/common.lua")

-- A convolution without bias, and its batch norm with what comes behind it.
local function conv_norm(w, conv, norm, x, options, more)
  return common.batch_norm(w, norm, common.conv(w, conv, x, options), nil, more)
end

-- The convolutions of a block, by kind: kernel sizes, and which of them has the stride.
local kinds = { basic = { { 3, 3 }, 1 }, bottleneck = { { 1, 3, 1 }, 2 } }

-- A block of convolutions, added to its input.
local function block(w, name, x, kind, stride)
  local kernels, strided = kinds[kind][1], kinds[kind][2]
  local y, residual = x, x
  if w[name .. ".downsample.0.weight"] then
    residual = conv_norm(w, name .. ".downsample.0", name .. ".downsample.1", x, { stride = stride })
  end
  for i, kernel in ipairs(kernels) do
    local options = { stride = i == strided and stride or 1, padding = kernel // 2 }
    y = conv_norm(w, name .. ".conv" .. i, name .. ".bn" .. i, y, options,
      { activation = "relu", residual = i == #kernels and residual or nil })
  end
  return y
end

-- A model of blocks of a kind, so many of them in each of four stages: the logits of inputs.x by the weights w.
return function(kind, counts)
  return function(w, inputs)
    local x = conv_norm(w, "conv1", "bn1", inputs.x, { stride = 2, padding = 3 }, { activation = "relu" })
    x = F.max_pool2d(x, 3, { stride = 2, padding = 1 })
    for stage, count in ipairs(counts) do
      for i = 0, count - 1 do
        x = block(w, ("layer%d.%d"):format(stage, i), x, kind, i == 0 and stage > 1 and 2 or 1)
      end
    end
    return common.linear(w, "fc", x:mean({ 3, 4 }))
  end
end
