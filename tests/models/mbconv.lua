-- mbconv.lua - torchvision's EfficientNet of MBConv blocks (depthwise convolutions, squeeze and excite, silu),
-- training: what efficientnet.lua and efficientnet_b0.lua are made of.

local gb = require "gibbous"
local F = gb.nn.functional
local common = dofile("tests/models/common.lua")

-- A convolution that keeps the size but for its stride, its batch norm, and silu if wanted.
local function conv(w, name, x, active, kernel, stride, groups)
  local y = common.conv(w, name .. ".0", x, { stride = stride, padding = kernel // 2, groups = groups })
  y = common.batch_norm(w, name .. ".1", y, 1e-5)
  return active and F.silu(y) or y
end

-- Each channel times a share of itself, which all channels' means decide.
local function squeeze(w, name, x)
  local s = F.silu(common.conv(w, name .. ".fc1", F.adaptive_avg_pool2d(x, 1)))
  return common.conv(w, name .. ".fc2", s):sigmoid() * x
end

-- One block: expand, filter each channel, squeeze and excite, project.
local function block(w, prefix, x, expansion, kernel, stride, to)
  local from, part, y = x:size(2), 0, x
  local function name()
    part = part + 1
    return prefix .. ".block." .. part - 1
  end
  if expansion > 1 then y = conv(w, name(), y, true, 1, 1) end
  y = conv(w, name(), y, true, kernel, stride, from * expansion)
  y = squeeze(w, name(), y)
  y = conv(w, name(), y, false, 1, 1)
  return from == to and stride == 1 and y + x or y
end

-- A model of stages, each an expansion, a kernel, the stride of the first block, channels and blocks: the logits of
-- inputs.x by the weights w.
return function(stages)
  return function(w, inputs)
    local x = conv(w, "features.0", inputs.x, true, 3, 2)
    for i, stage in ipairs(stages) do
      local expansion, kernel, stride, to, count = table.unpack(stage)
      for k = 0, count - 1 do
        x = block(w, ("features.%d.%d"):format(i, k), x, expansion, kernel, k == 0 and stride or 1, to)
      end
    end
    x = conv(w, ("features.%d"):format(#stages + 1), x, true, 1, 1)
    return common.linear(w, "classifier.1", F.adaptive_avg_pool2d(x, 1):flatten(2))
  end
end
